"""Train a network on the training classes of an image data set, and store its features of all splits.

It is trained as a plain classifier of the training classes; images of the other classes are only passed through it
afterwards. The folder can then be trained on with `--data features`.

With --backbone, a network that another library has trained takes its place, and stays as it is. --data may then be a
folder of class folders of images. `--weights` names a local file; without it the library downloads its own.

examples:
  fewsure features --data cifar-fs --out features/cifar-fs
  fewsure features --data mini-imagenet --network wrn-28-10 --jitter 0.4 --out features/mini-imagenet
  fewsure features --data mini-imagenet --network conv4 --out features/conv4      then `fewsure train … --from`
  fewsure features --data cifar-fs --out features/cifar-fs --resume
  fewsure features --data photos --backbone timm:resnet50 --out features/photos
  fewsure features --data photos --backbone onnx:network.onnx --out features/photos
"""

import json
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, parse_groups, peek
from fewsure.cli.options import Parser
from fewsure.core.devices import find_device
from fewsure.data import DATA_SETS
from fewsure.data.io.cache import load
from fewsure.data.pools import SPLITS
from fewsure.errors import require, require_known
from fewsure.features import frozen
from fewsure.features.classifier import Recipe, recipe_of
from fewsure.features.frozen import make_frozen_features
from fewsure.features.workflow import check_out, describe, make_features, recorded_recipe


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """`fewsure features`, beside those of the recipe."""

    data: str = "cifar-fs"
    """A data set of images; with --backbone, or a folder of class folders of images."""
    out: Path = Path("features")
    """Where features, weights and the record go; it must not hold anything yet. It appears when it is complete."""
    backbone: str | None = None
    """A pretrained network: timm:NAME, torchvision:NAME, open-clip:NAME, onnx:FILE or python:MODULE:FUNCTION."""
    weights: str | None = None
    """A file with its weights; `none` for those of its library."""
    resume: bool = False
    """Go on with the training for --out that was interrupted, with the options it was started with; if there is none,
    start it."""


def main(arguments: list[str]) -> None:
    """Train, extract, and describe the features."""
    given = peek("features", Options, arguments)
    base = (recorded_recipe(given.out) if given.resume else None) or recipe_of(_network(arguments))
    options, groups = parse_groups("features", Options, arguments, __doc__, recipe=base)
    if options.backbone is not None:
        device = find_device(options.device)
        found = make_frozen_features(options.out, options.data, options.backbone, options.weights, device)
        print(json.dumps({"out": str(options.out)} | found) if options.json else frozen.describe(found, options.out))
        return
    require(options.weights is None, "weights", "left out without --backbone", options.weights)
    require_known("data", options.data, [name for name, data_set in DATA_SETS.items() if len(data_set.shape) == 3])
    device = find_device(options.device)
    check_out(options.out, resume=options.resume)  # before minutes of decoding
    pools = {split: load(DATA_SETS[options.data], split) for split in SPLITS}
    record = make_features(options.out, options.data, pools, groups["recipe"], device, resume=options.resume)
    print(json.dumps({"out": str(options.out)} | record) if options.json else describe(record, options.out))


def _network(arguments: list[str]) -> str:
    """The network that is asked for, which decides the other defaults."""
    parser = Parser("fewsure features", None, add_help=False)
    parser.add_argument("--network", default=Recipe().network)
    network: str = parser.parse_known_args(arguments)[0].network
    return network
