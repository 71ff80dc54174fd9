"""Many groups with Dask: the rows of a group go to one partition, and each partition is predicted at a time.

python examples/groups_dask.py
"""

import argparse
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd

import fewsure


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

    by_shop = [dd.from_pandas(part, npartitions=3).shuffle("shop", npartitions=4) for part in (known, new)]
    like = predict(known[:8], new[:4])
    predicted = dd.map_partitions(predict, *by_shop, meta=like, align_dataframes=False).compute()

    at_once = predict(known, new)
    assert np.allclose(predicted.loc[at_once.index, "mean"], at_once["mean"])
    print(predicted.sort_index().head(4).round(2).to_string())
    print(f"{len(predicted)} rows of {predicted['shop'].nunique()} shops, as without Dask. The run is in {options.out}")


if __name__ == "__main__":
    main()
