"""Devices: choosing one, and what to call it in a record."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor

from fewsure.errors import FewsureError
from fewsure.types import Parts

Precision = Literal["auto", "tf32", "float32", "bf16"]

_ROUNDS: ContextVar[bool] = ContextVar("large matrices are rounded", default=False)

LARGE = 2**18
"""Numbers of a matrix that is worth rounding. On smaller ones the rounding costs more than it saves."""


@contextmanager
def precision(wanted: Precision) -> Iterator[None]:
    """How numbers may be rounded in matrix products, by the whole process.

    `float32` rounds nothing. `tf32` rounds the inputs of products to TF32 (10 bits of fraction) on a GPU, and nothing
    on a CPU. With `bf16`, SImPa also rounds the large matrices of its generator and its critic, and their other
    factors, on any device. So do networks of bits with a large first layer. A CPU then rounds the weights and the maps
    of convolutions, too. `auto` is `tf32`, until `fastest_precision` has said what it is here.
    """
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = wanted != "float32"
    try:
        with precision_on_cpu(wanted):
            yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


def fastest_precision(*, convolves: bool) -> Precision:
    """The precision of `auto` on this machine: `bf16` for convolutions on a CPU that computes with it, else `tf32`."""
    on_cpu = convolves and not torch.cuda.is_available()
    return "bf16" if on_cpu and torch.cpu._is_avx512_bf16_supported() else "tf32"


@contextmanager
def precision_on_cpu(wanted: Precision) -> Iterator[None]:
    """`precision` for work on a CPU, by this thread alone."""
    token = _ROUNDS.set(wanted == "bf16")
    try:
        yield
    finally:
        _ROUNDS.reset(token)


def rounded_type(matrix: Tensor) -> torch.dtype:
    """bfloat16 (7 bits of fraction, half the memory to move) for a large matrix under `bf16`; else its own type.

    Each matrix of a stack counts by itself.
    """
    return torch.bfloat16 if _ROUNDS.get() and matrix.shape[-2:].numel() >= LARGE else matrix.dtype


def rounded_on_cpu(maps: Tensor) -> torch.dtype:
    """bfloat16 for the maps of a convolution on a CPU under `bf16`; else their own type."""
    return torch.bfloat16 if _ROUNDS.get() and maps.device.type == "cpu" else maps.dtype


def in_full(numbers: Tensor) -> Tensor:
    """Numbers that were rounded to bfloat16, as float32: sums and base networks take them so."""
    return numbers.float() if numbers.dtype == torch.bfloat16 else numbers


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
    """Where meta-parameters are; the CPU where there are none."""
    return next((value.device for params in meta.values() for value in params.values()), torch.device("cpu"))


def device_name(device: torch.device) -> str:
    """`cpu`, or the GPU's own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
