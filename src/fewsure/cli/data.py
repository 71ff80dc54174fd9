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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fewsure.cli.common import Common, parse
from fewsure.core.places import cache_root, data_root
from fewsure.data import DATA_SETS
from fewsure.data.check import Result, Roles, check
from fewsure.data.description import Remote
from fewsure.data.io.download import download
from fewsure.data.pools import SPLITS
from fewsure.errors import FewsureError, require_known
from fewsure.report.tables import Table

SHOWN = 10
"""Unusable files that are named in the text; --json has them all."""


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
    text: Callable[[Result], str]
    if action == "list":
        options = parse("data list", Common, rest, __doc__)
        result, text = _list(), _list_text
    elif action == "get":
        options = got = parse("data get", GetOptions, rest, __doc__)
        result, text = _get(got.name), _get_text
    else:
        options = checked = parse("data check", CheckOptions, rest, __doc__)
        result, text = check(checked.name, checked), _check_text
    print(json.dumps(result) if options.json else text(result))


def _list() -> Result:
    """The title, licence and published classes of every data set, and the splits that are there."""
    sets = {
        name: {
            "title": data.title,
            "citation": data.citation,
            "licence": data.licence,
            "shape": list(data.shape),
            "classes": {split: data.classes[split] for split in SPLITS},
            "folder": str(data.folder),
            "found": [split for split in SPLITS if data.files(data.folder, split)],
            "download": [remote.url for remote in data.remotes],
        }
        for name, data in DATA_SETS.items()
    }
    return {"data_root": str(data_root()), "cache_root": str(cache_root()), "data_sets": sets}


def _list_text(result: Result) -> str:
    headers, rows = ("name", "classes", "example", "there", "licence", "what"), []
    for name, data in result["data_sets"].items():
        found = data["found"]
        there = "yes" if len(found) == len(SPLITS) else " ".join(found) or ("get" if data["download"] else "no")
        classes = " / ".join(str(data["classes"][split]) for split in SPLITS)
        rows.append([name, classes, "×".join(map(str, data["shape"])), there, data["licence"], data["title"]])
    return (
        f"{Table('', headers, rows).text()}\n\n"
        "classes: train / validation / test, as published; there: `get` can be had with `fewsure data get NAME`\n"
        f"looked for in {result['data_root']} (--data-root, $FEWSURE_DATA), each in a folder of its name"
    )


def _get(name: str) -> Result:
    """Download what is missing of a data set from its official source. A file that is there is never overwritten."""
    require_known("name", name, list(DATA_SETS))
    data = DATA_SETS[name]
    there = all(data.files(data.folder, split) for split in SPLITS)
    if not there and not data.remotes:
        raise FewsureError(f"{name} has no official download: expected {data.placement}; {data.how_to_get}")
    files = {} if there else {remote.name: _fetch(data.folder / remote.name, remote) for remote in data.remotes}
    return {"data": name, "folder": str(data.folder), "files": files}


def _fetch(target: Path, remote: Remote) -> str:
    if target.exists():
        return "was there already"
    download(remote.url, target, remote.checksum)
    return "downloaded, checksum as published" if remote.checksum else "downloaded; no checksum is published for it"


def _get_text(result: Result) -> str:
    lines = [f"{result['folder']}/{name}: {what}" for name, what in result["files"].items()]
    return "\n".join(
        [*(lines or [f"{result['folder']}: all there already"]), f"next: fewsure data check {result['data']}"]
    )


def _check_text(result: Result) -> str:
    unusable = result.get("unusable", [])
    lines = [f"{result['path']}: {result['what']}" + (f", {len(unusable)} unusable files" if unusable else "")]
    lines += [f"  {name}: {what}" for name, what in result.get("columns", {}).items()]
    if sizes := result.get("sizes"):
        first, *more = sizes
        others = f", and {len(more)} other sizes; all are resized to --image-size" if more else ""
        lines.append(f"{first['images']} images of {first['width']}×{first['height']} pixels{others}")
    if splits := result["splits"]:
        lines += [_splits_text(splits, result["unit"]), _possible(result)]
    else:
        lines.append(
            "name what to predict: --target COLUMN --task-column COLUMN for numbers, or --label COLUMN for classes"
        )
    if "files" in result:
        lines.append(f"{result['files_compared']} of {result['files']} files listed in SHA256SUMS, and as it says")
        has_groups = any(facts["groups"] for facts in splits.values())
        lines.append(f"groups in two splits: {len(result['groups_in_two_splits'])}" if has_groups else "no groups")
    lines += [f"warning: {warning}" for warning in result.get("warnings", [])]
    lines += [f"unusable: {item['file']}: {item['why']}" for item in unusable[:SHOWN]]
    if len(unusable) > SHOWN:
        lines.append(f"and {len(unusable) - SHOWN} more; --json names them all")
    return "\n".join(lines)


def _splits_text(splits: Mapping[str, Result], unit: str) -> str:
    headers, rows = ["split", unit, "examples", "smallest", "largest"], []
    for split, facts in splits.items():
        ends = [f"{facts[end]['examples']} ({facts[end]['name']})" for end in ("smallest", "largest")]
        rows.append([split, f"{facts['units']:,}", f"{facts['examples']:,}", *ends])
        if "shape" in facts:
            size = "×".join(map(str, facts["shape"]))
            rows[-1] += [f"{size} {facts['dtype']}", str(facts["groups"] or "–"), facts["checksum"][:12]]
    if len(headers) < len(rows[-1]):
        headers += ["example", "groups", "checksum"]
    return Table("", tuple(headers), rows).text()


def _possible(result: Result) -> str:
    splits = result["splits"].values()
    most, typical = min(facts["smallest"]["examples"] for facts in splits), min(facts["median"] for facts in splits)
    one = "task" if result["unit"] == "tasks" else "class"
    sizes = f"shot and query together up to {most} for every {one}"
    if typical > most and "files" not in result:  # the classes of a published data set are all drawn from
        sizes += f", up to {typical} for half of them (smaller ones are left out)"
    way = result.get("classes_of_a_task") or min(facts["units"] for facts in splits)
    return f"possible: {sizes}" if one == "task" else f"possible: up to {way} classes a task (way); {sizes}"
