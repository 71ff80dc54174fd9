"""The hints for prose: how words are counted, and which habits are found."""

from pathlib import Path

import pytest

from . import prose
from .prose import Counted, counted, docstrings, sentences

PAGE = """# A heading that is no sentence

The first sentence has `some code here` in
it, e.g. as one [linked word](nowhere.md#at-all). The second? Yes!

| a table | of words |
|---|---|

    an indented block of code

- An item
  of two lines.

        code in an item

1. Another item, 5.5 words long.

```python
fenced = "code"
```
<!-- a comment. -->
"""


def test_words_of_sentences_are_counted_without_code_tables_and_headings() -> None:
    found = [(sentence.line, sentence.words) for sentence in sentences(PAGE)]
    assert found == [(3, 12), (3, 2), (3, 1), (11, 5), (16, 5)]


@pytest.mark.parametrize(
    ("text", "habit"),
    [
        ("Of the test classes, two are easy.", "fronted of"),
        ("Two are easy; of the others nothing is known.", "fronted of"),
        ("What is learned stays.", "what as a noun"),
        ("It has two parts: what is kept, and the rest.", "what as a noun"),
        ("The limit is none.", "none as a predicate"),
        ("Take those that fit.", "those that"),
        ("It no longer does so.", "history"),
        ("It used to be slow.", "history"),
        ("Today's presets differ.", "history"),
    ],
)
def test_habits_are_found(text: str, habit: str) -> None:
    (sentence,) = sentences(text)
    assert sentence.habits == [habit]


@pytest.mark.parametrize(
    "text",
    [
        "What is a task?",
        "The page says what a task is.",
        "The mean of the losses is used to choose; it offers more.",
        "Leave it out if there is none, or write `is none`.",
        "It waits for a while and no longer.",
    ],
)
def test_plain_sentences_pass(text: str) -> None:
    assert [sentence.habits for sentence in sentences(text)] == [[]]


def test_docstrings_are_read_with_their_fields_and_without_examples(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""One.\n\n>>> 1 + 1\n2\n"""\n\nclass A:\n    """Two words."""\n    x = 1\n    """Of x."""\n')
    found = [(sentence.line, sentence.words, sentence.habits) for sentence in docstrings(module)]
    assert found == [(1, 1, []), (8, 2, []), (10, 2, ["fronted of"])]


def test_a_page_keeps_the_limits_or_does_not(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("Three words here. " * 3 + "word " * 31)
    assert counted("page.md", tmp_path) == Counted("page.md", [3, 3, 3, 31], [])
    assert not counted("page.md", tmp_path).keeps_the_limits
    assert Counted("page", [16, 16, 30], []).keeps_the_limits
    assert not Counted("page", [16, 17, 17], []).keeps_the_limits
    assert not Counted("page", [3], ["history"]).keeps_the_limits


def test_lint_fails_for_a_page_that_breaks_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/page.md"):
        (tmp_path / name).write_text("It is fast.")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert prose.summary() == 0
    for name, code in (("CHANGELOG.md", 0), ("docs/page.md", 1)):
        (tmp_path / name).write_text("It used to be slow.")
        assert prose.summary() == code
