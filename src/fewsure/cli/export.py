"""`fewsure export`."""

import json
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, command
from fewsure.errors import FewsureError
from fewsure.learner import load
from fewsure.learner.export import export, write_onnx, write_torch
from fewsure.learner.files import Files


@dataclass(frozen=True, kw_only=True)
class Export(Common):
    """Adapt a trained run to a few labelled examples, and write the predictor of that task for other programs.

    The file takes any number of examples as the data has them (scaling is inside) and gives the class probabilities,
    or mean and standard deviation, with the sampled functions as a second output. Needs onnx and onnxscript for
    --onnx: pip install 'fewsure[export]'.

    examples:
      fewsure export runs/mine --support new-group.csv --onnx new-group.onnx
      fewsure export runs/mine --support labelled/ --onnx task.onnx --torch task.pt2
    """

    run: Path
    """A run folder."""
    support: Path | None = None
    """The labelled examples: a CSV or Parquet file, or a folder with a folder of images for each class."""
    onnx: Path | None = None
    """The ONNX file to write."""
    torch: Path | None = None
    """The torch.export file (.pt2) to write."""
    target: str | None = None
    """The column of the support file with the label or number; `none` for that of the training data, or `label`, or
    `y`."""


def _export(command: Export) -> None:
    support = command.support
    if support is None or not support.exists():
        came = "got none" if support is None else f"{support} is not there"
        raise FewsureError(f"expected --support to be a file or a folder of examples, but {came}")
    writers = {write_onnx: command.onnx, write_torch: command.torch}
    wanted = {write: path for write, path in writers.items() if path is not None}
    if not wanted:
        raise FewsureError("expected --onnx FILE or --torch FILE, or both, but got neither")
    for path in wanted.values():
        if path.is_dir() or not path.parent.is_dir():
            raise FewsureError(f"expected a file in a folder that is there, but got {path}")
    learner = load(command.run, device=command.device)
    exported = export(learner.adapt(*Files(learner.experiment, command.target).support(support)))
    for write, path in wanted.items():
        write(exported, path)
    if command.json:
        print(json.dumps({"files": [str(path) for path in wanted.values()]} | exported.description))
        return
    x, names = exported.description["input"], ", ".join(exported.description["outputs"])
    shape = ", ".join(map(str, x["shape"]))
    for path in wanted.values():
        print(f"{path}: x ({shape}) {x['type']} → {names}; {path.stat().st_size:,} bytes")


EXPORT = command("export", Export, _export)
