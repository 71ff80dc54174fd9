"""Every `fewsure` command on a page: its options exist, and it runs with tiny settings where it needs no download.

A command that `small` does not know is only parsed. So are those of the tutorial, which `test_tutorial.py` runs, and
the examples in the help of commands.
"""

import argparse
import ast
import csv
import re
import shlex
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fewsure.algorithms import ALGORITHMS
from fewsure.cli.main import COMMANDS, main
from fewsure.cli.options import Parser, flag_of
from fewsure.cli.train import read_arguments
from fewsure.data import DATA
from fewsure.errors import FewsureError
from fewsure.reproduce.targets import SEVERAL, TARGETS
from fewsure.selection.auto import NAME as AUTO

from .data_files import image_bytes, random_image, write_tree

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HELPS = [path for path in sorted((ROOT / "src/fewsure/cli").glob("*.py")) if path.stem in COMMANDS]
TUTORIAL = ROOT / "docs/tutorial.md"
FOREIGN = {"--nproc-per-node", "--max-restarts", "--version"}
"""Options of other programs that pages name."""
START = re.compile(r"(?:\$ )?(?:\S+=\S+ )*(?:torchrun .*-m |python -m |\S*/bin/)?fewsure (.*)")
OWN = {"sine-line", "table", "table-classes", "images"}
"""Data that a training needs no download for."""
SMALL = dict(
    re.findall(
        r"(\w+)=(\S+)",
        """
        updates=2 tasks=4 device=cpu seed=0 checkpoint=last keep_best=0 bound_samples=4 verify=0
        latent=4 generator_hidden=8 critic_hidden=8 kl_samples=6 hidden=8 filters=2
        way=2 shot=2 query=2 train_way=none train_shot=none train_query=none image_size=16
        noise_std=0.3 softmax_temperature=1 temperature_exponent=0 results=none page=none data_root=none
        """,
    )
)
"""Option → its value in a test, of each command that has it."""


class Command(NamedTuple):
    page: Path
    line: int
    words: tuple[str, ...]
    """After `fewsure`."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: fewsure {shlex.join(self.words)}"


def commands(page: Path) -> list[Command]:
    """The commands in a page's code blocks, or in the help of a module."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".py":
        text = re.sub(r"^ +", " " * 4, ast.get_docstring(ast.parse(text)) or "", flags=re.MULTILINE)
    return [Command(page, line, words) for line, words in in_blocks(text)]


def in_blocks(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line number, words) of each command in fenced or indented code, but for printed output."""
    fence, begun, first = "", "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            fence = "" if fence else line
        elif (fence and fence != "```text") or line.startswith(" " * 4):
            begun, first = (begun + line.strip(), first) if begun else (line.strip(), number)
            if begun.endswith("\\"):
                begun = begun[:-1]
                continue
            for part in re.split(r"&&|[;|&>]", re.sub(r"\s{3,}.*|\s+#.*", "", begun)):
                if found := START.match(part.strip()):
                    yield first, tuple(word for word in shlex.split(found[1]) if word not in ("…", "..."))
            begun = ""


class Parsed(Exception):
    """What a command's parser has read, in place of running the command."""

    def __init__(self, options: Namespace, flags: set[str]) -> None:
        self.options, self.flags = options, flags


@cache
def parsed(words: tuple[str, ...]) -> Parsed:
    """The options of a command, which is not run."""

    def stop(parser: Parser, arguments: list[str]) -> Namespace:
        raise Parsed(parse(parser, arguments), {flag for one in parser._actions for flag in one.option_strings})

    parse = Parser.parse_all
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "parse_all", stop)
        patch.setattr(argparse.ArgumentParser, "print_help", lambda *_: None)
        try:
            main([*words, "--debug"])
        except Parsed as found:
            return found
        except SystemExit:
            assert "--help" in words
    return Parsed(Namespace(), set())


@cache
def every_flag() -> set[str]:
    """The options of all commands, methods and data."""
    starts: list[tuple[str, ...]] = [(name,) for name in COMMANDS]
    starts += [("crossval", "gp"), ("crossval", AUTO)]
    starts += [("data", "list"), ("data", "get"), ("data", "check")]
    flags, seen = set(FOREIGN), set[str]()
    for words in starts:
        for positional in ((), ("any",)):
            with suppress(FewsureError):  # it takes a positional argument or none
                flags |= parsed((*words, *positional)).flags
    for method, data in product(ALGORITHMS, DATA):
        if not {method, data} <= seen:  # each with one of the others tells all options
            with suppress(FewsureError):  # not every method has all data
                flags |= parsed(("train", method, "--data", data)).flags
                seen |= {method, data}
    assert seen == {*ALGORITHMS, *DATA}
    return flags


