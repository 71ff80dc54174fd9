"""`fewsure data list | get NAME | check NAME`: each gives an object for --json, and has its own text for people."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from fewsure.core.places import cache_root, data_root
from fewsure.data.description import DataSet, Remote
from fewsure.data.io.cache import load
from fewsure.data.io.checksums import verify
from fewsure.data.io.download import download
from fewsure.data.io.feature_files import KINDS, features_file, load_features
from fewsure.data.own.findings import Result, counted, laid_out
from fewsure.data.pools import SPLITS, Pool, Split
from fewsure.data.sets.registry import DATA_SETS
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
    rows = [("name", "classes", "example", "there", "licence", "what")]
    for name, data in result["data_sets"].items():
        found = data["found"]
        there = "yes" if len(found) == len(SPLITS) else " ".join(found) or ("get" if data["download"] else "no")
        classes = " / ".join(str(data["classes"][split]) for split in SPLITS)
        rows.append((name, classes, "×".join(map(str, data["shape"])), there, data["licence"], data["title"]))
    return "\n".join(
        [
            laid_out(rows),
            "",
            "classes: train / validation / test, as published; there: `get` can be had with `fewsure data get NAME`",
            f"looked for in {result['data_root']} (--data-root, $FEWSURE_DATA), each in a folder of its name",
        ]
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


def is_own(name: str) -> bool:
    """Whether a name is a path to a user's own images or table, rather than a data set or a folder of features."""
    path = Path(name).expanduser()
    features = any((path / f"{split}{kind}").exists() for split in SPLITS for kind in KINDS)
    return name not in DATA_SETS and (path.is_file() or (path.is_dir() and not features))


def check_data(name: str) -> Result:
    """Read all splits of a data set, or of a folder of features, and say what is in them."""
    if name in DATA_SETS:
        data = DATA_SETS[name]
        files = [path for split in SPLITS for path in data.found(split)]
        compared = verify(dict.fromkeys(files), data.folder)
        pools = {split: load(data, split) for split in SPLITS}
        folder = data.folder
    elif (folder := Path(name)).is_dir():
        splits = [split for split in SPLITS if any((folder / f"{split}{kind}").exists() for kind in KINDS)]
        pools = {split: load_features(folder, split) for split in splits or SPLITS}
        data, compared = None, verify([features_file(folder, split) for split in pools], folder)
    else:
        raise FewsureError(
            f"expected `name` to be one of {', '.join(DATA_SETS)}, a folder of features or of images, or a table, but "
            f"there is no {name!r}"
        )
    return {
        "data": name,
        "path": str(folder),
        "what": data.title if data else "features",
        "unit": "classes",
        "files": len(compared),
        "files_compared": sum(compared.values()),
        "splits": {split: _facts(pool) for split, pool in pools.items()},
        "groups_in_two_splits": _shared({split: pool.groups for split, pool in pools.items()}),
        "warnings": _warnings(data, pools),
    }


def _facts(pool: Pool) -> Result:
    return counted(dict(zip(pool.classes, pool.counts.tolist(), strict=True))) | {
        "shape": list(pool.examples.shape[1:]),
        "dtype": str(pool.examples.dtype).removeprefix("torch."),
        "groups": len({group for group in pool.groups if group}),
        "checksum": pool.checksum,
    }


def _warnings(data: DataSet | None, pools: Mapping[Split, Pool]) -> list[str]:
    published = data.classes if data else {}
    warnings = [
        f"expected {published[split]} classes in {split}, as published, but got {len(pool.classes)}"
        for split, pool in pools.items()
        if split in published and published[split] != len(pool.classes)
    ]
    shared = _shared({split: pool.classes for split, pool in pools.items()})
    if shared:
        warnings.append(f"expected every class in one split, but {len(shared)} are in two: {', '.join(shared[:5])}")
    return warnings


def _shared(names: Mapping[Split, Sequence[str]]) -> list[str]:
    """Names, other than "", that occur in two splits."""
    return sorted(
        {name for first, second in combinations(names.values(), 2) for name in set(first) & set(second)} - {""}
    )
