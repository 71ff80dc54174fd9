"""The command's entry: `fewsure …` or `python -m fewsure …`."""

import os
import sys


def main() -> int:
    """Run the command line; the exit code."""
    # Threads that wait must not spin: beside another such program, spinning ones make training on a CPU many times
    # slower (benchmarks/busy_machine.py). OpenMP reads this when torch is loaded, hence before the import.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    from fewsure.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
