"""The command line: find the command, and turn errors into one line and an exit code.

Results go to standard output, progress and errors to standard error.
"""

import os
import signal
import sys

from fewsure.cli.commands import COMMANDS
from fewsure.cli.options import first_line
from fewsure.core.progress import silenced
from fewsure.core.signals import Stopped
from fewsure.errors import FewsureError, require_known
from fewsure.version import __version__

BAD_INPUT = 2


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code."""
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
        lines = [f"  {name:<12}{first_line(command.options)}" for name, command in COMMANDS.items()]
        print("usage: fewsure COMMAND …\n\nFew-shot learning that knows how sure it is.\n")
        print("\n".join(lines))
        print("\n`fewsure COMMAND --help` explains each. A good first one is `fewsure quickstart`.")
        print(
            "\nexit codes: 0 done; 1 whoever read the output has gone; 2 something is wrong, and one line on standard"
        )
        print("error says what; 128 + N stopped by signal N (130 by Ctrl-C), and `--resume` goes on")
        return 0 if arguments else BAD_INPUT
    if arguments[0] == "--version":
        print(f"fewsure {__version__}")
        return 0
    name, *rest = arguments
    require_known("command", name, list(COMMANDS))
    with silenced("--json" in rest):  # also what decodes the data
        COMMANDS[name].call(rest)
    return 0
