"""Many groups at a time: groups per second beside a loop over `adapt` and a process per group; memory of files.

    .venv/bin/python benchmarks/groups.py            # minutes of one core; results/groups.json

Each group has 8 known rows, 4 to predict, and 5 columns. All methods see the same 100,000 groups as DataFrames. The
loop is over a sample of them, as arrays that lie ready, and so is scikit-learn's Gaussian process, whose kernel is
fitted to each group by itself. Their rates are extrapolated from the sample. Seconds are those of one core, by its own
clock: other work on the machine does not count. A method's speed does not depend on how long it was trained, so those
with updates make 20.

Memory is the most that a process of its own holds, from two Parquet files to a third.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import fewsure
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.report.tables import markdown_table

RESULTS = Path(__file__).resolve().parents[1] / "results" / "groups.json"
KNOWN, NEW, COLUMNS = 8, 4, 5
GROUPS, SAMPLE, SKLEARN_SAMPLE = 100_000, 200, 100
METHODS = {"ridge": {}, "gp": {}, "tnp": {"updates": 20}, "simpa-latent": {"updates": 20}}
FILES = (10_000, 100_000, 1_000_000)
PIECE = 10_000
"""Groups that are written at once."""
NAMES = [f"x{column}" for column in range(COLUMNS)]


PAGE = """# Results: many groups

With this page you can see what predicting many groups at a time saves, and how much memory files take.

## Groups per second of one core

{groups:,} groups with {known} known rows, {new} rows to predict and {columns} columns, as DataFrames.

{methods}

1. The loop calls `adapt` and `predict` for {sample} of the groups, with arrays that lie ready.
2. Means of both ways differ by {difference:.1g} at most.
3. scikit-learn's Gaussian process fits a kernel to each group by itself: {alone:.0f} groups per second, measured on
   {alone_sample} of the groups. All of them would take {alone_seconds:,.0f} s.
4. `tnp` and `simpa-latent` were trained for 20 updates, since their speed does not depend on training.

## Memory of files

`ridge` from two Parquet files to a third, in a process of its own. The last column is the most memory that it held.
Before it read a row, it held {before:.0f} MiB.

{files}

## Run it again

    .venv/bin/python benchmarks/groups.py         # minutes of one core
    make results

Device: {device}, one thread. Versions: fewsure {version}, torch {torch}, scikit-learn {sklearn}. Seed: {seed}.
Seconds are those of one core by its own clock.
"""


def shops(groups: int, seed: int) -> pd.DataFrame:
    """Rows with a linear function of each group's own, a sine of all, and noise."""
    random, rows = np.random.default_rng(seed), groups * (KNOWN + NEW)
    x, own = random.normal(size=(rows, COLUMNS)), random.normal(size=(groups, COLUMNS))
    y = (np.repeat(own, KNOWN + NEW, axis=0) * x).sum(1) + np.sin(2 * x[:, 0]) + 0.2 * random.normal(size=rows)
    names = np.repeat([f"{seed}-{number}" for number in range(groups)], KNOWN + NEW)
    return pd.DataFrame({"group": names, **dict(zip(NAMES, x.T, strict=True)), "y": y})


