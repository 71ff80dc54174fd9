"""Trials in a process of their own, for the tests: trials fork, which a process with threads must not."""

import json
import subprocess
import sys
from typing import Any

from .faults import ROOT, one_thread

SETUP = "import json, torch; torch.set_num_threads(1); from tests.reliability import faults, ranks"


def found(**calls: str) -> dict[str, Any]:
    """What each call finds, by name; `calls` are expressions such as `faults.kills(3)`."""
    shown = ", ".join(f"{name!r}: {call}" for name, call in calls.items())
    program = f"{SETUP}\nprint(json.dumps({{{shown}}}))"
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, cwd=ROOT, env=one_thread(), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    results: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return results
