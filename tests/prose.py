"""Hints for prose: `python tests/prose.py [PATH …]` counts words and looks for habits that make sentences hard to read.

Without a path it prints one line for each page and one for the docstrings, and fails where a page breaks a limit. With
paths (pages, modules or folders) it prints each sentence to look at. Code, tables, headings and layouts are left out.
"""

import argparse
import ast
import inspect
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MEDIAN, LONGEST, LONG = 16, 30, 25
"""Words of a sentence: a page's median and longest at most; longer than LONG is worth a look."""

PASSIVE = r"(?<!\bis )(?<!\bare )(?<!\bbe )(?<!\bwas )(?<!\bwere )(?<!\bbeen )"
HABITS = {
    "fronted of": r"(?:^\W*|[;:] )[Oo]f\b",
    "what as a noun": r"(?:^\W*|[;:–] )[Ww]hat\b(?!.*\?)",
    "none as a predicate": r"(?<!\b[Tt]here )\b(?:is|are|was|were|be|been|has|have|had) none\b",
    "those that": r"\b[Tt]hose that\b",
    "history": rf"(?i:\b(?:earlier|formerly|previously|no longer(?= \w)|anymore|today)\b|{PASSIVE}\bused to\b)",
}
"""Habit → the pattern of a sentence that has it."""
TELLS_HISTORY = ("CHANGELOG.md",)

ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|al|cf|vs|Eq|Eqs|Fig|Sec|No|resp|\b[A-Z])|§)\.$")
CODE = "`CODE`"


class Sentence(NamedTuple):
    line: int
    """Where its paragraph begins."""
    text: str

    @property
    def words(self) -> int:
        return sum(any(letter.isalnum() for letter in word) for word in self.text.split())

    @property
    def habits(self) -> list[str]:
        return [habit for habit, pattern in HABITS.items() if re.search(pattern, self.text)]


class Counted(NamedTuple):
    """What a page, or all docstrings, come to."""

    name: str
    words: list[int]
    habits: list[str]

    @property
    def median(self) -> float:
        return statistics.median(self.words or [0])

    @property
    def longest(self) -> int:
        return max(self.words, default=0)

    @property
    def keeps_the_limits(self) -> bool:
        return self.median <= MEDIAN and self.longest <= LONGEST and not self.habits

    def row(self) -> str:
        long = sum(words > LONG for words in self.words)
        return f"{self.name:<36}{len(self.words):>9}{self.median:>8g}{self.longest:>9}{long:>9}{len(self.habits):>8}"


def sentences(text: str, code_indent: int = 4) -> Iterator[Sentence]:
    """The sentences of Markdown, without code, tables, headings and layouts; code in a line counts as one word."""
    text = re.sub(r"<!--.*?-->|<[^>\n]+>", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    for number, paragraph in paragraphs(text, code_indent):
        plain = re.sub(r"!\[[^]]*\]\([^)]*\)", "", paragraph)
        plain = re.sub(r"\[([^]]*)\](?:\([^)]*\)|\[[^]]*\])", r"\1", plain)
        begun: list[str] = []
        for word in re.sub(r"(`+).+?\1", CODE, plain).split():
            begun.append(word)
            bare = word.rstrip("\"'”’)*_]")
            if bare.endswith((".", "!", "?")) and not ABBREVIATION.search(bare):
                yield Sentence(number, " ".join(begun))
                begun = []
        if begun:
            yield Sentence(number, " ".join(begun))


def paragraphs(text: str, code_indent: int) -> Iterator[tuple[int, str]]:
    """(line number, text) of each paragraph and each item of a list."""
    number, begun, fenced, depth, after_blank = 0, list[str](), False, 0, True
    for at, line in enumerate([*text.splitlines(), ""], start=1):
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        item = re.match(r"\s*(?:[-*+]|\d+\.)\s+", line)
        fence = stripped.startswith(("```", "~~~"))
        code = (after_blank or code_indent < 4) and not item and stripped and indent >= code_indent + depth
        layout = stripped.startswith(("|", "#", "!!!", "???", "---", ">>>")) or re.search(r"\S {3,}\S", line)
        ends = not stripped or fence or fenced or item or code or layout
        if ends and begun:
            yield number, " ".join(begun)
            begun = []
        fenced ^= fence
        if item:
            depth = len(item[0])
        elif stripped and indent == 0:
            depth = 0
        after_blank = not stripped or bool(code) or (after_blank and bool(layout))
        if stripped and not (fence or fenced or code or layout):
            number = number if begun else at
            begun.append((line[len(item[0]) :] if item else line).strip().removeprefix("> "))


def docstrings(file: Path) -> Iterator[Sentence]:
    """The sentences of all docstrings of a module, those below fields included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for part in getattr(node, "body", ()) if isinstance(getattr(node, "body", None), list) else ():
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            ):
                text = re.sub(r"^>>>.*?(?:\n\n|\Z)", "", inspect.cleandoc(part.value.value), flags=re.M | re.S)
                for found in sentences(text, code_indent=2):
                    yield Sentence(part.lineno + found.line - 1, found.text)


def read(path: Path) -> Iterator[tuple[Path, Sentence]]:
    """(file, sentence) of a page, a module, or all of those in a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in files:
        if file.suffix == ".py":
            yield from ((file, sentence) for sentence in docstrings(file))
        elif file.suffix == ".md":
            yield from ((file, sentence) for sentence in sentences(file.read_text(encoding="utf-8")))


def counted(name: str, root: Path | None = None) -> Counted:
    """The facts of a page or a folder."""
    found = [sentence for _, sentence in read((root or ROOT) / name)]
    exempt = {"history"} if name in TELLS_HISTORY else set()
    habits = [habit for sentence in found for habit in sentence.habits if habit not in exempt]
    return Counted(name, [sentence.words for sentence in found if sentence.words], habits)


def summary() -> int:
    """Print a line for each page; 1 if one breaks a limit."""
    names = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    names += [file.relative_to(ROOT).as_posix() for file in sorted((ROOT / "docs").rglob("*.md"))]
    print(f"{'words of a sentence':<36}sentences  median  longest  over {LONG}  habits")
    pages = [counted(name) for name in names]
    for page in [*pages, counted("src")]:
        print(page.row())
    broken = [page.name for page in pages if not page.keeps_the_limits]
    for name in broken:
        print(
            f"{name}: expected a median of at most {MEDIAN} words, sentences of at most {LONGEST} and no habits; "
            f"see `python tests/prose.py {name}`",
            file=sys.stderr,
        )
    return 1 if broken else 0


def hints(paths: Sequence[Path]) -> None:
    """Print each sentence to look at, with its place."""
    for path in paths:
        for file, sentence in read(path):
            found = [f"{sentence.words} words"] if sentence.words > LONG else []
            if found := [*found, *sentence.habits]:
                print(f"{file}:{sentence.line}: {', '.join(found)}: {sentence.text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    options = parser.parse_args()
    if not options.paths:
        return summary()
    hints(options.paths)
    return 0


if __name__ == "__main__":
    sys.exit(main())
