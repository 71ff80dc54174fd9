"""A long training: does its memory grow, and the number of its open files? Many changed files: are they refused?"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from scipy.stats import linregress

from fewsure.training.runs import Run

from .faults import ROOT

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


def one_thread() -> dict[str, str]:
    """The environment of a process that shares the machine."""
    return os.environ | {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
