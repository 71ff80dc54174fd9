"""The report says what the evaluations say, in one file that needs nothing else."""

import base64
import csv
import hashlib
import io
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.stats
import torch

from fewsure.certification.certify import Request, certify_run
from fewsure.cli.main import main
from fewsure.cli.train import read_experiment
from fewsure.errors import FewsureError
from fewsure.evaluation.calibrate import calibrated
from fewsure.evaluation.evaluate import evaluate
from fewsure.evaluation.metrics.calibration import LEVELS, calibration_errors, quantile_reliability
from fewsure.pipeline import evaluate_run
from fewsure.report import page as page_module
from fewsure.report.comparison import comparison_drawings
from fewsure.report.drawing import Drawing
from fewsure.report.evaluation_tables import evaluation_tables
from fewsure.report.gallery import confident_mistakes
from fewsure.report.learning_curves import thinned
from fewsure.report.page import write_report
from fewsure.report.provenance import train_command
from fewsure.report.reference import REFERENCE, printed_for
from fewsure.report.significance import best_and_tied
from fewsure.report.styles import ALGORITHM_COLOURS, SPARE_COLOURS, RunStyle, display_name, run_styles
from fewsure.report.unseen_tasks import predict_unseen, predict_unseen_images
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run

from .report_runs import CPU, TASKS, TINY_MAML, TINY_SIMPA, image_run, regression_run, report, write_photos

