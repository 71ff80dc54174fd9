"""Logged lines as event files for TensorBoard."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fewsure.errors import FewsureError

FOLDER = "tensorboard"
"""In a run folder."""


def require_tensorboard() -> None:
    """Refuse to write events where TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise FewsureError(
            "expected the package tensorboard for --tensorboard, but it is not installed; run "
            '`pip install "fewsure[track]"`'
        )


@contextmanager
def event_writer(run: Path, update: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Adds the numbers of logged lines to a new event file of a run, in which so many updates are made already.

    TensorBoard forgets what an interrupted training had written from the next update on.
    """
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run / FOLDER), purge_step=update + 1) as writer:

        def add(line: Mapping[str, Any]) -> None:
            for name, value in line.items():
                if name != "update" and isinstance(value, (int, float)):
                    writer.add_scalar(name, value, line["update"])
            writer.flush()

        yield add
