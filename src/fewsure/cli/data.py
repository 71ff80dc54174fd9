"""`fewsure data` and `fewsure features`."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fewsure.cli.common import Command, Common, parse
from fewsure.cli.options import Parser, add_options, from_namespace
from fewsure.core.devices import find_device
from fewsure.data.command import check_data, get_data, get_text, is_own, list_data, list_text
from fewsure.data.io.cache import load
from fewsure.data.own.check import Roles, check_images, check_table
from fewsure.data.own.findings import check_text
from fewsure.data.pools import SPLITS
from fewsure.data.sets.registry import DATA_SETS
from fewsure.errors import FewsureError, require_known
from fewsure.features.classifier import Recipe
from fewsure.features.workflow import check_out, describe, make_features, recorded_recipe


@dataclass(frozen=True, kw_only=True)
class Data(Common):
    """List the data sets, fetch one from its official source, or read one and say what is in it.

    `check` takes a path as well: a folder of features, a folder of class folders of images, a CSV or Parquet file. A
    data set is decoded once, into a cache.

    examples:
      fewsure data list
      fewsure data get omniglot
      fewsure data check omniglot --json
      fewsure data check cifar-fs --data-root data
      fewsure data check my-images
      fewsure data check my.csv --task-column group --target y
    """


@dataclass(frozen=True, kw_only=True)
class NamedData(Data):
    """`fewsure data get` and `fewsure data check`."""

    name: str
    """The data set."""


@dataclass(frozen=True, kw_only=True)
class CheckedData(Roles, NamedData):
    """`fewsure data check`."""


@dataclass(frozen=True, kw_only=True)
class Features(Common):
    """Train a residual network on the training classes of an image data set, and store its features of all splits.

    It is trained as a plain classifier of the training classes; images of the other classes are only passed through it
    afterwards. The folder can then be trained on with `--data features`.

    examples:
      fewsure features --data cifar-fs --out features/cifar-fs
      fewsure features --data tiny-tiered --network wrn-28-10 --jitter 0.4 --out features/tiny-tiered
      fewsure features --data cifar-fs --out features/cifar-fs --resume
    """

    data: str = "cifar-fs"
    """A data set of images."""
    out: Path = Path("features")
    """Where features, weights and the record go; it must not hold anything yet. It appears when it is complete."""
    resume: bool = False
    """Go on with the training for --out that was interrupted, with the options it was started with; if there is none,
    start it."""


def _data(arguments: list[str]) -> None:
    if not arguments or arguments[0].startswith("-"):
        parse("data list | get NAME | check NAME", Data, arguments)
        raise FewsureError("expected `data` to be followed by list, get NAME or check NAME")
    action, *rest = arguments
    text: Callable[[dict[str, Any]], str]
    require_known("action", action, ["list", "get", "check"])
    if action == "list":
        command = parse("data list", Data, rest)
        result, text = list_data(), list_text
    elif action == "get":
        command = named = parse("data get", NamedData, rest, Data.__doc__)
        result, text = get_data(named.name, quiet=named.json), get_text
    else:
        command = checked = parse("data check", CheckedData, rest, Data.__doc__)
        result, text = _check(checked), check_text
    print(json.dumps(result) if command.json else text(result))


def _check(command: CheckedData) -> dict[str, Any]:
    if not is_own(command.name):
        return check_data(command.name, quiet=command.json)
    path = Path(command.name).expanduser()
    if path.is_file():
        return check_table(path, command)
    for role in fields(Roles):
        if getattr(command, role.name):
            option = f"--{role.name.replace('_', '-')}"
            raise FewsureError(f"expected {option} with a table, but {path} is a folder of images; leave it out")
    return check_images(path, quiet=command.json)


def _features(arguments: list[str]) -> None:
    peek = Parser("fewsure features", "", add_help=False)
    add_options(peek, Features)
    given = from_namespace(Features, peek.parse_known_args(arguments)[0])
    base = (recorded_recipe(given.out) if given.resume else None) or Recipe()
    parser = Parser("fewsure features", Features.__doc__ or "")
    add_options(parser, Features)
    add_options(parser, Recipe, defaults=base, title="recipe")
    namespace = parser.parse_all(arguments)
    command, recipe = from_namespace(Features, namespace), from_namespace(Recipe, namespace)
    require_known("data", command.data, [name for name, data_set in DATA_SETS.items() if len(data_set.shape) == 3])
    device = find_device(command.device)
    check_out(command.out, resume=command.resume)  # before minutes of decoding
    pools = {split: load(DATA_SETS[command.data], split, quiet=command.json) for split in SPLITS}
    record = make_features(command.out, command.data, pools, recipe, device, resume=command.resume, quiet=command.json)
    print(json.dumps({"out": str(command.out)} | record) if command.json else describe(record, command.out))


DATA = Command(Data, _data)
FEATURES = Command(Features, _features)