PAPER = Path(__file__).parents[2] / "shared" / "paper" / "reference.json"
SINE_LINE = REFERENCE["sine-line, 5-shot"]
SVG = "{http://www.w3.org/2000/svg}"
needs_paper = pytest.mark.skipif(
    not PAPER.is_file(), reason=f"{PAPER.name}, the paper's printed figures, is not beside this checkout"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [regression_run(folder / "simpa", TINY_SIMPA), regression_run(folder / "maml", TINY_MAML)]


@pytest.fixture(scope="module")
def written(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The page and its figures."""
    found = report(runs, tmp_path_factory.mktemp("report") / "new" / "report.html")
    assert found.problems == []
    return [found.page, *found.figures]


@pytest.fixture(scope="module")
def page(written: list[Path]) -> str:
    return written[0].read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Run]]:
    """Two runs on pictures."""
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWSURE_CACHE", str(folder / "cache"))
        photos = write_photos(folder / "photos")
        yield [
            image_run(folder / "protonet", photos),
            image_run(folder / "maml", photos, TINY_MAML, softmax_temperature=None),
        ]


@pytest.fixture(scope="module")
def image_page(images: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(images, tmp_path_factory.mktemp("report") / "report.html").page


class Page(HTMLParser):
    """What a browser would find: the cells of each table row, the tags, and the attributes of figures and cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        """The text of each cell; what is below a figure in small print is in `paper`."""
        self.paper: dict[tuple[int, int], str] = {}
        self.values: dict[tuple[int, int], float] = {}
        self.bold: set[tuple[int, int]] = set()
        self.tags: list[str] = []
        self.points: dict[str, list[list[Any]]] = {}
        self.parts: list[str] = []
        self._within: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.tags.append(tag)
        self._within.append("paper" if given.get("class") == "paper" else tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            if "data-value" in given:
                self.values[self.place] = float(given["data-value"])
        if tag == "strong":
            self.bold.add(self.place)
        if "data-points" in given:
            self.points[given["id"]] = json.loads(given["data-points"])

    @property
    def place(self) -> tuple[int, int]:
        return len(self.rows) - 1, len(self.rows[-1]) - 1

    def handle_endtag(self, tag: str) -> None:
        while self._within and self._within.pop() not in (tag, "paper" if tag == "span" else tag):
            pass

    def handle_data(self, data: str) -> None:
        if "paper" in self._within:
            self.paper[self.place] = self.paper.get(self.place, "") + data
        elif "td" in self._within or "th" in self._within:
            self.rows[-1][-1] += data
        self.parts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.parts).split())


def numbers(cell: str) -> list[float]:
    plain = cell.replace(",", "").replace("−", "-")
    return [float(number) for number in re.findall(r"[-+]?\d+\.?\d*", plain)]


def calibration_of(result: dict[str, Any]) -> list[float]:
    return [round(value, 4) for error in ("ece", "mce") for value in (result[error], *result[f"{error}_ci95"])]


def numbers_of(result: dict[str, Any]) -> list[float]:
    values = [result["tasks"], result["samples"]]
    for score in ("mse", "nll"):
        values += [round(result[score]["mean"], 3), round(result[score]["ci95"], 3)]
    return values + calibration_of(result)


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def evaluations(runs: list[Run]) -> list[dict[str, Any]]:
    return [json.loads((run.folder / "evaluation.json").read_text()) for run in runs]


def table_text(results: list[dict[str, Any]]) -> str:
    (table,) = evaluation_tables(results)
    return table.text()


def headline(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "with_noise"}


# The paper's numbers


@needs_paper
def test_the_papers_numbers_are_those_it_prints() -> None:
    printed = json.loads(PAPER.read_text())["regression_sine_line_5shot"]
    assert printed["reliability"].pop("levels") == list(LEVELS)
    assert {display_name(algorithm) for algorithm in SINE_LINE} == printed["mse"].keys()
    for algorithm, ours in SINE_LINE.items():
        name = display_name(algorithm)
        assert ours["mse"]["mean"] == round(printed["mse"][name], 4)
        assert [ours["ece"], ours["mce"]] == [round(printed[score][name], 4) for score in ("ece", "mce")]
        assert ours["reliability"]["levels"] == list(LEVELS)
        assert ours["reliability"]["observed"] == [round(value, 4) for value in printed["reliability"][name]]


@pytest.mark.parametrize("algorithm", SINE_LINE)
def test_the_papers_calibration_errors_follow_from_its_reliability(algorithm: str) -> None:
    printed = SINE_LINE[algorithm]
    ece, mce = calibration_errors(torch.tensor(printed["reliability"]["observed"], dtype=torch.float64))
    # Both sides are rounded to 4 digits.
    assert float(ece) == pytest.approx(printed["ece"], abs=1e-4)
    assert float(mce) == pytest.approx(printed["mce"], abs=1e-4)


@needs_paper
def test_the_papers_figure_3_and_table_1_are_those_it_prints() -> None:
    printed = json.loads(PAPER.read_text())
    calibration = printed["mini_imagenet_calibration"]
    for name, bins in calibration["reliability_5way_1shot"].items():
        ours = REFERENCE["mini-imagenet, 5-way 1-shot"][name.lower()]
        for column in ("confidence", "accuracy"):
            assert ours["reliability"][column] == [round(value, 4) for value in bins[column]]
        assert [ours[error] for error in ("ece", "mce")] == [
            round(calibration[error][name], 4) for error in ("ece", "mce")
        ]
    for name, (one_shot, _) in printed["accuracy"]["omniglot/conv4"].items():
        ours = printed_for({"algorithm": name.lower(), "data": "omniglot", "way": 5, "shot": 1})
        assert list(ours["accuracy"].values()) == [pytest.approx(value / 100) for value in one_shot]


# Predictions


def test_the_drawn_tasks_are_the_first_of_the_evaluation(runs: list[Run]) -> None:
    for run in runs:
        meta, noise_std = run.load(CPU).meta, run.experiment.data.noise_std
        drawn = predict_unseen(run.experiment, meta, tasks=4, seed=3)
        _, records = evaluate(run.experiment, meta, tasks=7, seed=3)
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
    header, simpa, paper_simpa, maml, paper_maml = table_text(results).splitlines()
    assert [simpa.split()[0], maml.split()[0]] == ["simpa", "maml"]
    assert [numbers(simpa), numbers(maml)] == [numbers_of(result) for result in results]
    assert paper_simpa.startswith("paper: SImPa")
    assert numbers(paper_simpa) == [1000, 1.58, 0.1473, 0.2295]
    assert numbers(paper_maml) == [1000, 2.32, 0.2740, 0.5139]
    assert simpa.index("[") == maml.index("[")
    assert header.index("ECE") == simpa.index(f"{results[0]['ece']:.4f} [") == paper_simpa.index("0.1473")


def test_a_label_names_its_row_and_the_paper_stands_there_once(written: list[Path], runs: list[Run]) -> None:
    result = headline(evaluations(runs)[0])
    lines = table_text([result | {"label": "no warm-up"}, result | {"label": "warm-up"}]).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["no warm-up", "paper: SImPa", "warm-up"]


def test_the_paper_is_left_out_where_it_has_no_numbers(written: list[Path], runs: list[Run]) -> None:
    assert "paper" not in table_text([evaluations(runs)[0] | {"shot": 10}])


def test_noise_has_a_row_of_its_own(written: list[Path], runs: list[Run]) -> None:
    result = evaluations(runs)[1]
    noisy = {name: result[name] for name in ("ece", "ece_ci95", "mce", "mce_ci95")} | {"ece": 0.1234}
    line = table_text([result | {"with_noise": noisy}]).splitlines()[2]
    assert line.startswith("maml + noise")
    assert numbers(line) == [TASKS, *calibration_of(noisy)]


# Best and tied


def test_what_does_not_differ_from_the_best_on_the_same_tasks_is_tied_with_it() -> None:
    generator = torch.Generator().manual_seed(0)
    difficulty = 5 * torch.rand(200, generator=generator)  # tasks vary far more than methods do
    noise = [0.1 * torch.randn(200, generator=generator) for _ in range(3)]
    scores = [difficulty + noise[0], difficulty + noise[1], difficulty + noise[2] + 0.1]
    assert (
        scipy.stats.ttest_rel(scores[0], scores[1]).pvalue > 0.05 > scipy.stats.ttest_rel(scores[0], scores[2]).pvalue
    )
    assert scipy.stats.ttest_ind(scores[0], scores[2]).pvalue > 0.05  # unpaired, nobody could tell
    flat = torch.tensor(LEVELS).expand(200, -1)
    shift = 0.1 * torch.randn(200, 1, generator=generator)
    reliability = [flat + shift + 0.02, flat - shift - 0.02, flat + shift + 0.05]
    records = [{"mse": score, "nll": score, "reliability": row} for score, row in zip(scores, reliability, strict=True)]
    results = []
    for record in records:
        ece, mce = calibration_errors(record["reliability"].double().mean(0))
        mean = {"mean": float(record["mse"].mean())}
        results.append({"mse": mean, "nll": mean, "ece": float(ece), "mce": float(mce)})
    marked = best_and_tied(results, [[record] for record in records])
    assert marked == best_and_tied(results, [pieces(record) for record in records])
    assert {"mse", "nll"} <= marked[0] & marked[1]
    assert marked[2] == set()  # its calibration error is larger on every resample of the same tasks
    assert {"ece", "mce"} <= marked[0] | marked[1]


def pieces(record: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [{name: value[first : first + 60] for name, value in record.items()} for first in range(0, 200, 60)]


def test_bold_cells_are_the_best_and_the_tied(runs: list[Run], written: list[Path], page: str) -> None:
    found, results = Page(page), evaluations(runs)
    records = [run.evaluation_records() for run in runs]
    for column, score in ((3, "mse"), (4, "nll")):
        best = min((0, 1), key=lambda number: results[number][score]["mean"])
        other = scipy.stats.ttest_rel(*(record[score].double() for record in records)).pvalue
        expected = {best} if other < 0.05 else {0, 1}
        rows = {"SImPa": 0, "MAML": 1}
        bold = {rows[found.rows[row][0]] for row, place in found.bold if place == column}
        assert bold == expected


# The page


def test_the_page_and_its_figures_are_written_as_png_svg_and_csv(written: list[Path]) -> None:
    page, *figures = written
    names = [f"{panel}_sine_line_5_shot" for panel in ("error", "reliability", "calibration")]
    names += ["predictions_sine_line_5_shot_1"]
    names += [f"training_{panel}_sine_line_5_shot" for panel in ("loss", "bound", "kl", "gradient")]
    assert page.name == "report.html"
    assert [figure.name for figure in figures] == [f"{name}.{end}" for name in names for end in ("png", "svg", "csv")]
    for figure in figures:
        assert figure.parent == page.parent / "report_files"
        if figure.suffix == ".png":
            assert figure.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        elif figure.suffix == ".svg":
            assert ElementTree.parse(figure).getroot().tag == f"{SVG}svg"
        else:
            assert len(read_csv(figure)) > 3
    assert sorted(page.parent.iterdir()) == [page, page.parent / "report_files"]


def test_the_page_refers_to_nothing_outside_itself_and_runs_one_script(page: str) -> None:
    tags = Page(page).tags
    assert not set(tags) & {"link", "iframe", "object", "embed", "base"}
    assert tags.count("script") == 1
    assert not re.search(r"https?:|//[a-z]|src=|url\((?!#)|@import", page.split("<script>")[0])
    assert all(link.startswith(("#", "data:image/png")) for link in re.findall(r'href="([^"]*)"', page))
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert not re.search(r"fetch|XMLHttp|import|eval|http", script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_identifiers_are_unique_and_every_reference_is_met(page: str) -> None:
    names = re.findall(r'\bid="([^"]*)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r"url\(#([^)]*)\)", page)) | set(re.findall(r'href="#([^"]*)"', page)) <= set(names)


def test_the_pages_table_has_the_numbers_of_the_results(page: str, runs: list[Run]) -> None:
    found = Page(page)
    header, *rows = found.rows
    assert all(len(row) == len(header) for row in rows)
    texts = {row[0]: [number for cell in row[1:] for number in numbers(cell)] for row in rows}
    exact = {row[0]: number for number, row in enumerate(rows, start=1)}
    for name, result in zip(("SImPa", "MAML"), evaluations(runs), strict=True):
        assert texts[name] == numbers_of(result)
        row = exact[name]  # what sorting goes by are the numbers themselves
        values = [result["tasks"], result["samples"], result["mse"]["mean"], result["nll"]["mean"]]
        assert [found.values[row, column] for column in range(1, 7)] == [*values, result["ece"], result["mce"]]
        assert texts[f"{name} + noise"] == [TASKS, *calibration_of(result["with_noise"])]


def test_the_papers_figures_stand_beside_ours_with_the_difference(page: str, runs: list[Run]) -> None:
    found = Page(page)
    rows = {row[0]: number for number, row in enumerate(found.rows)}
    for name, result in zip(("SImPa", "MAML"), evaluations(runs), strict=True):
        printed = SINE_LINE[name.lower()]
        for column, ours, theirs in (
            (3, result["mse"]["mean"], printed["mse"]["mean"]),
            (5, result["ece"], printed["ece"]),
            (6, result["mce"], printed["mce"]),
        ):
            text = found.paper[rows[name], column]
            assert text.startswith("paper ")
            assert numbers(text) == [theirs, round(ours - theirs, 2 if column == 3 else 4)]
        assert (rows[name], 4) not in found.paper  # the paper prints no NLL


def test_the_summary_has_the_numbers_of_the_results(page: str, runs: list[Run]) -> None:
    result = evaluations(runs)[0]
    mse = f"{result['mse']['mean']:.3f} ± {result['mse']['ci95']:.3f} (paper: 1.58)"
    ece = f"{result['ece']:.4f} (paper: 0.1473)"
    sentence = f"SImPa has a mean squared error of {mse} and an expected calibration error of {ece} on 20 unseen tasks"
    assert sentence in Page(page).text


def test_the_data_behind_the_figures_are_the_results(written: list[Path], runs: list[Run]) -> None:
    folder = written[1].parent

    def rows(name: str) -> list[dict[str, str]]:
        return read_csv(folder / f"{name}_sine_line_5_shot.csv")

    for name, run, result in zip(("SImPa", "MAML"), runs, evaluations(runs), strict=True):
        mine = [row for row in rows("error") if row["method"] == name]
        assert [float(mine[0]["value"]), mine[0]["source"]] == [result["mse"]["mean"], "run"]
        errors = {row["score"]: row for row in rows("calibration") if row["method"] == name}
        for error in ("ece", "mce"):
            bounds = [float(errors[error][column]) for column in ("value", "low", "high")]
            assert bounds == [result[error], *result[f"{error}_ci95"]]
        observed = [float(row["observed"]) for row in rows("reliability") if row["method"] == name]
        assert observed == result["reliability"]["observed"]
        logged = [float(row["value"]) for row in rows("training_loss") if row["method"] == name]
        assert logged == [line["loss"] for line in run.metrics()]
    terms = {row["quantity"] for row in rows("training_bound")}
    assert terms == {"bound", "R_0", "R_i", "clipped_loss"}
    simpa = [line["kl"] for line in runs[0].metrics()]
    assert [float(row["value"]) for row in rows("training_kl") if row["quantity"] == "kl"] == simpa
    printed = [float(row["observed"]) for row in rows("reliability") if row["method"] == "paper: SImPa"]
    assert printed == SINE_LINE["simpa"]["reliability"]["observed"]


@pytest.mark.parametrize(("target", "shown"), [("omniglot", "error"), ("cifar-fs-1shot", "accuracy")])
def test_where_nearly_all_is_right_bars_show_what_is_wrong(target: str, shown: str) -> None:
    results = json.loads((Path(__file__).resolve().parents[1] / "results" / f"{target}.json").read_text())
    styles = [RunStyle(row["label"], "#000000") for row in results]
    scores, *_ = comparison_drawings(target, target, results, styles)
    assert scores.name == f"{shown}_{target}"
    assert f"{target}: {shown} on unseen tasks" in scores.caption
    (axes,) = scores.figure.axes
    assert (axes.get_title().lower().split()[0], "wrong" in axes.get_xlabel()) == (shown, shown == "error")
    drawn = {row["method"]: row for row in scores.rows}
    assert {row["score"] for row in scores.rows} == {shown}
    for row in results:
        value, reach = row["accuracy"]["mean"], row["accuracy"]["ci95"]
        value = 1 - value if shown == "error" else value
        expected = [value, value - reach, value + reach]
        assert [drawn[row["label"]][key] for key in ("value", "low", "high")] == pytest.approx(expected)
    if target == "omniglot":
        assert drawn["paper: SImPa"]["value"] == pytest.approx(
            1 - REFERENCE["omniglot, 5-way 1-shot"]["simpa"]["accuracy"]["mean"]
        )


def test_what_is_said_under_the_pointer_stands_where_the_marker_is(page: str, written: list[Path]) -> None:
    points = Page(page).points["reliability_sine_line_5_shot"]
    assert {point[2] for point in points} == {"0", "0 paper", "1", "1 paper"}
    root = ElementTree.parse(written[1].parent / "reliability_sine_line_5_shot.svg").getroot()
    owned = [part for part in root.iter() if part.get("data-of") == "0"]
    markers = [(float(use.get("x", 0)), float(use.get("y", 0))) for part in owned for use in part.iter(f"{SVG}use")]
    said = [(point[0], point[1]) for point in points if point[2] == "0"]
    np.testing.assert_allclose(said, markers, atol=0.06)
    assert all(point[3].startswith("SImPa: expected ") for point in points if point[2] == "0")


def test_every_axis_says_what_it_shows_and_in_which_unit(
    runs: list[Run], images: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawings: list[Drawing] = []
    drawn = page_module.figure
    monkeypatch.setattr(
        page_module, "figure", lambda drawing, styles: drawings.append(drawing) or drawn(drawing, styles)
    )
    report([*runs, *images], tmp_path / "report.html")
    assert len(drawings) >= 16
    units = re.compile(r"probabilit|share of|unit|number|nats|loss|norm|class")
    for drawing in drawings:
        panels = [axes for axes in drawing.figure.axes if axes.get_visible() and axes.axison]
        places = [axes.get_position() for axes in panels]
        for axes, place in zip(panels, places, strict=True):
            if place.y0 == min(other.y0 for other in places):  # panels above share the lowest one's label
                assert units.search(axes.get_xlabel()), drawing.name
            if place.x0 == min(other.x0 for other in places):
                named = [label.get_text() for label in axes.get_yticklabels()]
                assert units.search(axes.get_ylabel()) or "SImPa" in named or "ProtoNet" in named, drawing.name
            if not drawing.name.startswith("queries") and not drawing.name.startswith("mistakes"):
                assert axes.get_title(), drawing.name


def test_colours_can_be_told_apart_without_seeing_colour() -> None:
    """Samples by each kind of colour-blind eye (Machado et al., 2009), no two methods' colours are close together."""
    eyes = {
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    }
    colours = [
        [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)] for colour in ALGORITHM_COLOURS.values()
    ]
    linear = np.array([[c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb] for rgb in colours])
    for eye in [np.eye(3), *(np.array(matrix) for matrix in eyes.values())]:
        lab = _lab(np.clip(linear @ eye.T, 0, 1))
        distance = np.linalg.norm(lab[:, None] - lab[None], axis=-1) + 1e9 * np.eye(len(lab))
        assert distance.min() > 10  # about 2 can just be told apart side by side
    assert len(set(SPARE_COLOURS)) == len(SPARE_COLOURS)


def _lab(linear: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB."""
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = linear @ np.array(matrix).T / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=-1)


def test_the_page_says_what_its_numbers_mean_and_how_they_were_made(page: str, runs: list[Run]) -> None:
    text, (result, _) = Page(page).text, evaluations(runs)
    assert "32 functions are sampled" in text
    assert "no observation noise" in text
    assert "no post-hoc scaling" in text
    assert "estimate, not a guarantee" in text
    assert "vacuous, since above 1" in text
    assert "latent = 4" in text
    assert "4 of 4" in text
    assert "0 in training, 0 in evaluation" in text
    assert f"{result['seconds']:,.1f} s on cpu, fewsure {result['version']}" in text
    assert f"fewsure evaluate {runs[0].folder} --tasks 20 --seed 0" in text
    assert "data checksum none: the tasks are generated from the seed" in text


def test_the_command_on_the_page_makes_the_same_experiment(runs: list[Run], images: list[Run]) -> None:
    preset = load_preset("paper", "simpa", "sine-line")
    for experiment in (*(run.experiment for run in (*runs, *images)), preset):
        command = train_command(experiment, Path("runs/a b"))
        assert command is not None
        program, name, *arguments = shlex.split(command)
        assert (program, name) == ("fewsure", "train")
        options, again = read_experiment(arguments)
        assert again == experiment
        assert options.out == Path("runs/a b")


def test_names_are_escaped_and_runs_on_other_tasks_are_pointed_out(tmp_path: Path) -> None:
    runs = [
        regression_run(tmp_path / "<script>alert(1)", TINY_SIMPA),
        regression_run(tmp_path / "_$1_a & b$", TINY_SIMPA, shot=3),
        regression_run(tmp_path / '" onload="x', TINY_SIMPA, shot=3),
    ]
    evaluate_run(runs[1], CPU, tasks=TASKS + 1, seed=0)
    page = report(runs, tmp_path / "<b>.html").page.read_text(encoding="utf-8")
    found = Page(page)
    assert found.tags.count("script") == 1
    assert "b" not in found.tags
    assert not re.search(r'<[^>]* onload="', page)
    assert {"<script>alert(1)", "_$1_a & b$", '" onload="x'} <= {row[0] for row in found.rows}
    assert "not judged on the same" in page


def test_runs_on_the_same_tasks_raise_no_notice(page: str) -> None:
    assert "not judged on the same" not in page
    assert "problems" not in Page(page).text


def test_a_run_given_twice_is_shown_once_with_the_evaluation_it_has(
    written: list[Path], runs: list[Run], tmp_path: Path
) -> None:
    before, twice = evaluations(runs), [runs[1].folder, runs[1].folder / ".." / "maml"]
    found = write_report(twice, tmp_path / "report.html", CPU, tasks=2 * TASKS, seed=1)
    page = found.page.read_text(encoding="utf-8")
    assert evaluations(runs) == before
    assert [row[0] for row in Page(page).rows[1:]] == ["MAML", "MAML + noise"]
    assert "estimate, not a guarantee" not in page


def test_long_trainings_keep_their_spikes_and_the_page_stays_small(
    written: list[Path], runs: list[Run], tmp_path: Path
) -> None:
    run = Run.open(shutil.copytree(runs[0].folder, tmp_path / "long"))
    random = np.random.default_rng(0)
    values = random.lognormal(size=20_000)
    values[12_345] = 1e6
    lines = [dict(run.metrics()[-1]) | {"update": number + 1, "loss": value} for number, value in enumerate(values)]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report([run], tmp_path / "report.html").page
    assert page.stat().st_size < 1_000_000
    said = [point[3] for point in Page(page.read_text()).points["training_loss_sine_line_5_shot"]]
    assert len(said) <= 300
    assert "SImPa: loss 1e+06 at 12,346" in said
    kept = thinned(values.tolist())
    assert {0, 12_345, 19_999, int(values.argmin())} <= set(kept)
    assert len(read_csv(tmp_path / "report_files/training_loss_sine_line_5_shot.csv")) == 20_000


def test_figures_that_would_make_the_page_too_large_are_left_to_their_files(
    written: list[Path], runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = written[0].stat().st_size
    monkeypatch.setattr(page_module, "LARGEST_PAGE", full - 1000)
    found = report(runs, tmp_path / "report.html")
    page = found.page.read_text(encoding="utf-8")
    assert len(page.encode()) < full - 1000
    assert "Left out to keep the page small; see report_files/predictions_sine_line_5_shot_1.svg" in page
    assert len(found.figures) == len(written) - 1


# Images


def test_the_images_are_those_of_the_evaluation_with_its_probabilities(images: list[Run], image_page: Path) -> None:
    for run in images:
        shown = predict_unseen_images(calibrated(run, CPU), run.load(CPU).meta, seed=0)
        confidence, label = shown.probabilities.max(-1)
        records = run.evaluation_records()
        torch.testing.assert_close(confidence, records["confidence"])
        assert torch.equal(label == shown.labels, records["correct"])


def test_the_most_confident_mistakes_are_shown(images: list[Run], image_page: Path) -> None:
    for number, run in enumerate(images):
        records = run.evaluation_records()
        wrong = records["confidence"][~records["correct"]].sort(descending=True).values
        mistakes = confident_mistakes(predict_unseen_images(calibrated(run, CPU), run.load(CPU).meta, seed=0))
        assert [mistake.confidence for mistake in mistakes] == pytest.approx(wrong[:4].tolist())
        data = image_page.parent / "report_files" / f"mistakes_images_2_way_1_shot_{number + 1}.csv"
        rows = read_csv(data)
        drawn = [float(row["probability"]) for row in rows if row["is_true"] == "False"]
        assert drawn == pytest.approx(wrong[:4].tolist())  # of two classes, the wrong one is the confident one


def test_pictures_and_class_names_are_on_the_page(images: list[Run], image_page: Path) -> None:
    page = image_page.read_text(encoding="utf-8")
    found = Page(page)
    for figure in ("support", "queries"):
        assert f"{figure}_images_2_way_1_shot" in found.points
    assert page.count("data:image/png;base64") >= 2 + 6 + 2 * 4 * 2
    names = images[0].experiment.data.pool("test").classes
    said = [point[3] for points in found.points.values() for point in points]
    assert any(name in text for name in names for text in said)
    checksum = images[0].experiment.data.checksum("test")
    assert checksum is not None
    assert checksum in found.text
    assert len(page) < 5_000_000


def test_classification_has_the_papers_normalised_reliability(image_page: Path, images: list[Run]) -> None:
    rows = read_csv(image_page.parent / "report_files/reliability_images_2_way_1_shot.csv")
    result = json.loads((images[0].folder / "evaluation.json").read_text())["reliability"]
    filled = [(c, a) for c, a in zip(result["confidence"], result["accuracy"], strict=True) if c is not None]
    assert [(float(r["confidence"]), float(r["accuracy"])) for r in rows if r["method"] == "ProtoNet"] == filled
    svg = (image_page.parent / "report_files/reliability_images_2_way_1_shot.svg").read_text()
    assert "|confidence − accuracy|" in svg


# Certificates


def test_certificates_and_coverage_are_those_of_the_json(runs: list[Run], written: list[Path], tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(runs[0].folder, tmp_path / "certified"))
    record = certify_run(run, CPU, Request(tasks=40, bound_samples=4))
    found = Page(report([run], tmp_path / "report.html").page.read_text(encoding="utf-8"))
    rows = {row[0]: row[1:] for row in found.rows}
    assert numbers(rows["held-out certificate (betting)"][0]) == [round(record["held_out"]["limit"], 4)]
    measured = record["conformal"]["measured"][0]
    assert numbers(rows["coverage measured"][0]) == [round(measured["coverage"], 4), round(measured["error"], 4)]
    for bound in record["theorem_2"]["bounds"]:
        assert rows[f"Theorem 2, {bound['form']} form"][1] == ("yes" if bound["rigorous"] else "no")


# Runs that are missing, damaged or unfinished


def test_what_is_wrong_is_named_and_the_others_are_shown(
    written: list[Path], runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {}
    for name in (
        "config",
        "cut",
        "begun",
        "evaluation",
        "other-evaluation",
        "third-evaluation",
        "records",
        "metrics",
        "logged",
        "certificate",
    ):
        folders[name] = shutil.copytree(runs[1].folder, tmp_path / name)
    (folders["config"] / "config.json").write_text("{")
    checkpoint = folders["cut"] / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    (folders["begun"] / "checkpoint.safetensors").unlink()
    (folders["evaluation"] / "evaluation.json").write_text('{"format": 1, "algorithm": "maml"}')
    result = evaluations(runs)[1]
    result["mse"]["mean"] = float("nan")
    (folders["other-evaluation"] / "evaluation.json").write_text(json.dumps(result))
    result = evaluations(runs)[1] | {"seconds": "x"}
    (folders["third-evaluation"] / "evaluation.json").write_text(json.dumps(result))
    (shard,) = (folders["records"] / "evaluation").rglob("*.safetensors")
    shard.write_bytes(b"no")
    lines = (folders["metrics"] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folders["metrics"] / "metrics.jsonl").write_text(lines[0] + lines[1][:20])
    (folders["certificate"] / "certificate.json").write_text('{"held_out": 3}')
    odd = {"device": 10**400, "loss": "high", "gradient_norm": 1e308}
    (folders["logged"] / "metrics.jsonl").write_text(
        "".join(json.dumps(json.loads(line) | odd) + "\n" for line in lines)
    )
    arguments = [*folders.values(), tmp_path / "nowhere", runs[0].folder]
    out = tmp_path / "report.html"
    capsys.readouterr()
    assert main(["report", *map(str, arguments), "--out", str(out), "--device", "cpu", "--json"]) == 0
    problems = json.loads(capsys.readouterr().out)["problems"]
    expected = {
        "config": "left out: .* cannot be read",
        "cut": "left out: .* damaged or cut short",
        "begun": "left out: .* has no checkpoint",
        "evaluation": "left out: .* is damaged",
        "other-evaluation": "left out: .* is damaged",
        "third-evaluation": "left out: .* is damaged",
        "records": "without tests against other runs",
        "metrics": "its lines end at update 1 of 4",
        "certificate": "without its certificate",
        "nowhere": "left out: .* is not a run",
    }
    text = Page(out.read_text(encoding="utf-8")).text
    for name, says in expected.items():
        (problem,) = (problem for problem in problems if problem.startswith(f"{tmp_path / name}: "))
        assert re.search(says, problem), problem
        assert re.search(says, text)
    assert len(problems) == len(expected)
    shown = {row[0] for row in Page(out.read_text(encoding="utf-8")).rows}
    assert {"SImPa", "records", "metrics", "certificate"} <= shown
    assert not shown & {"config", "cut", "begun", "evaluation", "other-evaluation"}


def test_an_unfinished_run_is_shown_as_what_it_is(tmp_path: Path) -> None:
    run = regression_run(tmp_path / "half", TINY_MAML)
    config = json.loads((run.folder / "config.json").read_text())
    config["training"]["updates"] = 10
    (run.folder / "config.json").write_text(json.dumps(config))
    found = report([run], tmp_path / "report.html")
    assert [problem.says.split(":")[0] for problem in found.problems] == ["unfinished"]
    text = Page(found.page.read_text(encoding="utf-8")).text
    assert "after only 4 of 10 updates" in text
    assert "unfinished: 4 of 10 updates are made" in text


def test_with_no_run_to_show_it_is_an_error_and_nothing_is_written(runs: list[Run], tmp_path: Path) -> None:
    begun = Run.create(tmp_path / "begun", runs[0].experiment)
    with pytest.raises(FewsureError, match="begun has no checkpoint"):
        report([begun], tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun"]


def test_there_must_be_runs_and_a_place_for_the_page(runs: list[Run], tmp_path: Path) -> None:
    with pytest.raises(FewsureError, match="at least one run"):
        report([], tmp_path / "report.html")
    with pytest.raises(FewsureError, match="is a folder"):
        report(runs, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FewsureError, match="cannot be written"):
        report(runs, tmp_path / "file" / "report.html")
