"""Bad input: every reader of files that may come from others. It reads a file or raises FewsureError; nothing else.

While a reader is at work, no file outside its folder may be opened for writing, nothing may be run or connected to,
and memory is limited, so that a small file cannot claim a large amount of it.
"""

import io
import json
import os
import pickle
import resource
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from fewsure.algorithms.maml import Maml
from fewsure.certification.certify import Request, certify_run
from fewsure.certification.freshness import require_fresh
from fewsure.core.config import to_record
from fewsure.data.description import DataSet
from fewsure.data.io import archives, cache, unpickle
from fewsure.data.io.checksums import LIST, verify
from fewsure.data.io.feature_files import load_features
from fewsure.data.io.images import decode
from fewsure.data.io.table_files import read_blocks
from fewsure.data.pools import pool_checksum
from fewsure.data.sets import cifar_fs, mini_imagenet
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.features import workflow
from fewsure.features.classifier import Recipe, build_network
from fewsure.features.workflow import load_network, recorded_recipe
from fewsure.learner import load
from fewsure.networks.mlp import MlpOptions
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.report.certificates import read_results
from fewsure.report.runs import Problem, read_certificate
from fewsure.theory import conformal
from fewsure.training.experiment import Experiment, Training
from fewsure.training.runs import Run

CPU = torch.device("cpu")
NAMES = (
    *("run: config.json", "run: checkpoint", "run: best checkpoint", "run: metrics.jsonl", "run: evaluation.json"),
    *("run: evaluated tasks", "run: fitted.json", "run: calibration", "run: data.json"),
    *("run: certificate.json", "adapted task", "results", "features.json", "feature network"),
    *("pickle", "zip", "tar", "image", "csv", "list of images", "list of checksums"),
    *("features", "cache"),
)
DATA_SET = DataSet(
    name="fuzz",
    title="",
    citation="",
    licence="",
    shape=(3,),
    classes={},
    placement="",
    files=lambda folder, split: [],
    read=lambda folder, split, stack: [],
)
SHARED_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A place where files are made fast."""
MEMORY = 4 * 2**30
"""Bytes that a reader may take on top of what the program has."""
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "os.fork", "os.chmod")


class Reader(NamedTuple):
    """A reader, and what it reads when all is well."""

    read: Callable[[bytes], None]
    seeds: list[bytes]


def attempt(reader: Reader, content: bytes) -> str:
    """How a reader takes a file; a crash is shown with the file that caused it."""
    try:
        reader.read(content)
    except FewsureError:
        return "refused"
    except Exception as error:
        print(f"{type(error).__name__}: {error} for {content[:300]!r}", file=sys.stderr)
        return "crashed"
    return "read"


def structure(content: bytes) -> tuple[Any, Callable[[Any], bytes]]:
    """The record that a JSON file or the head of a safetensors file holds, and how it is written; none for others.

    What the head says of the file is JSON in a text; it is a part of the record here.
    """
    try:
        if content[:1] in (b"{", b"["):
            return json.loads(content), lambda record: json.dumps(record).encode()
        end = 8 + int.from_bytes(content[:8], "little")
        if content[8:9] == b"{" and end <= len(content):
            head = json.loads(content[8:end])
            about = head.get("__metadata__", {})
            about |= {name: json.loads(text) for name, text in about.items() if text[:1] == "{"}
            return head, lambda record: _safetensors(record, content[end:])
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    return None, lambda record: content


def _safetensors(head: Any, tensors: bytes) -> bytes:
    about = head.get("__metadata__") if isinstance(head, dict) else None
    if isinstance(about, dict):
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
        head = head | {"__metadata__": texts}
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + tensors


def values_in(record: Any) -> list[tuple[Any, Any]]:
    """Where the values of a record are: (list or dict, place in it)."""
    places: list[tuple[Any, Any]] = []
    left = [record]
    while left:
        found = left.pop()
        if isinstance(found, (dict, list)):
            keys = list(found) if isinstance(found, dict) else range(len(found))
            places += [(found, key) for key in keys]
            left += [found[key] for key in keys]
    return places


class Guard:
    """Wraps readers: their memory is limited, and what they do outside a folder is an error."""

    def __init__(self, place: Path) -> None:
        self._kept = (str(place), "/dev/null")
        self._watches = False
        self._outside: list[str] = []
        sys.addaudithook(self._notice)  # for good: it cannot be taken away, but it can be told to be silent

    def __call__(self, read: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """The reader that raises AssertionError if it writes elsewhere, runs a program or connects to a machine."""

        def guarded(content: bytes) -> None:
            before = limit_memory()
            self._watches = True
            try:
                read(content)
            finally:
                self._watches = False
                resource.setrlimit(resource.RLIMIT_AS, before)
                outside, self._outside = self._outside, []
                assert not outside, f"done outside: {outside}"

        return guarded

    def _notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._watches:
            return
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if writes and not str(os.fsdecode(path) if isinstance(path, (str, bytes)) else "").startswith(self._kept):
                self._outside.append(f"opened {path!r}")
        elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "shutil.rmtree"):
            if not str(arguments[0]).startswith(self._kept):
                self._outside.append(f"{event} {arguments!r}")
        elif event.startswith(FORBIDDEN):
            self._outside.append(event)


def limit_memory() -> tuple[int, int]:
    """Limit what may be taken from here on; the limits before."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, before[1]))
    return before


