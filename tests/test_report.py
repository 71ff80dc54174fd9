"""The report says what the evaluations say, in one file that needs nothing else."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewsure.algorithms.maml import Maml
from fewsure.algorithms.simpa import Simpa
from fewsure.data.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.evaluation import task_records
from fewsure.experiment import Experiment, Training
from fewsure.metrics.calibration import LEVELS, calibration_errors, quantile_reliability
from fewsure.networks import MlpOptions
from fewsure.report.page import write_report
from fewsure.report.reference import SINE_LINE_5_SHOT
from fewsure.report.styles import ALGORITHM_COLOURS, run_styles
from fewsure.report.tables import evaluation_table
from fewsure.report.unseen import predict_unseen
from fewsure.training.loop import train
from fewsure.training.runs import Run
from fewsure.types import Algorithm

PAPER = Path(__file__).parents[2] / "shared" / "paper" / "reference.json"
CPU = torch.device("cpu")
TINY_SIMPA = Simpa(latent=4, generator_hidden=(8,), kl_samples=4, inner_steps=1)
TASKS = 20


def trained_run(folder: Path, algorithm: Algorithm, shot: int = 5) -> Run:
    experiment = Experiment(
        algorithm, SineLine(shot=shot), MlpOptions(hidden=(8,)), Training(updates=4, tasks=2), preset="recommended"
    )
    run = Run.create(folder, experiment)
    train(run, CPU, log_every=1)
    return run


def report(runs: list[Run], out: Path) -> str:
    write_report(runs, out, CPU, tasks=TASKS, seed=0, quiet=True)
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [trained_run(folder / "simpa", TINY_SIMPA), trained_run(folder / "maml", Maml(inner_steps=1))]


@pytest.fixture(scope="module")
def written(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("report") / "new" / "report.html"
    return write_report(runs, out, CPU, tasks=TASKS, seed=0, quiet=True)


@pytest.fixture(scope="module")
def page(written: list[Path]) -> str:
    return written[0].read_text(encoding="utf-8")


class Tables(HTMLParser):
    """The cells of each table row of a page, and the names of its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.in_cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.in_cell = self.in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.in_cell:
            self.rows[-1][-1] += data


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", cell.replace(",", ""))]


def calibration_of(result: dict[str, Any]) -> list[float]:
    return [round(value, 4) for error in ("ece", "mce") for value in (result[error], *result[f"{error}_ci95"])]


def numbers_of(result: dict[str, Any]) -> list[float]:
    values = [result["tasks"], result["samples"]]
    for score in ("mse", "nll"):
        values += [round(result[score]["mean"], 3), round(result[score]["ci95"], 3)]
    return values + calibration_of(result)


def evaluations(runs: list[Run]) -> list[dict[str, Any]]:
    return [json.loads((run.folder / "evaluation.json").read_text()) for run in runs]


def headline(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "with_noise"}


# The paper's numbers


@pytest.mark.skipif(not PAPER.is_file(), reason=f"{PAPER}, the paper's printed figures, is not in this checkout")
def test_the_papers_numbers_are_those_it_prints() -> None:
    printed = json.loads(PAPER.read_text())["regression_sine_line_5shot"]
    assert printed["reliability"].pop("levels") == list(LEVELS)
    assert {ours.name for ours in SINE_LINE_5_SHOT.values()} == printed["mse"].keys()
    for algorithm, ours in SINE_LINE_5_SHOT.items():
        assert ours.name.lower() == algorithm
        for score in ("mse", "ece", "mce"):
            assert getattr(ours, score) == round(printed[score][ours.name], 4)
        assert ours.reliability == tuple(round(value, 4) for value in printed["reliability"][ours.name])


@pytest.mark.parametrize("algorithm", SINE_LINE_5_SHOT)
def test_the_papers_calibration_errors_follow_from_its_reliability(algorithm: str) -> None:
    printed = SINE_LINE_5_SHOT[algorithm]
    ece, mce = calibration_errors(torch.tensor(printed.reliability, dtype=torch.float64))
    # Both sides are rounded to 4 digits.
    assert float(ece) == pytest.approx(printed.ece, abs=1e-4)
    assert float(mce) == pytest.approx(printed.mce, abs=1e-4)


