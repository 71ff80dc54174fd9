"""Intervals of learners that each left out one group: jackknife+ over groups."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fewsure
from fewsure.cli.main import main
from fewsure.learner.left_out import left_out_runs, predictions_left_out
from fewsure.theory.conformal import conformal_threshold, jackknife_intervals

GROUPS, ALPHA = 11, 0.2


def test_learners_that_are_one_and_the_same_make_split_conformal_intervals() -> None:
    scores = torch.rand(GROUPS, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean = torch.tensor([1.0, -2.0, 5.0], dtype=torch.float64)
    threshold = conformal_threshold(scores.flatten(), torch.full((GROUPS,), 6), ALPHA)
    lower, upper = jackknife_intervals(mean - scores.unsqueeze(-1), mean + scores.unsqueeze(-1), ALPHA)
    torch.testing.assert_close(torch.stack([lower, upper]), torch.stack([mean - threshold, mean + threshold]))


@pytest.mark.parametrize("skewed", [False, True])
def test_they_hold_the_truth_for_a_new_group_however_few_groups_there_are(skewed: bool) -> None:
    random, held = np.random.default_rng(0), []
    for _ in range(400):  # a value for each group; what is learned is their mean, and it scores the group left out
        values = random.exponential(size=GROUPS + 1) if skewed else random.normal(size=GROUPS + 1)
        known, new = values[:-1], values[-1]
        means = (known.sum() - known) / (GROUPS - 1)
        scores = np.abs(known - means)
        ends = (torch.tensor(side)[:, None, None] for side in (means - scores, means + scores))
        lower, upper = jackknife_intervals(*ends, alpha=ALPHA)
        held.append(float(lower) <= new <= float(upper))
    assert 1 - ALPHA - 0.05 < np.mean(held) < 1 - ALPHA + 1 / (GROUPS + 1) + 0.05


def lines(folder: Path, factor: float = 1.0) -> list[str]:
    """The options of a table of groups, and files of the known and the other rows of a new group beside it."""
    random = np.random.default_rng(0)
    rows = []
    for group in range(GROUPS + 1):
        level, x = 3 * random.normal(), random.uniform(-2, 2, 16)
        values = factor * (level + 1.5 * x + 0.3 * random.normal(size=16))
        rows.append([f"g{group:02},{a!r},{b!r}" for a, b in zip(x.tolist(), values.tolist(), strict=True)])
    parts = {"lines": [row for group in rows[:-1] for row in group], "known": rows[-1][:5], "others": rows[-1][5:]}
    for name, part in parts.items():
        (folder / f"{name}.csv").write_text("\n".join(["group,x,y", *part]) + "\n")
    return ["--data", "table", "--file", str(folder / "lines.csv"), "--task-column", "group", "--target", "y"]


@pytest.mark.slow
def test_the_command_predicts_with_all_learners_in_the_unit_of_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for factor in (1.0, 1000.0):
        folder = tmp_path / str(factor)
        folder.mkdir()
        out, quick = folder / "cv", ["--test-tasks", "22", "--no-baselines", "--query", "8"]
        assert main(["crossval", "mixed", *lines(folder, factor), "--folds", "none", *quick, "--out", str(out)]) == 0
        assert "probability 0.8 at least, 1 − 2α (jackknife+ over groups)" in capsys.readouterr().out
        known, others = folder / "known.csv", folder / "others.csv"
        files = ["--support", str(known), "--query", str(others)]
        assert main(["predict", str(out), *files]) == 2
        assert f"holds {GROUPS} learners, which make intervals together: choose --coverage" in capsys.readouterr().err
        assert main(["predict", str(out), *files, "--coverage", "0.9"]) == 0
        printed = capsys.readouterr()
        assert "with probability 0.8 at least, and as a rule with 0.9" in printed.err
        table = np.array([line.split(",") for line in printed.out.splitlines()[1:]], dtype=float)
        found.append(table[:, 1:])
        assert main(["predict", str(out), *files, "--coverage", "0.95"]) == 0
        assert "so few groups make intervals without ends" in capsys.readouterr().err
    np.testing.assert_allclose(found[1], 1000 * found[0], rtol=1e-3, atol=2.0)
    truth = np.loadtxt(tmp_path / "1.0" / "others.csv", delimiter=",", skiprows=1, usecols=2)
    mean, lower, upper = found[0].T
    assert np.all((lower < mean) & (mean < upper))
    assert np.mean((lower <= truth) & (truth <= upper)) > 0.8
    assert np.mean(upper - lower) < 3  # of the noise and the level that five rows leave, not of the groups' spread

    runs = left_out_runs(tmp_path / "1.0" / "cv")
    known, others = (tmp_path / "1.0" / f"{name}.csv" for name in ("known", "others"))
    by_batches = predictions_left_out(runs, torch.device("cpu"), None, known, others, coverage=0.9, batch_size=4)
    np.testing.assert_allclose([row["upper"] for row in by_batches], upper, rtol=1e-5)


def test_a_group_too_small_for_a_task_is_learned_from_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, out = lines(tmp_path), tmp_path / "cv"
    table = (tmp_path / "lines.csv").read_text().splitlines()
    small = [line for number, line in enumerate(table) if not 36 <= number <= 48]  # three rows of g02 are left
    (tmp_path / "lines.csv").write_text("\n".join(small) + "\n")
    quick = ["--test-tasks", "20", "--no-baselines", "--query", "8"]
    assert main(["crossval", "mean", *options, "--folds", "none", *quick, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert f"{GROUPS - 1} folds in" in printed.out
    assert "sets with coverage" not in printed.err  # which cross-validation is the answer to
    assert len(left_out_runs(out)) == GROUPS - 1


def test_folds_of_several_groups_make_no_intervals(tmp_path: Path) -> None:
    (tmp_path / "crossval.json").write_text('{"folds": 5}')
    with pytest.raises(fewsure.FewsureError, match="5 folds of groups; for intervals leave out one group"):
        left_out_runs(tmp_path)
    assert left_out_runs(tmp_path / "elsewhere") == []
