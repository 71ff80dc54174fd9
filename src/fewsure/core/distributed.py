"""One run by several processes, as `torchrun` starts them: on one machine or on many, with gloo or NCCL.

    torchrun --nproc-per-node=4 -m fewsure train simpa --out runs/simpa --resume

Every process draws the random numbers of the whole meta-batch and takes the tasks of its share. The sum of their
gradients, each weighted by its share of the tasks, is the gradient of one process, up to rounding. All then take the
same step. The first process alone writes files and prints. Without `torchrun` there is one process, and nothing here
does anything.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

PATIENCE = timedelta(minutes=30)
"""How long a process waits for one that lives but does not answer, which may be decoding its data. One that has ended
is noticed at once."""
FIRST = 0
Result = TypeVar("Result")
Part = TypeVar("Part")


class _Hosts:
    """The group in which hosts talk about numbers that are on no device."""

    group: Any = None


def rank() -> int:
    """The number of this process."""
    return dist.get_rank() if dist.is_initialized() else FIRST


def processes() -> int:
    """How many there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return rank() == FIRST


@contextmanager
def process_group(device_name: str) -> Iterator[torch.device]:
    """Join the other processes, if `torchrun` has started this one; the device of this process."""
    if not dist.is_torchelastic_launched():
        yield find_device(device_name)
        return
    device = _own_device(device_name)
    with _reachable():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backend = "nccl" if device.type == "cuda" else "gloo"
        store, number, count = next(rendezvous("env://", timeout=PATIENCE))
        # torchrun keeps its store when it restarts processes, with the addresses of those that have ended.
        own = PrefixStore(f"fewsure-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=own, rank=number, world_size=count, timeout=PATIENCE)
        _Hosts.group = dist.new_group(backend="gloo", timeout=PATIENCE)
    with silenced(not is_first()):
        yield device
    with _reachable():  # after an error the others may be gone, and there is nobody to take leave of
        dist.barrier(_Hosts.group)
        dist.destroy_process_group()
    _Hosts.group = None


def share(tasks: int) -> slice:
    """The tasks of this process: consecutive ones, and as many as the others have, or one more.

    >>> share(20)
    slice(0, 20, None)
    """
    return slice(tasks * rank() // processes(), tasks * (rank() + 1) // processes())


def require_enough(tasks: int) -> None:
    """Refuse more processes than there are tasks in a meta-batch."""
    if tasks < processes():
        raise FewsureError(
            f"expected `tasks` to be at least the number of processes, but got {tasks} and {processes()}; "
            "start fewer processes, or train with more --tasks"
        )


def weighted_sum(tree: Any, weight: float) -> Any:
    """Σ over processes of weight · tree, whose leaves are tensors on this process's device; one message for all."""
    if processes() == 1:
        return tree
    leaves, layout = pytree.tree_flatten(tree)
    flat = torch.cat([leaf.reshape(-1) for leaf in leaves]) * weight
    with _reachable():
        dist.all_reduce(flat)
    pieces = torch.split(flat, [leaf.numel() for leaf in leaves])
    summed = [piece.view(leaf.shape).to(leaf.dtype) for piece, leaf in zip(pieces, leaves, strict=True)]
    return pytree.tree_unflatten(summed, layout)


def any_of(flag: bool) -> bool:
    """Whether it is true in any process."""
    return flag if not dist.is_initialized() else bool(_reduced(torch.tensor(float(flag)), dist.ReduceOp.MAX))


def broadcast(value: float) -> float:
    """What the first process has."""
    return value if not dist.is_initialized() else float(_reduced(torch.tensor(value if is_first() else 0.0).double()))


def rank_zero_first(first: Callable[[], Result], others: Callable[[], Result]) -> Result:
    """Let the first process do something, and then the others; they end with it if it fails."""
    if not dist.is_initialized():
        return first()
    result: Any = None
    try:
        result = first() if is_first() else None
    except BaseException:
        any_of(True)
        raise
    if any_of(False):
        raise FewsureError("the first process has ended with an error; see its message")
    return result if is_first() else others()


def share_out(
    parts: Iterable[Part],
    rows: Callable[[Part], int],
    work: Callable[[Part], Mapping[str, Tensor]],
    progress: Callable[[int], None],
) -> dict[str, Tensor]:
    """What `work` finds of each part, joined in order: by name, tensors with a leading dimension of `rows`.

    Processes take parts in turn, and each has the whole result, then on the CPU. `progress` hears how many rows are
    done.
    """
    found: list[tuple[slice, Mapping[str, Tensor]]] = []
    done, spare = 0, None
    for number, part in enumerate(parts):
        place = slice(done, done + rows(part))
        if number % processes() == rank():
            found.append((place, work(part)))
        elif not found:
            spare = part
        done = place.stop
        progress(done)
    if not found and spare is not None:  # more processes than parts: this one must know what is found, all the same
        found.append((slice(0, 0), {name: value[:0] for name, value in work(spare).items()}))
    return _joined(found, done)


def _joined(found: Sequence[tuple[slice, Mapping[str, Tensor]]], rows: int) -> dict[str, Tensor]:
    if not dist.is_initialized():
        return {name: torch.cat([tensors[name] for _, tensors in found]) for name in found[0][1]}
    joined = {}
    for name, like in found[0][1].items():
        kind = torch.uint8 if like.dtype == torch.bool else like.dtype
        whole = torch.zeros((rows, *like.shape[1:]), dtype=kind)
        for place, tensors in found:
            whole[place] = tensors[name].to(kind)
        joined[name] = _reduced(whole).to(like.dtype)
    return joined


def _reduced(tensor: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
    with _reachable():
        dist.all_reduce(tensor, operation, group=_Hosts.group)
    return tensor


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
def _reachable() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo and NCCL raise it, and kinds of it, for whatever goes wrong between processes
        reason = re.sub(r"^\[[^]]*\]\s*", "", str(error).strip()).partition("\n")[0].partition(". ")[0]
        raise FewsureError(
            f"process {os.environ.get('RANK', '?')} has lost the others, of which one has ended or cannot be reached "
            f"({reason}); the last checkpoint is whole: start the job again with --resume"
        ) from error
