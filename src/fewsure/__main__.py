"""`python -m fewsure`."""

import sys

from fewsure.cli import main

sys.exit(main())