def all_readers(place: Path) -> dict[str, Reader]:
    """Every reader of files that may come from others, with whole files of its kind."""
    trained = small_run(place / "trained")
    copy = place / "copy"
    copy.mkdir()
    shutil.copy(trained.folder / "config.json", copy)
    run = Run.open(copy)
    (shard,) = trained.folder.glob("evaluation/*/*.safetensors")
    learner = load(trained.folder, device="cpu")
    adapted = place / "adapted.safetensors"
    learner.adapt([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 3.0, 4.0]).save(adapted)

    def file(name: str, work: Callable[[Path], object]) -> Callable[[bytes], None]:
        def read(content: bytes) -> None:
            (copy / name).write_bytes(content)
            work(copy / name)

        return read

    def run_file(name: str, work: Callable[[Path], object]) -> Reader:
        return Reader(file(name, work), [(trained.folder / name).read_bytes()])

    def shard_file(content: bytes) -> None:
        shard.write_bytes(content)
        trained.evaluation_records()

    def all_of_zip(path: Path) -> None:
        with ExitStack() as stack:
            for member in archives.members(path.parent, path.stem, stack):
                member.read()

    def all_of_table(path: Path) -> None:
        for block in read_blocks(path):
            block.numbers("y", "target")
            block.strings("task", "task_column")

    def cached(content: bytes) -> None:
        (copy / "cache").mkdir(exist_ok=True)
        whole = cache_files()
        (copy / "cache" / cache.INDEX).write_bytes(content if content[:1] == b"{" else whole[0])
        (copy / "cache" / cache.ARRAY).write_bytes(whole[1] if content[:1] == b"{" else content)
        cache._open(copy / "cache", DATA_SET)

    def image(content: bytes) -> None:
        decode(content, "fuzz", (3, 8, 8))

    def features(content: bytes) -> None:
        kind = "npz" if content[:2] == b"PK" else "safetensors"
        (copy / "test.npz").unlink(missing_ok=True)
        (copy / "test.safetensors").unlink(missing_ok=True)
        (copy / f"test.{kind}").write_bytes(content)
        load_features(copy, "test")

    def certificate(content: bytes) -> None:
        (trained.folder / "certificate.json").write_bytes(content)
        problems: list[Problem] = []
        read_certificate(trained, problems)
        if problems:  # which the report shows in place of the certificate
            raise FewsureError(problems[0].says)

    def network(content: bytes) -> None:
        written = content[:1] == b"{"
        (features_folder / "features.json").write_bytes(content if written else recipe)
        (features_folder / "network.safetensors").write_bytes(weights if written else content)
        load_network(features_folder)

    def streams(path: Path) -> None:
        with ExitStack() as stack:
            for stream, where in cifar_fs._streams(path, stack).values():
                unpickle.load(stream, where)

    def checksums(path: Path) -> None:
        verify([copy / "archive.zip"], copy)

    smallest = Recipe(width=0.01)
    recipe = json.dumps(
        {"format": workflow.FORMAT, "recipe": to_record(smallest), "data": "omniglot", "shape": [1, 28, 28]}
    ).encode()
    weights = save(
        {name: torch.zeros(value.shape) for name, value in build_network(smallest, (1, 28, 28)).state_dict().items()}
    )
    features_folder = place / "features"
    features_folder.mkdir()
    whole_certificate = (trained.folder / "certificate.json").read_bytes()
    image_table = b"filename,label\na.png,bird\n"
    member = archives.Member("a.png", "a.png", lambda: io.BytesIO(b""), 0)
    readers = {
        "run: config.json": run_file("config.json", lambda path: Run.open(copy)),
        "run: checkpoint": run_file("checkpoint.safetensors", lambda path: run.load(CPU)),
        "run: best checkpoint": run_file("best.safetensors", lambda path: (run.best_score(), run.load(CPU, "best"))),
        "run: metrics.jsonl": run_file("metrics.jsonl", lambda path: run.metrics()),
        "run: evaluation.json": run_file("evaluation.json", lambda path: run.evaluation()),
        "run: evaluated tasks": Reader(shard_file, [shard.read_bytes()]),
        "run: fitted.json": Reader(
            file("fitted.json", lambda path: run.fitted(["noise_std"])), [b'{"5": {"noise_std": 0.25}}\n']
        ),
        "run: calibration": run_file("conformal-5.safetensors", conformal.load),
        "run: data.json": run_file("data.json", lambda path: require_fresh(run, run.experiment)),
        "run: certificate.json": Reader(certificate, [whole_certificate]),
        "adapted task": Reader(file("adapted.safetensors", learner.load_adapted), [adapted.read_bytes()]),
        "results": Reader(file("results.json", read_results), [b'[{"algorithm": "maml", "seconds": 1.5}]']),
        "features.json": Reader(file("features.json", lambda path: recorded_recipe(copy)), [recipe]),
        "feature network": Reader(network, [recipe, weights]),
        "pickle": Reader(lambda content: unpickle.load(io.BytesIO(content), "fuzz"), pickles()),
        "zip": Reader(file("archive.zip", all_of_zip), zips()),
        "tar": Reader(file(cifar_fs.ARCHIVE, streams), tars()),
        "image": Reader(image, images()),
        "csv": Reader(file("table.csv", all_of_table), [b"task,x,y\na,1,2\nb,3,4.5\n", b"task;y\n\xc3\xa4;1e5\n"]),
        "list of images": Reader(file("t.csv", lambda path: mini_imagenet._table_items(path, [member])), [image_table]),
        "list of checksums": Reader(file(LIST, checksums), [b"0" * 64 + b"  other.zip\n" + b"1" * 64 + b" *a/b.png\n"]),
        "features": Reader(features, feature_files()),
        "cache": Reader(cached, cache_files()),
    }
    assert tuple(readers) == NAMES
    guard = Guard(place)
    guarded = {name: Reader(guard(reader.read), reader.seeds) for name, reader in readers.items()}
    for name, reader in guarded.items():
        for seed in reader.seeds:
            assert attempt(reader, seed) == "read", f"{name} does not read its own file"
    return guarded


