"""Event files that TensorBoard reads, written without it.

A file is a sequence of records

    length (uint64) · masked CRC of the length (uint32) · event · masked CRC of the event (uint32)

in little-endian order. The CRC is CRC-32C, masked as ((crc >> 15 | crc << 17) + 0xa282ead8) mod 2³². An event is a
protocol-buffer message, of which these fields are written:

    1 wall_time (double)    2 step (int64)    3 file_version (string)    5 summary    7 session_log
    summary: 1 value (repeated), each with 1 tag (string), 2 simple_value (float)
    session_log: 1 status (1 is START)

A session that starts at a step makes TensorBoard forget what an interrupted one had written from that step on.
"""

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"
"""In a run folder."""
VERSION = "brain.Event:2"
START = 1
POLYNOMIAL = 0x82F63B78
"""Of CRC-32C, its bits in reverse order."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protocol buffers."""


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A checksum as records hold it: a checksum of data that holds checksums would be weak."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class EventWriter:
    """Adds the numbers of logged lines to a new event file of a run."""

    def __init__(self, run: Path, update: int) -> None:
        """`update` is the number of updates that are made already."""
        folder = run / FOLDER
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{os.getpid()}.{update}"
        self._path = folder / name
        self._write(_field(3, BYTES, VERSION.encode()))
        self._write(_field(2, VARINT, update + 1) + _field(7, BYTES, _field(1, VARINT, START)))

    def add(self, line: Mapping[str, Any]) -> None:
        """The numbers of a logged line, under their names, at its update."""
        values = b"".join(
            _field(1, BYTES, _field(1, BYTES, name.encode()) + _field(2, FIXED32, float(value)))
            for name, value in line.items()
            if name != "update" and isinstance(value, (int, float))
        )
        self._write(_field(2, VARINT, int(line["update"])) + _field(5, BYTES, values))

    def _write(self, event: bytes) -> None:
        event = _field(1, FIXED64, time.time()) + event
        length = struct.pack("<Q", len(event))
        checks = [struct.pack("<I", masked(crc32c(data))) for data in (length, event)]
        with self._path.open("ab") as file:
            file.write(length + checks[0] + event + checks[1])


def _field(number: int, kind: int, value: Any) -> bytes:
    key = _varint(number << 3 | kind)
    if kind == VARINT:
        return key + _varint(value)
    if kind == BYTES:
        return key + _varint(len(value)) + bytes(value)
    return key + struct.pack("<d" if kind == FIXED64 else "<f", value)


def _varint(value: int) -> bytes:
    """Seven bits in each byte, the lowest first; the highest bit says that more follow."""
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