@pytest.mark.parametrize("page", [*PAGES, *HELPS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_parses(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands(page):
        try:
            options = parsed(command.words).options
            if command.words[0] == "train" and command.words[1] != AUTO and options != Namespace():
                read_arguments([*command.words[1:]])
            if command.words[0] == "reproduce" and options != Namespace():
                assert options.target in {*TARGETS, *SEVERAL}, command
        except FewsureError as error:
            pytest.fail(f"{command}\n{error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_in_the_text_of_a_page_exists(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text):
        words = code.split()
        if words[0] == "fewsure" and len(words) > 1 and re.fullmatch("[a-z]+", words[1]):
            assert words[1] in COMMANDS, code
        if words[0] == "fewsure" or words[0].startswith("--"):
            flags = {found[0] for word in words if (found := re.match("--[a-z](?:[a-z0-9-]*[a-z0-9])?", word))}
            assert flags <= every_flag(), f"{code} on {page.name}; FOREIGN is for other programs"


class Workshop(NamedTuple):
    """Small data and runs that the commands are given in place of theirs."""

    places: dict[str, str]
    """Option → the file or column that stands in, where the command names one."""
    images: Path
    runs: list[str]

    def small(self, words: tuple[str, ...]) -> tuple[str, ...] | None:
        """The command with small settings and data; None for one that is only parsed."""
        options = parsed(words).options
        positional = None if options == Namespace() else self.positional(words, options)
        if positional is None:
            return None
        named = [getattr(options, name) for name in ("run", "name") if hasattr(options, name)]
        given = {str(value) for value in [*named, *getattr(options, "runs", ())]}
        given |= {words[1]} if words[0] in ("train", "data") else set()
        changed = {dest: value for dest, value in SMALL.items() if hasattr(options, dest)}
        named_there = {dest for dest, value in vars(options).items() if value and not isinstance(value, int)}
        changed |= {dest: value for dest, value in self.places.items() if dest in named_there}
        flags = [word for dest, value in changed.items() for word in (flag_of(dest), *value.split())]
        return (words[0], *positional, *(word for word in words[1:] if word not in given), *flags)

    def positional(self, words: tuple[str, ...], options: Namespace) -> list[str] | None:
        """What takes the place of a command's positional arguments; None for a command that is only parsed."""
        match words[0]:
            case "train" if words[1] == AUTO:
                return [AUTO, "--methods", "mean"]
            case "train" if options.data in OWN and not (options.from_ and options.data != "sine-line"):
                return [words[1]]
            case "evaluate" if options.kl_weight is not None:  # of a method that the run is not of
                return None
            case "evaluate" | "certify" | "predict" | "export":
                return self.runs[:1]
            case "compare" | "report":
                return self.runs[: len(options.runs)]
            case "data" if words[1] == "list":
                return ["list"]
            case "data" if words[1] == "check" and options.name not in DATA:
                return ["check", self.places["file"] if Path(options.name).suffix else str(self.images)]
        return None


def write_table(path: Path, rows: list[dict[str, object]]) -> str:
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return str(path)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.setenv("FEWSURE_CACHE", str(tmp_path / "cache"))
    values = np.random.default_rng(0).normal(size=12).round(3)
    rows = [
        {"group": f"g{group}", "kind": 3 * group + row // 4, "x": x, "z": row, "y": group * x}
        for group in range(60)
        for row, x in enumerate(values)
    ]
    few = [{"group": "new", "x": x, "z": row, "y": 2 * x} for row, x in enumerate(values[:2])]
    images = {f"class {seed % 12}/{seed}.png": image_bytes(random_image(seed, 16)) for seed in range(48)}
    write_tree(tmp_path / "images", images)
    places = {
        "file": write_table(tmp_path / "table.csv", rows),
        "support": write_table(tmp_path / "support.csv", few),
        "query": write_table(tmp_path / "query.csv", few),
        "folder": str(tmp_path / "images"),
        "from_": str(tmp_path / "maml"),
        "out": str(tmp_path / "made"),
        "onnx": str(tmp_path / "made.onnx"),
        "torch": str(tmp_path / "made.pt2"),
        "task_column": "group",
        "group_column": "group",
        "target": "y",
        "label": "kind",
        "features": "x z",
        "split_column": "none",
    }
    shop = Workshop(places, tmp_path / "images", [str(tmp_path / name) for name in ("first", "second")])
    table = ("--data", "table", "--features", "x", "--file", "f", "--task-column", "c", "--target", "t")
    runs = dict.fromkeys(shop.runs, ("train", "maml", *table)) | {places["from_"]: ("train", "maml")}
    for run, words in runs.items():
        assert main([*(shop.small(words) or ()), "--out", run]) == 0
    for run in shop.runs:
        assert main(["evaluate", run, "--tasks", SMALL["tasks"], "--device", "cpu"]) == 0
    assert main([*(shop.small(("certify", "run")) or ())]) == 0
    return shop


@pytest.mark.slow
def test_commands_run_with_tiny_settings(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    run: dict[tuple[str, ...], Command] = {}
    for command in [found for page in PAGES if page != TUTORIAL for found in commands(page)]:
        small = workshop.small(command.words)
        if small is not None:
            run.setdefault(small, command)
    assert {small[0] for small in run} >= {"train", "evaluate", "predict"}
    made = Path(workshop.places["out"])
    for small, command in run.items():
        assert main([*small]) == 0, f"{command}\n{shlex.join(small)}\n{capsys.readouterr().err}"
        for path in made.parent.glob(f"{made.name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_commands_are_found_in_code_alone() -> None:
    page = """
`fewsure train` and fewsure train are text.

    $ fewsure data list      what there is
    CUDA_VISIBLE_DEVICES=0 torchrun --nproc-per-node=4 -m fewsure train simpa \\
        --out runs/a && fewsure evaluate "runs/a b"  # a comment

```bash
fewsure certify runs/a …
```
```text
fewsure 0.1.0
```
"""
    assert [(line, " ".join(words)) for line, words in in_blocks(page)] == [
        (4, "data list"),
        (5, "train simpa --out runs/a"),
        (5, "evaluate runs/a b"),
        (9, "certify runs/a"),
    ]
