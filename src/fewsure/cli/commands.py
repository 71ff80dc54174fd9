"""The commands of the command line: parse, call, print."""

from fewsure.cli.bench import BENCH
from fewsure.cli.certify import CERTIFY
from fewsure.cli.common import Command
from fewsure.cli.data import DATA, FEATURES
from fewsure.cli.evaluate import COMPARE, EVALUATE
from fewsure.cli.experiments import QUICKSTART, REPRODUCE
from fewsure.cli.export import EXPORT
from fewsure.cli.predict import PREDICT
from fewsure.cli.report import REPORT
from fewsure.cli.train import TRAIN

COMMANDS: dict[str, Command] = {
    "quickstart": QUICKSTART,
    "train": TRAIN,
    "evaluate": EVALUATE,
    "compare": COMPARE,
    "certify": CERTIFY,
    "predict": PREDICT,
    "export": EXPORT,
    "report": REPORT,
    "data": DATA,
    "features": FEATURES,
    "reproduce": REPRODUCE,
    "bench": BENCH,
}
"""Name → command, in the order in which `fewsure --help` shows them."""
