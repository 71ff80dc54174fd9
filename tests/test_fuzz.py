"""Bad input: every reader of files refuses what it cannot read with FewsureError, and does nothing else."""

import io
import math
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewsure.data.io import archives
from fewsure.data.sets import cifar_fs
from fewsure.errors import FewsureError

from .reliability.fuzz import MEMORY, NAMES, Guard, Reader, all_readers, attempt, structure, values_in

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
"""For each reader and kind of change; `notebook/reliability.py fuzz` takes more."""


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    return all_readers(tmp_path_factory.mktemp("readers"))


SETTINGS = settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WORDS = (
    *b"null true -1 0 1e999 -1e999 NaN Infinity 1e-320 [] {} [1,2] maml ../../up /etc/passwd 4294967296".split(),
    *b'"" "x" {"a":1} "F64" "BF16" 0.1 sine-line omniglot images builtins eval'.split(),
    *(b"9" * 25, b"9" * 5000, "²٣".encode(), b"\xff\xfe", *(nest * 5000 for nest in (b"[", b'{"a":', b"("))),
)


@st.composite
def changed(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A whole file, of which a part is cut out, or replaced by bytes, a word, a number or a part of another file."""
    seed, other = (draw(st.sampled_from(seeds)) for _ in range(2))
    start = draw(st.integers(0, len(seed)))
    end = draw(st.sampled_from([start, start + 1, len(seed)]) | st.integers(start, len(seed)))
    numbers = st.integers(0, 2**64 - 1).map(lambda number: number.to_bytes(8, "little"))
    others = st.integers(0, len(other)).map(lambda at: other[at:])
    return seed[:start] + draw(st.binary(max_size=64) | st.sampled_from(WORDS) | numbers | others) + seed[end:]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(data=st.data())
def test_a_changed_file_is_read_or_refused(readers: dict[str, Reader], name: str, data: st.DataObject) -> None:
    content = data.draw(changed(readers[name].seeds) | st.binary(max_size=200))
    assert attempt(readers[name], content) != "crashed"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(("maml", "F64")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(value=JSON | st.just(...), data=st.data())
def test_any_value_in_a_record_is_read_or_refused(
    readers: dict[str, Reader], name: str, value: Any, data: st.DataObject
) -> None:
    seed = data.draw(st.sampled_from(readers[name].seeds))
    record, written = structure(seed)
    if places := values_in(record):
        inside, key = data.draw(st.sampled_from(places))
        if value is ...:
            del inside[key]
        else:
            inside[key] = value
        assert attempt(readers[name], written(record)) != "crashed"


def test_names_in_a_zip_file_that_are_no_names_are_refused(readers: dict[str, Reader]) -> None:
    (stored, _) = readers["zip"].seeds
    entry = stored.rindex(b"PK\x01\x02")  # the last one of the directory
    flagged = bytearray(stored)
    flagged[entry + 9] |= 0x08  # the name is said to be UTF-8
    flagged[entry + 46] = 0xFF
    assert attempt(readers["zip"], bytes(flagged)) == "refused"
    nameless = bytearray(stored)
    nameless[entry + 28 : entry + 30] = b"\0\0"
    assert attempt(readers["zip"], bytes(nameless)) != "crashed"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run: data.json", b'{"format": 1, "seed": 0, "streams": [["train"]], "splits": {}}'),
        ("run: data.json", b'{"format": 1, "seed": 0, "streams": [], "splits": {"train": {"ids": [{}]}}}'),
        ("features.json", b'{"format": 2, "recipe": null}'),
        ("feature network", b'{"format": 2, "recipe": null, "shape": [1, 28, 28]}'),
        ("list of images", b"filename,label\na.png,\xff\n"),
        ("list of images", b"filename,label\na.png," + b"x" * 200_000),
        ("list of checksums", b"\xff"),
        ("list of checksums", b"0" * 64 + b"  a\0b"),
        ("tar", b"\xfd7zXZ\x00"),
    ],
)
def test_what_once_crashed_a_reader_is_refused(readers: dict[str, Reader], name: str, content: bytes) -> None:
    assert attempt(readers[name], content) == "refused"


def test_a_count_of_an_adapted_task_that_is_no_number_is_refused(readers: dict[str, Reader]) -> None:
    record, written = structure(readers["adapted task"].seeds[0])
    record["__metadata__"]["adapted"]["counts"] = [math.inf]
    assert attempt(readers["adapted task"], written(record)) == "refused"


def test_a_network_without_a_shape_is_refused(readers: dict[str, Reader]) -> None:
    recipe, _ = readers["feature network"].seeds
    for shape in (b'"no": 0', b'"shape": []', b'"shape": [1e9]', b'"shape": [-1]'):
        assert attempt(readers["feature network"], recipe.replace(b'"shape": [1, 28, 28]', shape)) == "refused"


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.REGTYPE])
def test_a_tar_file_whose_members_are_no_files_or_too_large_is_refused(
    readers: dict[str, Reader], kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_STREAM", 4)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("meta", "train", "test"):
            entry = tarfile.TarInfo(f"{cifar_fs.FOLDER}/{name}")
            entry.type, entry.linkname = kind, entry.name
            entry.size = 5 if kind == tarfile.REGTYPE else 0
            archive.addfile(entry, io.BytesIO(b"12345"))
    assert attempt(readers["tar"], buffer.getvalue()) == "refused"


def test_a_stream_from_an_archive_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    member = archives.Member("a.pkl", "a.zip: a.pkl", lambda: io.BytesIO(b""), archives.MAX_STREAM + 1)
    with pytest.raises(
        FewsureError, match=r"a\.zip: a\.pkl to have at most 4,294,967,296 bytes, but got 4,294,967,297"
    ):
        member.open()


def test_a_reader_may_not_write_elsewhere_or_run_programs(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    guard = Guard(tmp_path / "place")

    def found(read: Callable[[bytes], object]) -> str:
        return attempt(Reader(guard(read), []), b"content")  # type: ignore[arg-type]

    assert found((tmp_path / "place" / "file").write_bytes) == "read"
    assert found((tmp_path / "file").write_bytes) == "crashed"
    assert found(lambda content: subprocess.run(["true"], check=True)) == "crashed"
    assert found(lambda content: bytearray(2 * MEMORY)) == "crashed"
