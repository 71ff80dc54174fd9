"""The records of evaluated tasks, in shards: kept as an evaluation goes on, and read from later.

A shard is a safetensors file with one row per task. It is named after its first task, and after their number if that is
not 2,000. So the last shards of a longer and of a shorter evaluation lie side by side until one of them is whole. The
header of a file says what it belongs to:

    format        of the file
    evaluation    the evaluation that its tasks are of (`fewsure.evaluation.evaluate.identity`)
    first, tasks  the number of its first task, and how many there are
    seconds       how long they took

A file is whole or not there, and one whose header says something else is not taken up.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from fewsure.core.distributed import is_rank_zero
from fewsure.core.files import make_folder, write_atomically
from fewsure.errors import FewsureError
from fewsure.types import Records

SHARD = 2000
"""Tasks of a shard, the last of an evaluation aside; a whole number of blocks."""
SHARD_FORMAT = 1


class Shard(NamedTuple):
    """The records of consecutive tasks."""

    records: dict[str, Tensor]
    seconds: float


class Store(Protocol):
    """Where the shards of one evaluation are kept, by the number of their first task."""

    def read(self, first: int, tasks: int) -> Shard | None:
        """The whole shard of just these tasks, if it is there."""

    def write(self, first: int, shard: Shard) -> None:
        """Keep one."""


class InMemory(dict[int, Shard]):
    """Shards that go with the process."""

    def read(self, first: int, tasks: int) -> Shard | None:
        return self.get(first)

    def write(self, first: int, shard: Shard) -> None:
        self[first] = shard


@dataclass(frozen=True)
class ShardFolder:
    """Shards as files of a folder that is named after the evaluation."""

    folder: Path

    def read(self, first: int, tasks: int) -> Shard | None:
        try:
            return self.load(first, tasks)
        except FewsureError:
            return None

    def load(self, first: int, tasks: int) -> Shard:
        """The shard of these tasks; refused if it is not there, not whole, or of another evaluation."""
        path = self._path(first, tasks)
        try:
            with safe_open(path, "pt") as file:
                header = dict(file.metadata() or {})
            records, seconds = load_file(path), float(header.pop("seconds", "nan"))
        except (SafetensorError, OSError, ValueError) as error:
            raise FewsureError(f"{path} cannot be read ({error}); run `fewsure evaluate` again") from error
        if header != self._header(first, tasks) or rows(records) != tasks or not 0 <= seconds < math.inf:
            raise FewsureError(f"{path} is damaged, or another evaluation's; run `fewsure evaluate` again")
        return Shard(records, seconds)

    def write(self, first: int, shard: Shard) -> None:
        if is_rank_zero():
            make_folder(self.folder)
            tasks = rows(shard.records)
            header = self._header(first, tasks) | {"seconds": f"{shard.seconds:.3f}"}
            tensors = {name: value.contiguous() for name, value in shard.records.items()}
            write_atomically(self._path(first, tasks), save(tensors, header))

    def forget_other_ends(self, tasks: int) -> None:
        """Remove the last shards of evaluations of other numbers of tasks, unless they are whole."""
        own = self._path(tasks - tasks % SHARD, tasks % SHARD)
        for path in self.folder.glob("*-*.safetensors"):
            if path != own:
                path.unlink()

    def _path(self, first: int, tasks: int) -> Path:
        number = "" if tasks == SHARD else f"-{tasks}"
        return self.folder / f"{first:010}{number}.safetensors"

    def _header(self, first: int, tasks: int) -> dict[str, str]:
        evaluation = self.folder.name
        return {"format": str(SHARD_FORMAT), "evaluation": evaluation, "first": str(first), "tasks": str(tasks)}


@dataclass(frozen=True)
class EvaluatedTasks:
    """The records of an evaluation's tasks; iterating gives them in order, `SHARD` tasks at a time."""

    shards: ShardFolder
    tasks: int

    def __iter__(self) -> Iterator[Records]:
        for first in range(0, self.tasks, SHARD):
            yield self.shards.load(first, min(SHARD, self.tasks - first)).records


def rows(records: Records) -> int:
    """How many tasks these are the records of."""
    found = {len(value) if value.dim() else 0 for value in records.values()}
    if len(found) != 1 or "fingerprint" not in records:
        raise FewsureError(
            "expected records with one row per task and its fingerprint, but got others; run `fewsure evaluate`"
        )
    return found.pop()


def concat_shards(shards: Iterable[Records]) -> dict[str, Tensor]:
    """The records of all tasks, in memory."""
    found = list(shards)
    return {name: torch.cat([records[name] for records in found]) for name in found[0]}
