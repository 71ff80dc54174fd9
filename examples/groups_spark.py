"""Many groups with Spark: the rows of a group go to one bucket, and each bucket is predicted at a time.

python examples/groups_spark.py
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import crc32, expr

import fewsure

BUCKETS = 4


def shops(number: int, seed: int) -> pd.DataFrame:
    """Twelve weeks of each shop, whose sales grow at a pace of their own."""
    random = np.random.default_rng(seed)
    shop = np.repeat([f"{seed}-{one}" for one in range(number)], 12)
    week, pace = np.tile(np.arange(12.0), number), np.repeat(random.normal(size=number), 12)
    return pd.DataFrame({"shop": shop, "week": week, "sales": 20 + pace * week + random.normal(size=len(shop))})


def main() -> None:
    """Learn from some shops, and predict the last four weeks of others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=0, help="updates of training; a Gaussian process needs none")
    parser.add_argument("--out", type=Path, default=Path("runs/shops"), help="the folder of the run")
    options = parser.parse_args()
    learner = fewsure.Learner("gp", data=shops(100, 0), task_column="shop", target="sales", query=4, device="cpu")
    learner.train(quiet=True).save(options.out)

    frame = shops(50, 1)
    known, new = frame[frame.week < 8], frame[frame.week >= 8].drop(columns="sales")

    def predict(known: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
        return learner.predict_groups(known, new, quiet=True)

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run this Python
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()

    def by_bucket(part: pd.DataFrame) -> DataFrame:
        return spark.createDataFrame(part).withColumn("bucket", crc32(expr("encode(shop, 'utf-8')")) % BUCKETS)

    rows = by_bucket(known).groupby("bucket").cogroup(by_bucket(new).groupby("bucket"))
    schema = "shop string, week double, mean double, std double, quantile_05 double, quantile_95 double"

    def of_bucket(known: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
        return predict(known, new).assign(week=new["week"])[[part.split()[0] for part in schema.split(", ")]]

    predicted = rows.applyInPandas(of_bucket, schema).toPandas().sort_values(["shop", "week"], ignore_index=True)
    spark.stop()

    at_once = predict(known, new)
    at_once = at_once.assign(week=new["week"]).sort_values(["shop", "week"], ignore_index=True)
    assert np.allclose(predicted["mean"], at_once["mean"])
    print(predicted.head(4).round(2).to_string())
    print(
        f"{len(predicted)} rows of {predicted['shop'].nunique()} shops, as without Spark. The run is in {options.out}"
    )


if __name__ == "__main__":
    main()
