"""Where data sets are looked for, and where their decoded copies are kept."""

import os
from pathlib import Path

import platformdirs

DATA_VARIABLE = "FEWSURE_DATA"
CACHE_VARIABLE = "FEWSURE_CACHE"


def data_root() -> Path:
    """$FEWSURE_DATA, else the platform's folder for a user's data. Only `fewsure data get` ever writes to it."""
    return Path(os.environ.get(DATA_VARIABLE) or platformdirs.user_data_dir("fewsure", appauthor=False)).expanduser()


def cache_root() -> Path:
    """$FEWSURE_CACHE, else the platform's folder for caches. Its files can be made again, and may be deleted."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("fewsure", appauthor=False)).expanduser()
