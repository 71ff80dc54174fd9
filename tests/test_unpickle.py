"""Published pickles load, from Python 2 and 3; a pickle that asks for anything else is refused by name."""

import io
import os
import pickle
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewsure.data.io.unpickle import as_text, load, load_fields
from fewsure.errors import FewsureError

from .data_files import python2_pickle

ARRAYS = [
    np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
    np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
    np.arange(4, dtype=">i4"),
    np.array([1.5, -2.5], dtype=np.float32),
    np.array([True, False]),
    np.array([b"n01", b"n0153"]),
    np.array(["n01", "n0153"]),
    np.array(["n01", "n0153"], dtype=object),
    np.zeros((0, 3)),
]


def read(content: bytes) -> Any:
    return load(io.BytesIO(content), "some.pkl")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_python_3_writes_is_read(protocol: int) -> None:
    for array in ARRAYS:
        found = read(pickle.dumps(array, protocol))
        np.testing.assert_array_equal(found, array)
        assert found.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    plain = {"a": [1, 2.5, None, True], b"b": ("text", b"\x00\xff", 2**70), "scalar": np.int64(7), "f": np.float32(0.5)}
    assert read(pickle.dumps(plain, protocol)) == plain


def test_numpy_s_old_and_new_module_names_mean_the_same() -> None:
    new = pickle.dumps(ARRAYS[0], 2)
    old = new.replace(b"numpy._core", b"numpy.core")
    assert old != new
    np.testing.assert_array_equal(read(old), read(new))


def test_what_python_2_wrote_is_read() -> None:
    content = {"data": ARRAYS[0], "labels": [3, 1], "name": "caf\xe9", "keys": np.array([b"0-n01-n01_1.JPEG"])}
    found = read(python2_pickle(content))
    np.testing.assert_array_equal(found["data"], ARRAYS[0])
    assert (found["labels"], found["name"]) == ([3, 1], "caf\xe9")
    assert as_text(found["keys"][0]) == "0-n01-n01_1.JPEG"
    # The same bytes mean the same to the unrestricted reader.
    np.testing.assert_array_equal(pickle.loads(python2_pickle(ARRAYS[1]), encoding="latin1"), ARRAYS[1])


class Evil:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("function", "name"),
    [(os.system, "system"), (eval, "eval"), (open, "open"), (getattr, "getattr"), (np.load, "numpy.load")],
)
def test_a_pickle_that_imports_is_refused_by_name(function: Any, name: str, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    argument = {"system": f"touch {mark}", "eval": f"open({str(mark)!r}, 'w')"}.get(name, str(mark))
    content = {"image_data": ARRAYS[0], "class_dict": Evil(function, argument)}
    with pytest.raises(FewsureError, match=rf"some\.pkl .* it tried to import \S*{name};"):
        read(pickle.dumps(content, protocol))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "tried"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "import os.system"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncbuiltins\nlist\n(K\x00tU\x01b\x87R.", "import builtins.list"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.", "encode text as 'rot13'"),
        (b"\x80\x02X\x01\x00\x00\x00aQ.", "load the outside object 'a'"),
        (b"\x80\x02c_codecs\nencode\n}U\x04nameK\x01sb.", "set attributes of <function"),
        (pickle.dumps(np.array([{}, []], dtype=object)), "build an array of Python objects"),
        (pickle.dumps(np.array(["2026-01-01"], dtype="M8[D]")), "build an array of 'M8'"),
        (pickle.dumps(np.zeros(1, dtype="i4,O")), "build an array of 'V12'"),
    ],
)
def test_what_else_is_refused(content: bytes, tried: str) -> None:
    with pytest.raises(FewsureError) as error:
        read(content)
    assert f"it tried to {tried}" in str(error.value)


def test_an_array_is_built_from_its_bytes_only() -> None:
    for content in (
        b"\x80\x02cnumpy\nndarray\nK\x05\x85R.",  # a call of ndarray itself
        pickle.dumps(ARRAYS[7], 2).replace(b"K\x02\x85", b"K\x09\x85"),  # more strings than there are
        pickle.dumps(ARRAYS[0], 2).replace(b"K\x02K\x02K\x03\x87", b"K\x02K\x02K\x09\x87"),  # more bytes
    ):
        with pytest.raises(FewsureError, match=r"some\.pkl"):
            read(content)


def test_damage_of_any_kind_is_one_error() -> None:
    draw = random.Random(0)
    for whole in (python2_pickle({"data": ARRAYS[0], "n": [1]}), pickle.dumps({"data": ARRAYS[:3], "n": [1]})):
        for cut in range(len(whole)):
            with pytest.raises(FewsureError, match=r"some\.pkl"):
                read(whole[:cut])
        for _ in range(2000):
            damaged = bytearray(whole)
            damaged[draw.randrange(len(whole))] = draw.randrange(256)
            try:
                read(bytes(damaged))
            except FewsureError as error:
                assert "some.pkl" in str(error)  # noqa: PT017 (most damage is to data, and goes unseen)


def test_a_few_bytes_cannot_claim_much_memory() -> None:
    tracemalloc.start()
    assert read(b"\x80\x02K\x07r\x00\x00\x00\x7f.") == 7  # "remember this as number 2,130,706,432"
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_fields_are_asked_for_by_name() -> None:
    stream = io.BytesIO(pickle.dumps({b"labels": [1], "keys": ["a"]}))
    assert load_fields(stream, "some.pkl", "keys", "labels") == [["a"], [1]]
    with pytest.raises(FewsureError, match=r"some\.pkl to hold data, but got labels"):
        load_fields(io.BytesIO(pickle.dumps({"labels": 1})), "some.pkl", "data")
    with pytest.raises(FewsureError, match="a dict with data, but got list"):
        load_fields(io.BytesIO(pickle.dumps([1])), "some.pkl", "data")
