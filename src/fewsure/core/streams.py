"""Random streams: one generator for each (seed, purpose, index), so that nothing depends on what was drawn before."""

import hashlib

import torch


def generator(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for one purpose of a seed, for instance `generator(0, "train", update)`.

    >>> a, b = generator(0, "train", 7), generator(0, "train", 7)
    >>> bool(torch.rand((), generator=a) == torch.rand((), generator=b))
    True
    """
    return torch.Generator(device).manual_seed(number(seed, *purpose))


def number(seed: int, *purpose: str | int) -> int:
    """The 63-bit number that seeds that generator."""
    key = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1
