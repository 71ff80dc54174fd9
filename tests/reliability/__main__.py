"""`python -m tests.reliability PART`: one part at full length."""

import argparse
import json
import sys

from .figures import PARTS, keep


def main() -> None:
    """Run a part, print what it found, and keep it where asked to."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability")
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument("--keep", action="store_true", help="put it into results/reliability.json and the page")
    parser.add_argument("--size", type=float, help="kill points, inputs or minutes, in place of the full length")
    given = parser.parse_args()
    for name in PARTS if given.part == "all" else [given.part]:
        found = PARTS[name](given.size)
        print(json.dumps({name: found}, indent=1), flush=True)
        if given.keep:
            keep(name, found)


if __name__ == "__main__":
    sys.exit(main())
