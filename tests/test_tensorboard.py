"""Event files hold what metrics.jsonl holds, in the format that TensorBoard documents."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fewsure.cli.main import main
from fewsure.training.tensorboard import FOLDER, crc32c

TINY = ["--updates", "6", "--tasks", "2", "--checkpoint-every", "2", "--hidden", "4", "--device", "cpu", "--json"]


def checksum(data: bytes) -> int:
    """CRC-32C bit by bit, masked."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32


def records(data: bytes) -> Iterator[bytes]:
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = data[12 : 12 + length]
        assert struct.unpack("<I", data[8:12]) == (checksum(data[:8]),)
        assert struct.unpack("<I", data[12 + length : 16 + length]) == (checksum(event),)
        yield event
        data = data[16 + length :]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field of a protocol-buffer message."""

    def varint() -> int:
        nonlocal message
        value = shift = 0
        while True:
            byte, message = message[0], message[1:]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    sizes = {1: (8, "<d"), 5: (4, "<f")}
    while message:
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
            continue
        length, form = (varint(), None) if kind == 2 else sizes[kind]
        value, message = message[:length], message[length:]
        yield number, value if form is None else struct.unpack(form, value)[0]


def events(folder: Path) -> list[dict[int, Any]]:
    files = sorted(folder.glob("events.out.tfevents.*"), key=lambda path: int(path.suffix[1:]))
    return [dict(fields(event)) for path in files for event in records(path.read_bytes())]


def scalars(event: dict[int, Any]) -> dict[str, float]:
    values = [dict(fields(value)) for number, value in fields(event[5]) if number == 1]
    return {value[1].decode(): value[2] for value in values}


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_the_checksum_is_that_of_rfc_3720(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def test_what_is_logged_is_in_the_event_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", "maml", *TINY, "--tensorboard", "--out", str(run)]) == 0
    first, session, *logged = events(run / FOLDER)
    assert first[3] == b"brain.Event:2"
    assert (session[2], dict(fields(session[7]))) == (1, {1: 1})
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [event[2] for event in logged] == [line["update"] for line in lines] == [2, 4, 6]
    for event, line in zip(logged, lines, strict=True):
        numbers = {name: value for name, value in line.items() if name not in ("update", "device")}
        assert scalars(event) == {name: pytest.approx(value, rel=1e-6) for name, value in numbers.items()}
        assert event[1] > 1.6e9  # seconds since 1970


def test_a_resumed_run_says_where_it_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", "maml", *TINY, "--tensorboard", "--out", str(run)]) == 0
    assert main(["train", "maml", "--resume", "--tensorboard", "--device", "cpu", "--json", "--out", str(run)]) == 0
    *_, session = events(run / FOLDER)
    assert (session[2], dict(fields(session[7]))) == (7, {1: 1})


def test_without_the_option_there_are_none(tmp_path: Path) -> None:
    assert main(["train", "maml", *TINY, "--out", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / FOLDER).exists()


def test_tensorboard_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed; the format is tested above without it")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    assert main(["train", "maml", *TINY, "--tensorboard", "--out", str(run)]) == 0
    found = EventAccumulator(str(run / FOLDER)).Reload()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(point.step, point.value) for point in found.Scalars("loss")] == [
        (line["update"], pytest.approx(line["loss"], rel=1e-6)) for line in lines
    ]
