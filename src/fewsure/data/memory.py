"""What has been read from a data root stays in memory: an evaluation asks for it with each block of tasks."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

from fewsure.core.places import data_root

Function = TypeVar("Function", bound=Callable[..., Any])
_CACHES: list[Any] = []


def remembered(function: Function) -> Function:
    """A function of hashable arguments and of the data root, whose last results are kept."""

    @lru_cache(maxsize=6)
    def at(_: object, *arguments: Any) -> Any:
        return function(*arguments)

    _CACHES.append(at)

    @wraps(function)
    def remembering(*arguments: Any) -> Any:
        return at(data_root(), *arguments)

    return remembering  # type: ignore[return-value]


def forget() -> None:
    """Read data anew where it is next asked for."""
    for cache in _CACHES:
        cache.cache_clear()
