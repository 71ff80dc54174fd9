"""The meta-parameters of short trainings, to compare before and after a change that should leave numbers alone.

    python tests/fingerprint.py record FOLDER         trains each case from one seed, a few updates long, into FOLDER
    python tests/fingerprint.py compare BEFORE AFTER  the largest difference of meta-parameters in each case

It speaks to the command line alone, so that it outlives any move of modules. Training needs Omniglot in $FEWSURE_DATA.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

METHODS = ("simpa", "maml", "abml", "vampire", "platipus", "bmaml")
SHORT = ["--updates", "6", "--tasks", "4", "--device", "cpu"]
SMALL_IMAGES = ["--data", "omniglot", "--updates", "2", "--tasks", "2", "--device", "cpu"]
CASES = {
    **{
        f"sine-line {preset} {name}": [name, "--preset", preset, *SHORT]
        for preset in ("paper", "recommended")
        for name in METHODS
    },
    **{f"omniglot {name}": [name, *SMALL_IMAGES] for name in (*METHODS[1:], "protonet")},
    "omniglot simpa": ["simpa", "--components", "2", "--inner-steps", "2", *SMALL_IMAGES],
    **{
        f"table {name}": [name, "--data", "table", "--task-column", "group", "--target", "y", *SHORT]
        for name in METHODS
    },
}
COMPONENTS = ["--components", "2", "--first-order", "--weight-noise", "0.1", "--warm-up-tasks", "0", *SHORT]
SECOND_ORDER = ["--weight-noise", "0", "--no-first-order", "--inner-steps", "2", "--warm-up-tasks", "0", *SHORT]
for kl in ("moment", "moment+critic", "critic", "semi-implicit", "none"):
    CASES[f"simpa {kl}, two components, first order"] = ["simpa", "--kl", kl, *COMPONENTS]
    if kl != "semi-implicit":
        CASES[f"simpa {kl}, no weight noise, second order"] = ["simpa", "--kl", kl, *SECOND_ORDER]


def _name(case: str) -> str:
    return case.replace(" ", "-").replace(",", "")


def record(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "table.csv"
    rows = [f"g{g},{x},{math.sin(0.7 * g + x) + 0.1 * math.cos(31 * g * x)}" for g in range(40) for x in range(20)]
    table.write_text("\n".join(["group,x,y", *rows]) + "\n", encoding="utf-8")
    for case, arguments in CASES.items():
        if (folder / _name(case) / "checkpoint.safetensors").exists():
            continue
        own = ["--file", str(table)] if case.startswith("table") else []
        out = folder / _name(case)
        command = [sys.executable, "-m", "fewsure", "train", *arguments, *own, "--out", str(out), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(f"{case}: {'trained' if done.returncode == 0 else done.stderr.strip()[-300:]}", flush=True)


def compare(before: Path, after: Path) -> None:
    found = {}
    for case in CASES:
        old, new = (load_file(folder / _name(case) / "checkpoint.safetensors") for folder in (before, after))
        meta = [key for key in old if key.startswith("meta/")]
        missing = sorted(set(meta) ^ {key for key in new if key.startswith("meta/")})
        differences = [float((old[key].double() - new[key].double()).abs().max()) for key in meta if key in new]
        same = all(torch.equal(old[key], new[key]) for key in meta if key in new)
        found[case] = {"identical": same and not missing, "largest difference": max(differences), "missing": missing}
    print(json.dumps(found, indent=1))
    print(f"{sum(case['identical'] for case in found.values())} of {len(found)} cases are identical bit for bit")


if __name__ == "__main__":
    command, *folders = sys.argv[1:]
    {"record": record, "compare": compare}[command](*map(Path, folders))
