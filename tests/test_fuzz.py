"""Bad input: every reader of files refuses what it cannot read with FewsureError, and does nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .reliability import short
from .reliability.fuzz import NAMES, Reader, all_readers, attempt

INPUTS = 3400


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Reader]]:
    return all_readers(tmp_path_factory.mktemp("readers"))


def test_changed_files_are_read_or_refused_and_nothing_happens_elsewhere() -> None:
    found = short.found(fuzz=f"fuzz.fuzz({INPUTS}, seed=1)")["fuzz"]
    assert found["inputs"] >= INPUTS
    assert found["crashes"] == 0
    assert found["done_outside"] == 0
    assert all(
        counts["refused"] or name in ("run: metrics.jsonl", "cache") for name, counts in found["readers"].items()
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), where=st.floats(0, 1), data=st.data())
def test_any_bytes_in_a_file_are_read_or_refused(
    readers: dict[str, Reader], name: str, content: bytes, where: float, data: st.DataObject
) -> None:
    seed = data.draw(st.sampled_from(readers[name].seeds))
    at = int(where * len(seed))
    for changed in (content, seed[:at] + content + seed[at:], seed[:at] + content + seed[at + len(content) :]):
        assert attempt(readers[name], changed) != "crashed"


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


def test_a_fuzzed_reader_may_not_write_elsewhere(tmp_path: Path) -> None:
    program = "fuzz.writes_are_noticed()"
    assert short.found(noticed=program)["noticed"] == ["opened", "subprocess.Popen"]
