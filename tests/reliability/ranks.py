"""Several processes: are their numbers those of one, and what if one of them is killed?"""

import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fewsure.algorithms.maml import Maml
from fewsure.certification.certify import Request, certify_run
from fewsure.core.distributed import process_group
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.networks.mlp import MlpOptions
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.training.experiment import Experiment, Training
from fewsure.training.runs import CHECKPOINT, Run
from fewsure.types import Algorithm
from tests.helpers import small_simpa

from .faults import Breaker, replaced_os, wait_until_there

METHODS: dict[str, Algorithm] = {"simpa": small_simpa(kl="moment+critic"), "maml": Maml(inner_steps=2)}
TASKS = 7
"""In a meta-batch: no number of processes divides it."""
OFFSET = "critic/1.bias"
"""A constant added to SImPa's critic changes nothing: this gradient is rounding, of which Adam makes full steps."""
EVALUATED = 90
TIMES = ("seconds", "tasks_per_second")


def equality(processes: Sequence[int] = (2, 4), *, updates: int = 20, double: bool = True) -> dict[str, Any]:
    """The largest differences between one process and several: of weights, of logged numbers, and of evaluations.

    The others are forked from this process and joined by gloo; all but the first may not write any file.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    found: dict[str, Any] = {"updates": updates, "tasks": TASKS}
    try:
        with tempfile.TemporaryDirectory() as place:
            for name, algorithm in METHODS.items():
                one = Path(place) / f"{name}-1"
                work(one, algorithm, updates)
                for count in processes:
                    several = Path(place) / f"{name}-{count}"
                    start_ranks(several, algorithm, updates, count)
                    found[f"{name}, {count} processes"] = differences(one, several)
    finally:
        torch.set_default_dtype(before)
    return found


def work(folder: Path, algorithm: Algorithm, updates: int) -> None:
    """Train, evaluate and certify; each process by itself, or with others that are there."""
    training = Training(updates=updates, tasks=TASKS, keep_best=10)
    experiment = Experiment(algorithm, SineLine(query=6), MlpOptions((5,)), training, "none")
    with process_group("cpu") as device:
        run = start_run(folder, experiment, resume=False)
        train_run(run, device, checkpoint_every=5, keep_last=2)
        evaluate_run(run, device, tasks=EVALUATED, seed=0)
        certify_run(run, device, Request(tasks=50, bound_samples=5))


def start_ranks(folder: Path, algorithm: Algorithm, updates: int, count: int) -> None:
    """Fork so many processes, as `torchrun` would start them, and wait for them."""
    codes = wait_for(fork_ranks(count, lambda: rank_work(folder, algorithm, updates)))
    assert codes == [0] * count, f"the processes ended with {codes}"


def fork_ranks(count: int, work: Callable[[], None]) -> list[int]:
    """The ids of so many processes that do it."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common["TORCHELASTIC_RUN_ID"] = "tests"
    started = []
    for number in range(count):
        process = os.fork()
        if process == 0:
            os.environ.update(common, RANK=str(number), LOCAL_RANK=str(number))
            try:
                work()
            except FewsureError as error:
                print(f"fewsure: {error}", file=sys.stderr, flush=True)
                os._exit(2)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        started.append(process)
    return started


def wait_for(started: Sequence[int]) -> list[int]:
    """The exit codes of processes."""
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]


def killed_fork(updates: int = 200) -> dict[str, Any]:
    """Kill −9 one of two forked processes; how the other ends, how soon, and whether they can be resumed."""

    def training(folder: Path) -> Callable[[], None]:
        options = Training(updates=updates, tasks=4)
        experiment = Experiment(METHODS["maml"], SineLine(query=6), MlpOptions((5,)), options, "none")

        def work() -> None:
            with process_group("cpu") as device:
                train_run(start_run(folder, experiment, resume=True), device, checkpoint_every=20)

        return work

    with tempfile.TemporaryDirectory() as place:
        whole, folder = Path(place) / "whole", Path(place) / "killed"
        wait_for(fork_ranks(2, training(whole)))
        first, second = fork_ranks(2, training(folder))
        wait_until_there(folder / CHECKPOINT)
        os.kill(second, signal.SIGKILL)
        began = time.monotonic()
        codes = wait_for([first, second])
        seconds = time.monotonic() - began
        stopped_at = Run.open(folder).load(torch.device("cpu")).update
        again = wait_for(fork_ranks(2, training(folder)))
        equal = (folder / CHECKPOINT).read_bytes() == (whole / CHECKPOINT).read_bytes()
    return {"codes": codes, "seconds": seconds, "stopped_at": stopped_at, "resumed": again, "equal": equal}


def diverging() -> list[int]:
    """The exit codes of two processes whose numbers are not finite."""
    training = Training(updates=200, tasks=4)
    experiment = Experiment(Maml(inner_steps=2, inner_lr=1e30), SineLine(query=6), MlpOptions((5,)), training, "none")

    def work(folder: Path) -> None:
        with process_group("cpu") as device:
            train_run(start_run(folder, experiment, resume=False), device, max_skipped=5)

    with tempfile.TemporaryDirectory() as place:
        return wait_for(fork_ranks(2, lambda: work(Path(place) / "run")))


def rank_work(folder: Path, algorithm: Algorithm, updates: int) -> None:
    """`work`, where a process that must not write ends at once if it does."""
    if os.environ["RANK"] == "0":
        work(folder, algorithm, updates)
    else:
        with replaced_os(Breaker(0, False, lambda: os._exit(5))):
            work(folder, algorithm, updates)


def differences(one: Path, several: Path) -> dict[str, Any]:
    """The largest difference between two runs in each kind of result; the same files must be there."""
    names = [
        sorted(
            re.sub("evaluation/[0-9a-f]+", "evaluation/RECORDS", str(path.relative_to(run))) for path in run.rglob("*")
        )
        for run in (one, several)
    ]
    assert names[0] == names[1], f"{names[0]} and {names[1]}"
    tensors = [load_file(run / "checkpoint.safetensors") for run in (one, several)]
    records = [Run.open(run).evaluation_records() for run in (one, several)]
    lines = [Run.open(run).metrics() for run in (one, several)]
    certificates = [json.loads((run / "certificate.json").read_text()) for run in (one, several)]
    offsets = [{name: found.pop(name) for name in list(found) if f"/{OFFSET}" in name} for found in tensors]
    return {
        "weights": largest_difference(*tensors),
        "critic_offset": largest_difference(*offsets),
        "logged": max(relative_difference(a, b) for a, b in zip(*lines, strict=True)),
        "evaluated_tasks": largest_difference(*records),
        "certificate": relative_difference(*certificates),
    }


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max((float((a[name].double() - b[name].double()).abs().max()) for name in a), default=0.0)


def relative_difference(a: Any, b: Any) -> float:
    """Of all numbers in two JSON values, less those that tell times and the name of a checkpoint."""
    if isinstance(a, dict):
        names = [name for name in a if name not in (*TIMES, "checkpoint")]
        assert a.keys() == b.keys()
        return max([0.0, *(relative_difference(a[name], b[name]) for name in names)])
    if isinstance(a, list):
        return max([0.0, *(relative_difference(x, y) for x, y in zip(a, b, strict=True))])
    if isinstance(a, float):
        return abs(a - b) / max(1.0, abs(a))
    assert a == b, f"{a!r} and {b!r}"
    return 0.0
