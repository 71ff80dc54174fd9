"""`python -m tests.reliability PART`: one part at full length."""

import argparse
import json
import sys
import time

from .figures import PARTS, keep


def main() -> int:
    """Run a part, print what it found, and keep it where asked to; 1 if something does not hold that should."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability")
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument("--keep", action="store_true", help="put it into results/reliability.json and the page")
    parser.add_argument("--size", type=float, help="kill points, inputs or minutes, in place of the full length")
    given = parser.parse_args()
    broken = []
    for name in PARTS if given.part == "all" else [given.part]:
        began = time.perf_counter()
        found = PARTS[name].measure(given.size)
        seconds = round(time.perf_counter() - began, 1)
        print(json.dumps({name: found, "seconds": seconds}, indent=1), flush=True)
        if given.keep:
            keep(name, found, seconds)
        if not PARTS[name].holds(found):
            broken.append(name)
    if broken:
        print(f"something does not hold that should: see {', '.join(broken)} above", file=sys.stderr)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
