"""`fewsure data list` and `fewsure data get NAME`: each gives an object for --json, and has its own text for people."""

from pathlib import Path

from fewsure.core.places import cache_root, data_root
from fewsure.data import DATA_SETS
from fewsure.data.check import Result, in_columns
from fewsure.data.description import Remote
from fewsure.data.io.download import download
from fewsure.data.pools import SPLITS
from fewsure.errors import FewsureError, require_known


def list_data() -> Result:
    """Every data set: what it is, its licence and published classes, and which splits are there."""
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


def list_text(result: Result) -> str:
    """The list as a table."""
    rows = [["name", "classes", "example", "there", "licence", "what"]]
    for name, data in result["data_sets"].items():
        found = data["found"]
        there = "yes" if len(found) == len(SPLITS) else " ".join(found) or ("get" if data["download"] else "no")
        classes = " / ".join(str(data["classes"][split]) for split in SPLITS)
        rows.append([name, classes, "×".join(map(str, data["shape"])), there, data["licence"], data["title"]])
    return (
        f"{in_columns(rows)}\n\n"
        "classes: train / validation / test, as published; there: `get` can be had with `fewsure data get NAME`\n"
        f"looked for in {result['data_root']} (--data-root, $FEWSURE_DATA), each in a folder of its name"
    )


def get_data(name: str) -> Result:
    """Download what is missing of a data set from its official source. A file that is there is never overwritten."""
    require_known("name", name, list(DATA_SETS))
    data = DATA_SETS[name]
    if all(data.files(data.folder, split) for split in SPLITS):
        return {"data": name, "folder": str(data.folder), "files": {}}
    if not data.remotes:
        raise FewsureError(f"{name} has no official download: expected {data.placement}; {data.how_to_get}")
    files = {remote.name: _get(data.folder / remote.name, remote) for remote in data.remotes}
    return {"data": name, "folder": str(data.folder), "files": files}


def _get(target: Path, remote: Remote) -> str:
    if target.exists():
        return "was there already"
    download(remote.url, target, remote.checksum)
    return "downloaded, checksum as published" if remote.checksum else "downloaded; no checksum is published for it"


def get_text(result: Result) -> str:
    """What was fetched, and what to do next."""
    lines = [f"{result['folder']}/{name}: {what}" for name, what in result["files"].items()]
    return "\n".join(
        [*(lines or [f"{result['folder']}: all there already"]), f"next: fewsure data check {result['data']}"]
    )
