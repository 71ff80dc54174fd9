"""Many groups on Ray: the same buckets of the same files as on one machine, wherever Ray has room for them.

A Parquet file is read by its row groups. Each bucket is one group of a Ray dataset. The result is a folder of Parquet
files. Ray runs what a lost worker did again.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewsure.data.io.table_files import PARQUET, arrow_columns
from fewsure.errors import FewsureError
from fewsure.learner.group_files import GroupFiles, Piece
from fewsure.learner.groups import Rows

BUCKET = "bucket"


def predict_on_ray(files: GroupFiles, out: Path) -> int:
    """Predict all new rows into a folder of Parquet files, in any order; how many there are."""
    try:
        import ray.data
    except ImportError as error:
        raise FewsureError("engine `ray` needs Ray: run `pip install fewsure[ray]`") from error
    for path in (files.known, files.new):
        if path.suffix.lower() not in PARQUET:
            raise FewsureError(f"expected Parquet files with the engine `ray`, but got {path}; convert it")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FewsureError(f"expected the output of the engine `ray` to be a new or empty folder, but {out} is not")
    rows = ray.data.from_items(_row_groups(files)).map_batches(
        lambda batch: _read(files, batch), batch_size=1, batch_format="numpy"
    )
    found = rows.groupby(BUCKET).map_groups(lambda bucket: _predict(files, bucket), batch_format="numpy")
    found.write_parquet(str(out))
    return int(ray.data.read_parquet(str(out)).count())


def _row_groups(files: GroupFiles) -> list[dict[str, Any]]:
    from pyarrow import parquet

    found = []
    for role in ("known", "new"):
        metadata, first = parquet.ParquetFile(files.known if role == "known" else files.new).metadata, 1
        for number in range(metadata.num_row_groups):
            found.append({"role": role, "number": number, "first": first})
            first += metadata.row_group(number).num_rows
    return found


def _read(files: GroupFiles, batch: dict[str, Any]) -> dict[str, Any]:
    """The rows of a row group; new ones have no target."""
    from pyarrow import parquet

    role, number, first = (batch[name][0] for name in ("role", "number", "first"))
    path = files.known if role == "known" else files.new
    group, x, y = rows = files.rows(role, arrow_columns(parquet.ParquetFile(path).read_row_group(number), str(path)))
    numbers = files.reader.predictor.experiment.model.kind == "regression"
    target = y.astype(float if numbers else str) if len(y) else np.full(len(group), np.nan if numbers else "")
    return {
        BUCKET: files.bucket_of(rows),
        "known": np.full(len(group), role == "known"),
        "row": np.arange(first, first + len(group)),
        "group": group,
        "y": target,
        **{f"x{column}": values for column, values in enumerate(x.numpy().T)},
    }


def _predict(files: GroupFiles, bucket: dict[str, Any]) -> dict[str, Any]:
    """The predictions for the rows of a bucket."""
    inputs = [name for name in bucket if name.startswith("x")]
    x = torch.from_numpy(np.stack([bucket[f"x{column}"] for column in range(len(inputs))], axis=-1))

    def piece(chosen: Any) -> list[Piece]:
        rows = Rows(bucket["group"][chosen].astype(str), x[torch.from_numpy(chosen)], bucket["y"][chosen])
        return [Piece(bucket["row"][chosen], rows)] if chosen.any() else []

    known = np.asarray(bucket["known"], dtype=bool)
    found = files.predict(piece(known), piece(~known))
    return {name: np.asarray(found[name]) for name in found.dtype.names or ()}
