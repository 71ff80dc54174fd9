"""Data stay in memory once they are read: an evaluation asks for them with each block of tasks."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

from fewsure.core.places import data_root

Function = TypeVar("Function", bound=Callable[..., Any])
_CACHES: list[Any] = []


def remembered(function: Function) -> Function:
    """A function of hashable arguments and of the data root, whose last results are kept."""
    at_root: Any = lru_cache(maxsize=6)(lambda root, *arguments: function(*arguments))
    _CACHES.append(at_root)
    return cast(Function, wraps(function)(lambda *arguments: at_root(data_root(), *arguments)))


def forget() -> None:
    """Read data anew where it is next asked for."""
    for cache in _CACHES:
        cache.cache_clear()
