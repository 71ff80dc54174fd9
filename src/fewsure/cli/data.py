"""List the data sets, fetch one from its official source, or read one and say what is in it.

`check` takes a path as well: a folder of features, a folder of class folders of images, a CSV or Parquet file. A data
set is decoded once, into a cache.

examples:
  fewsure data list
  fewsure data get omniglot
  fewsure data check omniglot --json
  fewsure data check cifar-fs --data-root data
  fewsure data check my-images
  fewsure data check my.csv --task-column group --target y
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fewsure.cli.common import Common, parse
from fewsure.data.check import Roles, check_data, check_text
from fewsure.data.command import get_data, get_text, list_data, list_text
from fewsure.errors import FewsureError, require_known


@dataclass(frozen=True, kw_only=True)
class GetOptions(Common):
    """`fewsure data get`."""

    name: str
    """The data set."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Roles, GetOptions):
    """`fewsure data check`."""


def main(arguments: list[str]) -> None:
    """List, get or check, and print what was found."""
    if not arguments or arguments[0].startswith("-"):
        parse("data list | get NAME | check NAME", Common, arguments, __doc__)
        raise FewsureError("expected `data` to be followed by list, get NAME or check NAME")
    action, *rest = arguments
    require_known("action", action, ["list", "get", "check"])
    options: Common
    text: Callable[[dict[str, Any]], str]
    if action == "list":
        options = parse("data list", Common, rest, __doc__)
        result, text = list_data(), list_text
    elif action == "get":
        options = get = parse("data get", GetOptions, rest, __doc__)
        result, text = get_data(get.name), get_text
    else:
        options = check = parse("data check", CheckOptions, rest, __doc__)
        result, text = check_data(check.name, check), check_text
    print(json.dumps(result) if options.json else text(result))