def divided(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The known rows and the new ones."""
    known = np.arange(len(frame)) % (KNOWN + NEW) < KNOWN
    return frame[known], frame[~known].drop(columns="y")


def core_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one core that work takes, and its result."""
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def learner_of(method: str, **training: Any) -> fewsure.Learner:
    """A learner of 300 groups."""
    roles = {"task_column": "group", "target": "y", "shot": KNOWN, "query": NEW}
    learner = fewsure.Learner(method, data=shops(300, 1), **roles, device="cpu")
    return learner.train(quiet=True, **training)


def arrays(known: pd.DataFrame, new: pd.DataFrame, groups: int) -> Iterator[tuple[Any, Any, Any]]:
    """Known inputs and targets, and new inputs, of the first groups."""
    x, y = known[NAMES].to_numpy(), known["y"].to_numpy()
    query = new[NAMES].to_numpy()
    for group in range(groups):
        rows = slice(group * KNOWN, (group + 1) * KNOWN)
        yield x[rows], y[rows], query[group * NEW : (group + 1) * NEW]


def measured(method: str, known: pd.DataFrame, new: pd.DataFrame, training: dict[str, Any]) -> dict[str, Any]:
    """All groups at a time, beside a loop."""
    learner = learner_of(method, **training)
    sample = [*arrays(known, new, SAMPLE)]
    learner.predict_groups(known[:80], new[:40], quiet=True)
    learner.adapt(*sample[0][:2]).predict(sample[0][2])
    of_all, found = core_seconds(lambda: learner.predict_groups(known, new, quiet=True))
    of_loop, expected = core_seconds(lambda: [learner.adapt(x, y).predict(query).columns() for x, y, query in sample])
    mean = np.concatenate([columns["mean"] for columns in expected])
    together, loop = len(known) / KNOWN / of_all, SAMPLE / of_loop
    return {
        "method": method,
        "groups_per_second": together,
        "loop_groups_per_second": loop,
        "times_the_loop": together / loop,
        "seconds": of_all,
        "largest_difference": float(np.abs(found["mean"].to_numpy()[: len(mean)] - mean).max()),
    }


def per_group(known: pd.DataFrame, new: pd.DataFrame) -> dict[str, Any]:
    """scikit-learn's Gaussian process with a kernel of each group's own."""
    kernel = ConstantKernel() * RBF(np.ones(COLUMNS)) + WhiteKernel()

    def fit() -> None:
        for x, y, query in arrays(known, new, SKLEARN_SAMPLE):
            GaussianProcessRegressor(kernel, normalize_y=True).fit(x, y).predict(query, return_std=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eight rows say little about six numbers of a kernel
        seconds, _ = core_seconds(fit)
    rate = SKLEARN_SAMPLE / seconds
    return {"version": sklearn.__version__, "groups_per_second": rate, "extrapolated_seconds": GROUPS / rate}


def write_files(folder: Path, groups: int) -> None:
    """Parquet files of so many groups."""
    import pyarrow
    from pyarrow import parquet

    writers: list[Any] = []
    for piece in range(groups // PIECE):
        tables = [pyarrow.Table.from_pandas(part, preserve_index=False) for part in divided(shops(PIECE, 10 + piece))]
        if not writers:
            pairs = zip(("known", "new"), tables, strict=True)
            writers = [parquet.ParquetWriter(folder / f"{name}.parquet", table.schema) for name, table in pairs]
        for writer, table in zip(writers, tables, strict=True):
            writer.write_table(table)
    for writer in writers:
        writer.close()


def predict_files(folder: Path, run: Path) -> None:
    """Predict the files in a process of its own, and print the most memory that it held."""
    learner = fewsure.load(run, device="cpu")
    before = peak_mib()
    seconds, rows = core_seconds(
        lambda: learner.predict_groups(
            folder / "known.parquet", folder / "new.parquet", out=folder / "out.parquet", quiet=True
        )
    )
    print(json.dumps({"rows": rows, "seconds": seconds, "mib_before": before, "mib_at_most": peak_mib()}))


def peak_mib() -> float:
    """The most memory that this process has held."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def files_measured(groups: int, run: Path) -> dict[str, Any]:
    """Write files of so many groups and predict them, each in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _child("--write", str(groups), "--files", name)
        size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
        found = json.loads(_child("--files", name, "--run", str(run)))
    return {"groups": groups, "input_mib": size, **found, "groups_per_second": groups / found["seconds"]}


def _child(*options: str) -> str:
    """The output of this script with other options, in a session of its own."""
    command = [sys.executable, __file__, *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, start_new_session=True).stdout


def page(record: Mapping[str, Any]) -> str:
    """The page of results."""
    methods = [
        (
            f"`{row['method']}`",
            f"{row['groups_per_second']:,.0f}",
            f"{row['loop_groups_per_second']:,.0f}",
            f"{row['times_the_loop']:.0f}",
        )
        for row in record["methods"]
    ]
    files = [
        (
            f"{row['groups']:,}",
            f"{row['input_mib']:,.0f} MiB",
            f"{row['seconds']:.1f} s",
            f"{row['mib_at_most']:.0f} MiB",
        )
        for row in record["files"]
    ]
    alone = record["gaussian_process_per_group"]
    values = {
        "methods": markdown_table(("method", "together", "a loop", "times faster"), methods),
        "files": markdown_table(("groups", "both files", "time", "memory"), files),
        "difference": max(row["largest_difference"] for row in record["methods"]),
        "alone": alone["groups_per_second"],
        "alone_sample": alone["sample"],
        "alone_seconds": alone["extrapolated_seconds"],
        "before": record["files"][0]["mib_before"],
        "sklearn": alone["version"],
    }
    return PAGE.format(**{**record, **values})


def main() -> None:
    """Print one line per method and per size of files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.write:
        write_files(options.files, options.write)
        return
    if options.files:
        predict_files(options.files, options.run)
        return
    began, (known, new) = time.perf_counter(), divided(shops(GROUPS, 2))
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as beside:
        run = Path(name) / "run"
        learner_of("ridge").save(run)
        of_files = beside.map(lambda groups: files_measured(groups, run), FILES)  # processes, which take no time here
        rows = []
        for method, training in METHODS.items():
            rows.append(measured(method, known, new, training))
            print(rows[-1], flush=True)
        alone = per_group(known, new)
        print(alone, flush=True)
        files = []
        for found in of_files:
            files.append(found)
            print(found, flush=True)
    facts = {"device": device_name(torch.device("cpu")), "version": fewsure.__version__, "torch": torch.__version__}
    sizes = {"groups": GROUPS, "known": KNOWN, "new": NEW, "columns": COLUMNS, "sample": SAMPLE}
    record = facts | {"threads": 1, "seed": 2, "seconds": time.perf_counter() - began} | sizes
    record |= {"methods": rows, "gaussian_process_per_group": alone | {"sample": SKLEARN_SAMPLE}, "files": files}
    write_atomically(RESULTS, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
