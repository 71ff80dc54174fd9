"""Adapt a trained run to a few labelled examples, and write the predictor of that task for other programs.

The file takes any number of examples as the data has them; scaling is inside. It gives the class probabilities, or mean
and standard deviation, and the sampled functions. --onnx needs onnx and onnxscript: pip install 'fewsure[export]'.

examples:
  fewsure export runs/mine --support new-group.csv --onnx new-group.onnx
  fewsure export runs/mine --support labelled/ --onnx task.onnx --torch task.pt2
"""

import json
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, parse, require_examples
from fewsure.errors import FewsureError


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """`fewsure export`."""

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


def main(arguments: list[str]) -> None:
    """Adapt, export, write."""
    options = parse("export", Options, arguments, __doc__)
    support = require_examples("support", options.support)
    paths = [path for path in (options.onnx, options.torch) if path is not None]
    if not paths:
        raise FewsureError("expected --onnx FILE or --torch FILE, or both, but got neither")
    for path in paths:
        if path.is_dir() or not path.parent.is_dir():
            raise FewsureError(f"expected a file in a folder that is there, but got {path}")
    from fewsure.learner import load
    from fewsure.learner.export import export, write_onnx, write_torch
    from fewsure.learner.files import Files

    learner = load(options.run, device=options.device)
    exported = export(learner.adapt(*Files(learner.experiment, options.target).support(support)))
    if options.onnx is not None:
        write_onnx(exported, options.onnx)
    if options.torch is not None:
        write_torch(exported, options.torch)
    if options.json:
        print(json.dumps({"files": [str(path) for path in paths]} | exported.description))
        return
    x, names = exported.description["input"], ", ".join(exported.description["outputs"])
    shape = ", ".join(map(str, x["shape"]))
    for path in paths:
        print(f"{path}: x ({shape}) {x['type']} → {names}; {path.stat().st_size:,} bytes")
