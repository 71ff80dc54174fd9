"""Trainings that are killed, run out of disk or lose their power, and what they end in once they are resumed.

A trial trains in a process of its own, forked from this one, breaks it, looks at every file that it left behind,
resumes it, and compares the end with that of a training that nothing happened to.
"""

import errno
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fewsure.algorithms.maml import Maml
from fewsure.core import files
from fewsure.data.sets.sine_line import SineLine
from fewsure.evaluation.evaluate import evaluate
from fewsure.networks.mlp import MlpOptions
from fewsure.pipeline import start_run
from fewsure.training.experiment import Experiment, Training
from fewsure.training.loop import train
from fewsure.training.runs import BEST_FILE, CHECKPOINT, HISTORY, Run
from fewsure.types import Parts

CPU = torch.device("cpu")
UPDATES = 12
EXPERIMENT = Experiment(
    Maml(inner_steps=1), SineLine(query=6), MlpOptions((5,)), Training(updates=UPDATES, tasks=3, keep_best=4), "none"
)
TIMES = ("seconds", "tasks_per_second")
REFUSED = 77
"""Exit code of a training that ended in an OSError, as it should on a full disk."""
ROOT = Path(__file__).resolve().parents[2]


def kills(points: int = 30, every_write: int = 1, seed: int = 0) -> dict[str, Any]:
    """Kill −9 at so many random moments, and at one in so many system calls that write: before, and half way."""
    with tempfile.TemporaryDirectory() as place:
        trials = Trials(Path(place))
        chance = random.Random(seed)
        seconds = trials.seconds_of_a_training()
        random_kills: list[dict[str, Any]] = []
        while sum(result["broke"] for result in random_kills) < points:  # some come too late
            random_kills.append(trials.after(killed_after(chance.uniform(0, seconds))))
        calls = range(0, trials.calls, every_write)
        call_kills = [trials.after(broken_at(call, half_way, kill)) for call in calls for half_way in (False, True)]
        return {
            "random": summary(random_kills),
            "at_a_write": summary(call_kills),
            "system_calls": trials.calls,
        }


