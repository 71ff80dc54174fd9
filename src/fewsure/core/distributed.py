"""One run by several processes, as `torchrun` starts them: on one machine or on many, with gloo or NCCL.

    torchrun --nproc-per-node=4 -m fewsure train simpa --out runs/simpa --resume

Every process draws the random numbers of the whole meta-batch and takes its share of the tasks. The sum of their
gradients, each weighted by its share of the tasks, is the gradient of one process, up to rounding. All then take the
same step. Rank zero alone writes files and prints. Without `torchrun` there is one process, and nothing here does
anything.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.utils import _pytree as pytree

from fewsure.core.devices import find_device
from fewsure.core.progress import silenced
from fewsure.errors import FewsureError

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for one that lives but does not answer, which may be decoding its data. One that has ended
is noticed at once."""
Result = TypeVar("Result")
Part = TypeVar("Part")


class _Gloo:
    """The group in which processes exchange values that are on no device."""

    group: Any = None


def rank() -> int:
    """The number of this process."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_rank_zero() -> bool:
    """Whether this process is the one that writes and prints."""
    return rank() == 0


@contextmanager
def process_group(device_name: str) -> Iterator[torch.device]:
    """Join the other processes, if `torchrun` has started this one; the device of this process."""
    if not dist.is_torchelastic_launched():
        yield find_device(device_name)
        return
    device = _own_device(device_name)
    with _named_failure():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backend = "nccl" if device.type == "cuda" else "gloo"
        store, number, count = next(rendezvous("env://", timeout=TIMEOUT))
        # torchrun keeps its store when it restarts processes, with the addresses of those that have ended.
        own = PrefixStore(f"fewsure-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=own, rank=number, world_size=count, timeout=TIMEOUT)
        _Gloo.group = dist.new_group(backend="gloo", timeout=TIMEOUT)
    with silenced(not is_rank_zero()):
        yield device
    with _named_failure():  # after an error the others may be gone, and there is nobody to take leave of
        dist.barrier(_Gloo.group)
        dist.destroy_process_group()
    _Gloo.group = None


def task_share(tasks: int) -> slice:
    """This process's part of a meta-batch: consecutive tasks, and as many as the others have, or one more.

    >>> task_share(20)
    slice(0, 20, None)
    """
    if tasks < world_size():
        raise FewsureError(
            f"expected `tasks` to be at least the number of processes, but got {tasks} and {world_size()}; "
            "start fewer processes, or train with more --tasks"
        )
    return slice(tasks * rank() // world_size(), tasks * (rank() + 1) // world_size())


def weighted_sum(tree: Any, weight: float) -> Any:
    """Σ over processes of weight · tree, whose leaves are tensors on this process's device; one message for all."""
    if world_size() == 1:
        return tree
    leaves, layout = pytree.tree_flatten(tree)
    flat = torch.cat([leaf.reshape(-1) for leaf in leaves]) * weight
    with _named_failure():
        dist.all_reduce(flat)
    pieces = torch.split(flat, [leaf.numel() for leaf in leaves])
    summed = [piece.view(leaf.shape).to(leaf.dtype) for piece, leaf in zip(pieces, leaves, strict=True)]
    return pytree.tree_unflatten(summed, layout)


def all_gather(value: Result) -> list[Result]:
    """The value of each process, in the order of ranks; tensors must be on the CPU."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * world_size()
    with _named_failure():
        dist.all_gather_object(values, value, _Gloo.group)
    return values


def any_process(flag: bool) -> bool:
    """Whether it is true in any process."""
    return any(all_gather(flag))


def rank_zero_first(first: Callable[[], Result], others: Callable[[], Result]) -> Result:
    """Let rank zero do something, and then the others; they end with it if it fails."""
    if not dist.is_initialized():
        return first()
    result: Any = None
    try:
        result = first() if is_rank_zero() else None
    except BaseException:
        any_process(True)
        raise
    if any_process(False):
        raise FewsureError("the first process has ended with an error; see its message")
    return result if is_rank_zero() else others()


def map_in_turn(
    parts: Iterable[Part],
    rows: Callable[[Part], int],
    work: Callable[[Part], Mapping[str, Tensor]],
    progress: Callable[[int], None],
) -> dict[str, Tensor]:
    """The results of `work` on each part, joined in order: by name, tensors with a leading dimension of `rows`.

    Processes take parts in turn, and each has the whole result, then on the CPU. `progress` hears how many rows are
    done.
    """
    own: list[tuple[int, Mapping[str, Tensor]]] = []
    done = 0
    for number, part in enumerate(parts):
        if number % world_size() == rank():
            found = work(part)
            own.append((number, {name: value.cpu() for name, value in found.items()} if world_size() > 1 else found))
        done += rows(part)
        progress(done)
    everything = sorted((pair for pairs in all_gather(own) for pair in pairs), key=lambda pair: pair[0])
    return {name: torch.cat([tensors[name] for _, tensors in everything]) for name in everything[0][1]}


def _own_device(name: str) -> torch.device:
    """Each process of a machine has a GPU of its own."""
    device = find_device(name)
    if device.type == "cpu":
        return device
    local = int(os.environ["LOCAL_RANK"])
    if local >= torch.cuda.device_count():
        raise FewsureError(
            f"expected a GPU for each process of a machine, but there are {torch.cuda.device_count()}; start as many "
            "processes, or train with --device cpu"
        )
    return torch.device("cuda", local)


@contextmanager
def _named_failure() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo and NCCL raise it, and kinds of it, for whatever goes wrong between processes
        reason = re.sub(r"^\[[^]]*\]\s*", "", str(error).strip()).partition("\n")[0].partition(". ")[0]
        raise FewsureError(
            f"process {os.environ.get('RANK', '?')} has lost the others, of which one has ended or cannot be reached "
            f"({reason}); the last checkpoint is whole: start the job again with --resume"
        ) from error
