"""The registry of task distributions and data sets."""

from typing import NamedTuple

from fewsure.data.sine_line import SineLine
from fewsure.networks import MlpOptions


class DataKind(NamedTuple):
    """A data set's options, and the options of the base network that solves its tasks."""

    data: type[SineLine]
    network: type[MlpOptions]


DATA: dict[str, DataKind] = {"sine-line": DataKind(SineLine, MlpOptions)}
"""Name on the command line → what it is."""
