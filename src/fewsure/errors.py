"""The one exception that means "the input is wrong", and the helper that words it."""

from collections.abc import Sequence
from difflib import get_close_matches

SYNONYMS = {
    "batch_size": "tasks",
    "epochs": "updates",
    "hidden_layers": "hidden",
    "hidden_sizes": "hidden",
    "inner_learning_rate": "inner_lr",
    "iterations": "updates",
    "learning_rate": "lr",
    "meta_batch_size": "tasks",
    "n_shot": "shot",
    "n_way": "way",
    "num_shots": "shot",
    "num_ways": "way",
    "optimizer": "optimiser",
    "outer_lr": "lr",
    "random_state": "seed",
    "steps": "updates",
}
"""Names that other libraries have → the option here."""


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
        near = nearest(given, known)
        hint = f"; did you mean {near!r}?" if near else ""
        raise FewsureError(f"expected `{name}` to be one of {', '.join(known)}, but got {given!r}{hint}")


def nearest(given: str, known: Sequence[str]) -> str | None:
    """The known name that was probably meant: a synonym, or one that is spelt alike.

    >>> nearest("learning_rate", ["lr", "updates"]), nearest("--learning-rate", ["--lr", "--updates"])
    ('lr', '--lr')
    >>> nearest("updtes", ["lr", "updates"]), nearest("colour", ["lr", "updates"])
    ('updates', None)
    """
    meant = SYNONYMS.get(given.lstrip("-").replace("-", "_"), "").replace("_", "-" if given.startswith("--") else "_")
    found = f"--{meant}" if given.startswith("--") else meant
    return found if found in known else next(iter(get_close_matches(given, known, n=1)), None)
