"""The commands of the command line: parse, call, print."""

from fewsure.commands.bench import BENCH
from fewsure.commands.certify import CERTIFY
from fewsure.commands.common import Command
from fewsure.commands.data import DATA, FEATURES
from fewsure.commands.evaluate import COMPARE, EVALUATE
from fewsure.commands.experiments import QUICKSTART, REPRODUCE
from fewsure.commands.export import EXPORT
from fewsure.commands.predict import PREDICT
from fewsure.commands.report import REPORT
from fewsure.commands.train import TRAIN

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
