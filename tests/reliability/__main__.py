"""`python -m tests.reliability PART`: one part at full length, as JSON."""

import argparse
import json
import time
from subprocess import Popen

from . import faults, ranks
from .soak import fuzz, soak

PARTS = {
    "kills": faults.kills,
    "terminated": faults.terminated,
    "full_disk": faults.full_disk,
    "power_cuts": faults.power_cuts,
    "float64": ranks.equality,
    "float32": lambda: ranks.equality(double=False),
    "killed": lambda: ranks.broken_job(ranks.kill_second),
    "restarted": lambda: ranks.broken_job(ranks.kill_second, 300, "--max-restarts=1"),
    "terminated_job": lambda: ranks.broken_job(Popen.terminate),
    "fuzz": fuzz,
    "soak": soak,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.reliability")
    parser.add_argument("part", choices=[*PARTS, "all"])
    given = parser.parse_args()
    for name in PARTS if given.part == "all" else [given.part]:
        began = time.perf_counter()
        found = PARTS[name]()
        print(json.dumps({name: found, "seconds": round(time.perf_counter() - began, 1)}, indent=1), flush=True)
