"""The one exception that means "the input is wrong", and the helper that words it."""

from collections.abc import Sequence
from difflib import get_close_matches


class FewsureError(Exception):
    """Something a user can put right. The command line prints it as one line and exits with code 2."""


class Diverged(FewsureError):
    """Training stopped because its numbers were not finite."""


def require(condition: bool, name: str, expected: str, given: object) -> None:
    """Raise unless `condition` holds, naming the argument, what was expected and what came.

    >>> require(-1 > 0, "lr", "a number above 0", -1)
    Traceback (most recent call last):
    ...
    fewsure.errors.FewsureError: expected `lr` to be a number above 0, but got -1
    """
    if not condition:
        raise FewsureError(f"expected `{name}` to be {expected}, but got {given!r}")


def require_known(name: str, given: str, known: Sequence[str]) -> None:
    """Raise unless `given` is one of the `known` names; the message lists them and suggests the nearest.

    >>> require_known("algorithm", "simpla", ["maml", "simpa"])
    Traceback (most recent call last):
    ...
    fewsure.errors.FewsureError: expected `algorithm` to be one of maml, simpa, but got 'simpla'; did you mean 'simpa'?
    """
    if given not in known:
        near = get_close_matches(given, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise FewsureError(f"expected `{name}` to be one of {', '.join(known)}, but got {given!r}{hint}")