def small_run(folder: Path) -> Run:
    """A trained run with every file that a run folder can have."""
    training = Training(updates=2, tasks=2, keep_best=1)
    experiment = Experiment(Maml(inner_steps=1), SineLine(query=3), MlpOptions((2,)), training, "none")
    run = start_run(folder, experiment, resume=False)
    train_run(run, CPU)
    evaluate_run(run, CPU, tasks=4, seed=0)
    certify_run(run, CPU, Request(tasks=4))
    return run


def pickles() -> list[bytes]:
    """As data sets are published."""
    content = {"images": np.arange(12, dtype=np.uint8).reshape(2, 6), b"names": ["a", b"b"], "one": (1, 2.5, None)}
    return [pickle.dumps(content, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]


def zips() -> list[bytes]:
    """Stored and compressed."""
    found = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            archive.writestr("archive/a/1.png", b"image " * 20)
            archive.writestr("archive/../../b/2.png", b"")
        found.append(buffer.getvalue())
    return found


def tars() -> list[bytes]:
    """As CIFAR-100 is published, and not compressed."""
    found = []
    modes: Any = ("w:gz", "w")
    for mode in modes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as archive:
            for name in ("meta", "train", "test"):
                entry = tarfile.TarInfo(f"{cifar_fs.FOLDER}/{name}")
                content = pickle.dumps({"names": ["a", "b"]})
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        found.append(buffer.getvalue())
    return found


def images() -> list[bytes]:
    """PNG and JPEG, grey and in colour."""
    found = []
    pixels = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    for kind in ("PNG", "JPEG"):
        for mode in ("RGB", "L"):
            buffer = io.BytesIO()
            Image.fromarray(pixels).convert(mode).save(buffer, kind)
            found.append(buffer.getvalue())
    return found


def feature_files() -> list[bytes]:
    """An npz file and a safetensors file."""
    features, labels = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 0, 1])
    buffer = io.BytesIO()
    np.savez(buffer, features=features, labels=labels)
    return [buffer.getvalue(), save({"features": torch.from_numpy(features), "labels": torch.from_numpy(labels)})]


def cache_files() -> list[bytes]:
    """The index and the array of a decoded split."""
    buffer = io.BytesIO()
    examples = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(buffer, examples)
    starts = torch.tensor([0, 1, 2])
    index: dict[str, Any] = {"format": cache.FORMAT, "source": "", "classes": ["a", "b"], "groups": ["", ""]}
    index |= {"starts": starts.tolist(), "checksum": pool_checksum(torch.from_numpy(examples), starts, ["a", "b"])}
    return [json.dumps(index).encode(), buffer.getvalue()]
