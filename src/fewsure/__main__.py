"""The program: `fewsure …` or `python -m fewsure …`."""

import sys

from fewsure.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
