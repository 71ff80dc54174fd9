"""The trials of `reliability.md` at full length, as JSON: `PYTHONPATH=. .venv/bin/python notebook/reliability.py PART`.

The trials are those of `tests/reliability`. Jobs of torchrun and a long training are here alone.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scipy.stats import linregress

from fewsure.training.runs import CHECKPOINT, Run
from tests.reliability import faults, ranks
from tests.reliability.faults import ROOT, one_thread, wait_until_there

SAMPLE_EVERY = 5.0
TERMINATED = 128 + signal.SIGTERM
OPTIONS = (
    *("--preset", "quickstart", "--device", "cpu", "--json", "--updates", "1000000000", "--tasks", "10"),
    *("--latent", "8", "--generator-hidden", "16", "32", "--kl-samples", "8", "--first-order"),  # many updates
    *("--checkpoint-every", "200", "--keep-last", "3", "--keep-best", "1000"),
)


def soak(minutes: float = 30.0, warm_up: float = 5.0, sample_every: float = SAMPLE_EVERY) -> dict[str, Any]:
    """Train SImPa for so many minutes on one thread, with checkpoints and validations, and look at it from outside.

    The slope of the memory is fitted by least squares, once the first `warm_up` minutes are over.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        command = [sys.executable, "-m", "fewsure", "train", "simpa", *OPTIONS, "--out", str(folder)]
        with subprocess.Popen(command, env=one_thread(), stdout=subprocess.DEVNULL) as process:
            began, samples = time.monotonic(), [(0.0, *look(process.pid))]
            while samples[-1][0] < minutes:
                time.sleep(sample_every)
                samples.append(((time.monotonic() - began) / 60, *look(process.pid)))
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
        run = Run.open(folder)
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        settled = [sample for sample in samples if sample[0] >= warm_up]
        fit = linregress([minute for minute, _, _ in settled], [memory for _, memory, _ in settled])
        return {
            "minutes": round(samples[-1][0], 2),
            "updates": run.load(torch.device("cpu")).update,
            "tasks_per_second": round(sum(json.loads(line)["tasks_per_second"] for line in lines) / len(lines), 1),
            "logged_lines": len(lines),
            "kept_checkpoints": run.kept(),
            "samples": len(settled),
            "memory_mib": {"first": settled[0][1], "last": settled[-1][1], "most": max(row[1] for row in settled)},
            "slope_mib_per_hour": 60 * fit.slope,
            "slope_standard_error": 60 * fit.stderr,
            "descriptors": {"first": settled[0][2], "last": settled[-1][2], "most": max(row[2] for row in settled)},
            "exit_code": code,
            "expected_exit_code": TERMINATED,
        }


def fuzz(examples: int = 2500) -> dict[str, int]:
    """`tests/test_fuzz.py` with so many files for each reader and kind of change, and how it ends."""
    command = [sys.executable, "-m", "pytest", "--quiet", "tests/test_fuzz.py"]
    environment = one_thread() | {"FUZZ_EXAMPLES": str(examples)}
    ended = subprocess.run(command, check=False, cwd=ROOT, env=environment, stdout=sys.stderr)
    return {"examples": examples, "exit_code": ended.returncode}


def look(process: int) -> tuple[float, int]:
    """(resident memory in MiB, open files) of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return memory / 1024, len(list(Path(f"/proc/{process}/fd").iterdir()))


def broken_job(breaking: Callable[["subprocess.Popen[str]"], None], updates: int = 300, *more: str) -> dict[str, Any]:
    """Break a `torchrun` job once it has a checkpoint: how and how soon it ends, what it says, and whether it resumes.

    `more` are options of torchrun.
    """
    with tempfile.TemporaryDirectory() as place:
        whole, folder = Path(place) / "whole", Path(place) / "broken"
        assert ended(torchrun(whole, updates))[0] == 0
        job = torchrun(folder, updates, *more)
        wait_until_there(folder / CHECKPOINT)
        breaking(job)
        began = time.monotonic()
        code, said = ended(job)
        seconds, stopped_at = time.monotonic() - began, Run.open(folder).load(torch.device("cpu")).update
        assert ended(torchrun(folder, updates))[0] == 0
        return {
            "seconds_until_it_ended": round(seconds, 1),
            "exit_code": code,
            "message": next(iter(re.findall(r"fewsure: (.*)", said)), ""),
            "stopped_at": stopped_at,
            "updates": updates,
            "equal": (folder / CHECKPOINT).read_bytes() == (whole / CHECKPOINT).read_bytes(),
        }


def torchrun(folder: Path, updates: int, *more: str) -> "subprocess.Popen[str]":
    """Two processes that train MAML."""
    options = f"--updates {updates} --tasks 4 --hidden 8 --checkpoint-every 20 --device cpu --json --resume".split()
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *more]
    command = [*start, "-m", "fewsure", "train", "maml", *options, "--out", str(folder)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=one_thread(), text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def ended(job: "subprocess.Popen[str]") -> tuple[int, str]:
    """The exit code of a job, and what it said."""
    with job:
        _, said = job.communicate(timeout=600)
    return job.returncode, said


def kill_second(job: "subprocess.Popen[str]") -> None:
    """Kill −9 the second process of a job."""
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    (second,) = (int(child) for child in children if b"\0RANK=1\0" in Path(f"/proc/{child}/environ").read_bytes())
    os.kill(second, signal.SIGKILL)


PARTS = {
    "kills": faults.kills,
    "terminated": faults.terminated,
    "full_disk": faults.full_disk,
    "power_cuts": faults.power_cuts,
    "float64": ranks.equality,
    "float32": lambda: ranks.equality(double=False),
    "killed": lambda: broken_job(kill_second),
    "restarted": lambda: broken_job(kill_second, 300, "--max-restarts=1"),
    "terminated_job": lambda: broken_job(subprocess.Popen.terminate),
    "fuzz": fuzz,
    "soak": soak,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="reliability.py")
    parser.add_argument("part", choices=[*PARTS, "all"])
    given = parser.parse_args()
    for name in PARTS if given.part == "all" else [given.part]:
        began = time.perf_counter()
        found = PARTS[name]()
        print(json.dumps({name: found, "seconds": round(time.perf_counter() - began, 1)}, indent=1), flush=True)
