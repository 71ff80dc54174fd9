"""Devices: choosing one, and what to call it in a record."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from fewsure.errors import FewsureError
from fewsure.types import Parts

Precision = Literal["tf32", "float32"]


@contextmanager
def precision(wanted: Precision) -> Iterator[None]:
    """Whether a GPU may round the inputs of matrix products and convolutions to TF32 (10 bits of fraction)."""
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = wanted == "tf32"
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


def find_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise FewsureError(f"expected --device to be cpu, cuda or auto, but {name!r} cannot be used here")
    return device


def device_of(meta: Parts) -> torch.device:
    """Where meta-parameters are."""
    return next(iter(next(iter(meta.values())).values())).device


def device_name(device: torch.device) -> str:
    """`cpu`, or the GPU's own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
