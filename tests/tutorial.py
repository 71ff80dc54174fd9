"""Executes pages block by block: Python in one namespace, commands in a shell, all in one folder.

    python tests/tutorial.py PAGE …            every block as it stands, with the installed package
    python tests/tutorial.py PAGE … --write    … and put what was printed into the pages' output blocks

`console` blocks install the package, which `make tutorial-test` has done; `text` blocks are the output of the block
before. At the end it says how long that took, and which lines differ from the page's: seconds always may, and on
another processor the last digits.
"""

import argparse
import contextlib
import difflib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

QUIET_THREADS = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
"""The tutorial's tensors are small, and threads that wait by spinning are slow on a busy machine."""
FENCE = re.compile(r"^```(?P<kind>python|bash|text|console)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    kind: str
    code: str
    start: int
    """Where the code begins and ends on the page."""
    end: int


def blocks(page: str) -> list[Block]:
    return [Block(found["kind"], found["code"], *found.span("code")) for found in FENCE.finditer(page)]


def in_a_shell(code: str) -> str:
    """What commands print on standard output; `fewsure` is the one beside this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    printed = subprocess.run(
        ["bash", "-e", "-c", code], check=True, stdout=subprocess.PIPE, env=os.environ | {"PATH": path}
    )
    return printed.stdout.decode()


def in_this_process(code: str) -> str:
    """The same without starting a Python for each line."""
    from fewsure.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for line in code.replace("\\\n", " ").splitlines():
            command, *arguments = shlex.split(line)
            if command != "fewsure" or main(arguments) != 0:
                raise RuntimeError(f"{line} failed")
    return printed.getvalue()


def execute(page: str, folder: Path, shell: Callable[[str], str] = in_a_shell) -> list[str]:
    """Run the blocks in a folder; what each printed, with nothing for those that are not run."""
    namespace: dict[str, Any] = {"__name__": "__tutorial__"}
    printed = []
    with contextlib.chdir(folder):
        for block in blocks(page):
            output = ""
            if block.kind == "python":
                with contextlib.redirect_stdout(io.StringIO()) as captured:
                    exec(compile(block.code, "<tutorial>", "exec"), namespace)
                output = captured.getvalue()
            elif block.kind == "bash":
                output = shell(block.code)
            printed.append(output)
    return printed


def with_outputs(page: str, printed: list[str]) -> str:
    """The page with what was printed in each `text` block."""
    found = blocks(page)
    for index in reversed(range(1, len(found))):
        if found[index].kind == "text":
            output = "\n".join(line.rstrip() for line in printed[index - 1].strip().splitlines())
            page = f"{page[: found[index].start]}{output}\n{page[found[index].end :]}"
    return page


def differences(page: str, printed: list[str]) -> list[str]:
    """The lines of the page's outputs that are not what was printed, and those that were printed in their place."""
    now = with_outputs(page, printed)
    lines = difflib.unified_diff(page.splitlines(), now.splitlines(), n=0, lineterm="")
    return [line for line in lines if line[0] in "+-" and not line.startswith(("+++", "---"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for name, value in QUIET_THREADS.items():
        os.environ.setdefault(name, value)
    for file in options.pages:
        page = file.read_text(encoding="utf-8")
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            printed = execute(page, Path(folder))
        seconds = time.monotonic() - began
        for block, output in zip(blocks(page), printed, strict=True):
            if block.kind != "text":
                print(block.code + output)
        different = differences(page, printed)
        lines = sum(line.startswith("-") for line in different)
        print("\n".join([f"{file} took {seconds:.0f} s; lines that differ from it: {lines}", *different]))
        if options.write:
            file.write_text(with_outputs(page, printed), encoding="utf-8")


if __name__ == "__main__":
    main()