# Predictions


def test_the_drawn_tasks_are_the_first_of_the_evaluation(runs: list[Run]) -> None:
    for run in runs:
        meta, noise_std = run.load(CPU).meta, run.experiment.data.noise_std
        drawn = predict_unseen(run.experiment, meta, tasks=4, seed=3)
        records = task_records(run.experiment, meta, tasks=7, seed=3, stream="test", progress=lambda done: None)
        again = [
            quantile_reliability(torch.tensor(predictions), torch.tensor(truth), noise_std)
            for predictions, truth in zip(drawn.predictions, drawn.truth, strict=True)
        ]
        torch.testing.assert_close(torch.stack(again), records["reliability"][:4])


def test_runs_are_drawn_on_the_same_tasks(runs: list[Run]) -> None:
    ours, theirs = (predict_unseen(run.experiment, run.load(CPU).meta, tasks=4, seed=0) for run in runs)
    for name in ("support_x", "support_y", "x", "truth"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert ours.predictions.shape == (4, 32, 101)
    assert theirs.predictions.shape == (4, 1, 101)


# Names and colours


def test_an_algorithm_keeps_its_colour_and_no_two_runs_share_one() -> None:
    algorithms = ["maml", "simpa", "simpa", "simpa", "platipus"]
    styles = run_styles(algorithms, [Path("runs") / str(index) for index in range(5)])
    assert [style.label for style in styles] == ["MAML", "1", "2", "3", "PLATIPUS"]
    assert [styles[index].colour for index in (0, 1, 4)] == [
        ALGORITHM_COLOURS[algorithms[index]] for index in (0, 1, 4)
    ]
    assert len({style.colour for style in styles}) == 5


def test_folders_of_the_same_name_are_told_apart() -> None:
    styles = run_styles(["maml", "maml"], [Path("a/run"), Path("b/run")])
    assert [style.label for style in styles] == ["a/run", "b/run"]


# Tables


def test_the_text_table_has_the_numbers_of_the_results_and_of_the_paper(written: list[Path], runs: list[Run]) -> None:
    results = [headline(result) for result in evaluations(runs)]
    header, simpa, paper_simpa, maml, paper_maml = evaluation_table(results).splitlines()
    assert [simpa.split()[0], maml.split()[0]] == ["simpa", "maml"]
    assert [numbers(simpa), numbers(maml)] == [numbers_of(result) for result in results]
    assert paper_simpa.startswith("paper: SImPa")
    assert numbers(paper_simpa) == [1000, 1.58, 0.1473, 0.2295]
    assert numbers(paper_maml) == [1000, 2.32, 0.2740, 0.5139]
    assert simpa.index("[") == maml.index("[")
    assert header.index("ECE") == simpa.index(f"{results[0]['ece']:.4f} [") == paper_simpa.index("0.1473")


def test_a_label_names_its_row_and_the_paper_stands_there_once(written: list[Path], runs: list[Run]) -> None:
    result = headline(evaluations(runs)[0])
    lines = evaluation_table([result | {"label": "no warm-up"}, result | {"label": "warm-up"}]).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["no warm-up", "paper: SImPa", "warm-up"]


def test_the_paper_is_left_out_where_it_has_no_numbers(written: list[Path], runs: list[Run]) -> None:
    assert "paper" not in evaluation_table([evaluations(runs)[0] | {"shot": 10}])


def test_noise_has_a_row_of_its_own(written: list[Path], runs: list[Run]) -> None:
    result = evaluations(runs)[1]
    noisy = {name: result[name] for name in ("ece", "ece_ci95", "mce", "mce_ci95")} | {"ece": 0.1234}
    line = evaluation_table([result | {"with_noise": noisy}]).splitlines()[2]
    assert line.startswith("maml + noise")
    assert numbers(line) == [TASKS, *calibration_of(noisy)]


# The page


def test_the_page_and_its_figures_are_written(written: list[Path]) -> None:
    page, *figures = written
    names = ("predictions_sine_line_5_shot", "comparison_sine_line_5_shot", "learning_curves")
    assert page.name == "report.html"
    assert [figure.name for figure in figures] == [f"{name}.png" for name in names]
    for figure in figures:
        assert figure.parent == page.parent / "report_files"
        assert figure.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sorted(page.parent.iterdir()) == [page, page.parent / "report_files"]


def test_the_page_refers_to_nothing_outside_itself(page: str) -> None:
    text, embedded = re.subn(r'src="data:image/png;base64,[A-Za-z0-9+/=]+"', "", page)
    assert embedded == 3
    assert not re.search(r"http|//|src=|href=|url\(|@import", text)
    assert not Tables(page).tags & {"script", "link", "iframe", "object"}


def test_the_pages_table_has_the_numbers_of_the_results_and_of_the_paper(page: str, runs: list[Run]) -> None:
    header, *rows = Tables(page).rows
    assert all(len(row) == len(header) for row in rows)
    found = {row[0]: [number for cell in row[1:] for number in numbers(cell)] for row in rows}
    for name, result in zip(("SImPa", "MAML"), evaluations(runs), strict=True):
        assert found[name] == numbers_of(result)
    assert found["paper: SImPa"] == [1000, 1.58, 0.1473, 0.2295]
    assert found["paper: MAML"] == [1000, 2.32, 0.2740, 0.5139]


def test_the_page_says_what_its_numbers_mean_and_how_they_were_made(page: str) -> None:
    text = " ".join(page.split())
    assert "32 functions are sampled" in text
    assert "no observation noise" in text
    assert "no post-hoc scaling" in text
    assert "estimate, not a guarantee" in text
    assert "vacuous, since above 1" in text
    assert "latent = 4" in text
    assert "4 of 4" in text


def test_names_are_escaped_and_runs_on_other_tasks_are_pointed_out(tmp_path: Path) -> None:
    runs = [
        trained_run(tmp_path / "<script>", TINY_SIMPA),
        trained_run(tmp_path / "_$1_a & b$", TINY_SIMPA, shot=3),
    ]
    page = report(runs, tmp_path / "report.html")
    assert "script" not in Tables(page).tags
    assert {"<script>", "paper: SImPa", "_$1_a & b$"} <= {row[0] for row in Tables(page).rows}
    assert "not judged on the same" in page


def test_runs_on_the_same_tasks_raise_no_notice(page: str) -> None:
    assert "not judged on the same" not in page


def test_a_run_given_twice_is_shown_once_with_the_evaluation_it_has(
    written: list[Path], runs: list[Run], tmp_path: Path
) -> None:
    before, twice = evaluations(runs), [runs[1], Run.open(runs[1].folder / ".." / "maml")]
    out, *_ = write_report(twice, tmp_path / "report.html", CPU, tasks=2 * TASKS, seed=1, quiet=True)
    page = out.read_text(encoding="utf-8")
    assert evaluations(runs) == before
    assert [row[0] for row in Tables(page).rows[1:] if "noise" not in row[0]] == ["MAML", "paper: MAML"]
    assert "estimate, not a guarantee" not in page


# Wrong input


def test_a_run_without_a_checkpoint_is_named(runs: list[Run], tmp_path: Path) -> None:
    begun = Run.create(tmp_path / "begun", runs[0].experiment)
    with pytest.raises(FewsureError, match="begun has no checkpoint"):
        report([runs[0], begun], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_there_must_be_runs_and_a_place_for_the_page(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(FewsureError, match="at least one run"):
        report([], tmp_path / "report.html")
    with pytest.raises(FewsureError, match="is a folder"):
        report(runs, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FewsureError, match="cannot be written"):
        report(runs, tmp_path / "file" / "report.html")
