"""Find the command, import it, and turn errors into one line and an exit code.

Results go to standard output, progress and errors to standard error.
"""

import ast
import os
import signal
import sys
import warnings
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from fewsure.core.signals import Stopped
from fewsure.errors import FewsureError, require_known
from fewsure.version import __version__

COMMANDS = (
    "quickstart",
    "train",
    "evaluate",
    "crossval",
    "compare",
    "certify",
    "predict",
    "export",
    "report",
    "data",
    "features",
    "reproduce",
    "bench",
)
"""Modules of this package, in the order in which `fewsure --help` shows them."""
BAD_INPUT = 2
HELP = """usage: fewsure COMMAND …

Few-shot learning that knows how sure it is.

{commands}

`fewsure COMMAND --help` explains each. A good first one is `fewsure quickstart`.

exit codes: 0 done; 1 whoever read the output has gone; 2 something is wrong, and one line on standard
error says what; 128 + N stopped by signal N (130 by Ctrl-C), and `--resume` goes on"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code."""
    # Threads that wait must not spin: beside another such program, spinning ones make training on a CPU many times
    # slower (benchmarks/busy_machine.py). OpenMP reads this when torch is loaded, which a command does.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _dispatch(arguments)
    except FewsureError as error:
        if "--debug" in arguments:
            raise
        print(f"fewsure: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, RuntimeError) as error:
        # torch says that memory ran out with a RuntimeError; any other is a fault of ours, and shows where.
        if "--debug" in arguments or not (isinstance(error, OSError) or "memory" in str(error)):
            raise
        print(f"fewsure: {' '.join(str(error).split())}; check the paths and sizes that were given", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("fewsure: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Stopped as stopped:
        print(f"fewsure: {stopped}", file=sys.stderr)
        return stopped.exit_code


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP.format(commands="\n".join(f"  {name:<12}{_summary(name)}" for name in COMMANDS)))
        return 0 if arguments else BAD_INPUT
    if arguments[0] == "--version":
        print(f"fewsure {__version__}")
        return 0
    name, *rest = arguments
    require_known("command", name, COMMANDS)
    _trust_backbones(rest)
    from fewsure.core.progress import silenced

    with silenced("--json" in rest), warnings.catch_warnings():
        warnings.showwarning = _show_warning
        import_module(f"fewsure.cli.{name}").main(rest)
    return 0


def _trust_backbones(arguments: list[str]) -> None:
    """A `python:` backbone may be imported that stands in the command itself, not one that a run folder names."""
    words = [part for word in arguments for part in word.split("=", 1)]
    for flag, name in pairwise(words):
        if flag == "--backbone":
            from fewsure.networks.pretrained import trust

            trust(name)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning is one line, as an error is."""
    print(f"fewsure: {' '.join(str(message).split())}", file=sys.stderr)


def _summary(name: str) -> str:
    """The first line of a command's docstring, which is read without importing the command."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