def full_disk(every_write: int = 1) -> dict[str, Any]:
    """No space left: at each write in turn, and under a limit on the size of files."""
    with tempfile.TemporaryDirectory() as place:
        trials = Trials(Path(place))
        return {
            "at_a_write": summary(
                [trials.after(broken_at(call, True, no_space)) for call in range(0, trials.calls, every_write)]
            ),
            "size_limit": summary([trials.after(limited(trials.largest * share // 8)) for share in range(1, 8)]),
        }


def terminated(updates: int = 200) -> dict[str, Any]:
    """SIGTERM to `fewsure train`: its exit code, where it stopped, and whether it ends as if nothing had happened."""
    from fewsure.cli.main import main

    with tempfile.TemporaryDirectory() as place:
        whole, folder = Path(place) / "whole", Path(place) / "stopped"
        assert in_a_process(lambda: exit_with(main(command_options(whole, updates)))) == 0

        def when_it_trains(process: int) -> None:
            wait_until_there(folder / CHECKPOINT)
            os.kill(process, signal.SIGTERM)

        code = in_a_process(lambda: exit_with(main(command_options(folder, updates))), meanwhile=when_it_trains)
        stopped, torn = Run.open(folder).load(CPU).update, torn_files(folder)
        assert in_a_process(lambda: exit_with(main(command_options(folder, updates)))) == 0
        equal = all((folder / name).read_bytes() == (whole / name).read_bytes() for name in (CHECKPOINT, BEST_FILE))
        kept = [path.name for path in sorted((folder / HISTORY).iterdir())]
        equal = equal and kept == [path.name for path in sorted((whole / HISTORY).iterdir())]
        return {"exit_code": code, "stopped_at": stopped, "updates": updates, "torn_files": len(torn), "equal": equal}


def wait_until_there(path: Path, seconds: float = 120) -> None:
    """Wait for a file that another process makes."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name} within {seconds} seconds"
        time.sleep(0.01)


def exit_with(code: int) -> None:
    """End a forked process as a command would."""
    os._exit(code)


def power_cuts(every_call: int = 1) -> dict[str, Any]:
    """A power cut after each system call, with the least that a disk may then hold.

    What was not flushed is lost: the content of files (all of it, or its second half), and new names in a folder,
    which may also be there before the content is.
    """
    with tempfile.TemporaryDirectory() as place:
        trials = Trials(Path(place))
        recorder = Recorder()
        recorded = trials.new_folder()
        with replaced_os(recorder):
            train_to_the_end(recorded)
        results = []
        for length in range(0, len(recorder.log) + 1, every_call):
            for names_first in (False, True):
                for torn in (False, True):
                    folder = trials.new_folder()
                    survivors = on_disk(recorder.log[:length], recorded, names_first=names_first, torn=torn)
                    for path, content in survivors.items():
                        (folder / path).parent.mkdir(parents=True, exist_ok=True)
                        (folder / path).write_bytes(content)
                    results.append(trials.outcome(folder, broke=True))
        return {"system_calls": len(recorder.log), **summary(results)}


class Trials:
    """Trainings in folders of their own, against one that nothing happened to."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._count = 0
        reference = self.new_folder()
        counter = Recorder()
        with replaced_os(counter):
            train_to_the_end(reference)
        self._expected = state(reference)
        self.calls = len(counter.log)
        self.largest = max(path.stat().st_size for path in reference.rglob("*") if path.is_file())

    def new_folder(self) -> Path:
        self._count += 1
        return self._place / f"run-{self._count}"

    def seconds_of_a_training(self) -> float:
        began = time.perf_counter()
        in_a_process(lambda: train_to_the_end(self.new_folder()))
        return time.perf_counter() - began

    def after(self, breaking: Callable[[Path], bool]) -> dict[str, Any]:
        """Break a training, and see what comes of it; `breaking` says whether it did."""
        folder = self.new_folder()
        return self.outcome(folder, broke=breaking(folder))

    def outcome(self, folder: Path, *, broke: bool) -> dict[str, Any]:
        """Look at a folder, resume its training, and compare."""
        torn, unfinished = torn_files(folder), has_unfinished_line(folder)
        began_at = Run.open(folder).load(CPU).update if (folder / "checkpoint.safetensors").exists() else 0
        train_to_the_end(folder)
        equal = state(folder) == self._expected and not torn_files(folder) and not has_unfinished_line(folder)
        shutil.rmtree(folder)
        names = [path.name for path in torn]
        return {"broke": broke, "torn": names, "unfinished": unfinished, "equal": equal, "from": began_at}


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """How many trials there were, and how they ended."""
    return {
        "trials": len(results),
        "interrupted": sum(result["broke"] for result in results),
        "torn_files": sum(len(result["torn"]) for result in results),
        "unfinished_last_lines": sum(result["unfinished"] for result in results),
        "ended_as_if_nothing_had_happened": sum(result["equal"] for result in results),
        "resumed_from_updates": sorted({result["from"] for result in results}),
    }


def train_to_the_end(folder: Path) -> None:
    """Start or resume the training of all trials."""
    run = start_run(folder, EXPERIMENT, resume=True)
    train(run, CPU, checkpoint_every=3, keep_last=2, log_every=2, score=score)


def score(meta: Parts) -> list[float]:
    """The NLL of a few validation tasks."""
    _, records = evaluate(EXPERIMENT, meta, tasks=2, seed=0, stream="validation")
    return records["nll"].tolist()


def state(folder: Path) -> dict[str, Any]:
    """All that a training ends in, without the times it took and what a kill has left of a file."""
    found: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != files.PARTIAL and path.name != "metrics.jsonl"
    }
    lines = Run.open(folder).metrics()
    found["metrics"] = [{name: value for name, value in line.items() if name not in TIMES} for line in lines]
    return found


def torn_files(folder: Path) -> list[Path]:
    """Files under their own names that cannot be read as a whole."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not is_whole(path)]


def has_unfinished_line(folder: Path) -> bool:
    """Whether the last line of the log has no end."""
    log = folder / "metrics.jsonl"
    return log.exists() and log.stat().st_size > 0 and not log.read_bytes().endswith(b"\n")


def is_whole(path: Path) -> bool:
    """Whether a file of a run folder can be read to its end."""
    try:
        if path.suffix == ".safetensors":
            load_file(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            *lines, _ = path.read_text().split("\n")  # behind the last end of a line is a line that never was finished
            return all(json.loads(line) for line in lines)
    except (SafetensorError, ValueError):
        return False
    return True


def in_a_process(work: Callable[[], None], *, meanwhile: Callable[[int], None] = lambda process: None) -> int:
    """Do something in a forked process; its exit code, or minus the signal that ended it.

    `meanwhile` is called here with its id.
    """
    process = os.fork()
    if process == 0:
        try:
            work()
        except OSError:
            os._exit(REFUSED)
        except BaseException:
            os._exit(1)
        os._exit(0)
    meanwhile(process)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def killed_after(seconds: float) -> Callable[[Path], bool]:
    """Kill −9 after a while."""

    def wait_and_kill(process: int) -> None:
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)

    return lambda folder: in_a_process(lambda: train_to_the_end(folder), meanwhile=wait_and_kill) == -signal.SIGKILL


def broken_at(call: int, half_way: bool, how: Callable[[], None]) -> Callable[[Path], bool]:
    """Break at system call number `call`; `half_way` through it, if it writes."""

    def breaking(folder: Path) -> bool:
        def work() -> None:
            with replaced_os(Breaker(call, half_way, how)):
                train_to_the_end(folder)

        code = in_a_process(work)
        assert code in (0, REFUSED, -signal.SIGKILL), f"the training ended with {code}"
        return code != 0

    return breaking


def limited(size: int) -> Callable[[Path], bool]:
    """No file may be larger than this."""

    def breaking(folder: Path) -> bool:
        def work() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            train_to_the_end(folder)

        return in_a_process(work) == REFUSED

    return breaking


def kill() -> None:
    """As a machine's out-of-memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


def no_space() -> None:
    """As a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def command_options(folder: Path, updates: int) -> list[str]:
    """What follows `fewsure`."""
    options = ["--updates", str(updates), "--tasks", "3", "--hidden", "5", "--inner-steps", "1", "--device", "cpu"]
    options += ["--checkpoint-every", str(updates // 4), "--keep-last", "2", "--keep-best", str(updates // 2)]
    return ["train", "maml", *options, "--json", "--resume", "--out", str(folder)]


@contextmanager
def replaced_os(stand_in: Any) -> Iterator[None]:
    """Let the module that writes files call this instead of the operating system."""
    before = files.os
    files.os = stand_in
    try:
        yield
    finally:
        files.os = before


class Recorder(SimpleNamespace):
    """Notes the system calls that change something on a disk, and makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, Any, Any]] = []
        self._names: dict[int, Path] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = os.open(path, flags, mode)
        self._names[descriptor] = Path(path)
        if flags & (os.O_TRUNC | os.O_CREAT):
            self.note("open", Path(path), bool(flags & os.O_TRUNC))
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        self.note("write", self._names[descriptor], bytes(data))
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self.note("fsync", self._names[descriptor], None)
        os.fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        self.note("replace", Path(source), Path(target))
        os.replace(source, target)

    def note(self, call: str, path: Path, argument: Any) -> None:
        self.log.append((call, path, argument))


class Breaker(Recorder):
    """Breaks at one of these calls."""

    def __init__(self, call: int, half_way: bool, how: Callable[[], None]) -> None:
        super().__init__()
        self._call, self._half_way, self._how = call, half_way, how

    def write(self, descriptor: int, data: memoryview) -> int:
        if len(self.log) == self._call and self._half_way:
            os.write(descriptor, data[: len(data) // 2])
        return super().write(descriptor, data)

    def note(self, call: str, path: Path, argument: Any) -> None:
        if len(self.log) == self._call:
            self._how()
        super().note(call, path, argument)


def on_disk(log: list[tuple[str, Any, Any]], folder: Path, *, names_first: bool, torn: bool) -> dict[str, bytes]:
    """What a disk may hold after these calls and a power cut: the content of each file, by its path in the folder.

    Content counts once its file is flushed; what came after that is lost, or with `torn`, its second half is. A name
    counts once its folder is flushed; with `names_first`, at once.
    """
    written: dict[int, bytes] = {}
    flushed: dict[int, bytes] = {}
    names: dict[Path, int] = {}
    lasting: dict[Path, int] = {}
    for call, path, argument in log:
        if call == "open":
            if path not in names:
                names[path] = len(written)
                written[names[path]] = flushed[names[path]] = b""
            elif argument:
                written[names[path]] = b""
        elif call == "write":
            written[names[path]] += argument
        elif call == "replace":
            names[argument] = names.pop(path)
        elif path in names:
            flushed[names[path]] = written[names[path]]
        else:
            lasting = {name: number for name, number in lasting.items() if name.parent != path}
            lasting |= {name: number for name, number in names.items() if name.parent == path}
        if names_first:
            lasting = dict(names)
    found = {}
    for name, number in lasting.items():
        content = flushed[number]
        if torn and written[number].startswith(content):
            content = written[number][: (len(content) + len(written[number])) // 2]
        if folder in name.parents:
            found[str(name.relative_to(folder))] = content
    return found


def one_thread() -> dict[str, str]:
    """The environment of a process that shares the machine."""
    return os.environ | {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
