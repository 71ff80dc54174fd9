"""The report says what the evaluations say, in one file that needs nothing else."""

import base64
import csv
import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.stats
import torch

from fewsure.certification.certify import Request, certify_run
from fewsure.cli.main import main
from fewsure.cli.train import read_arguments
from fewsure.errors import FewsureError
from fewsure.evaluation.calibrate import calibrated
from fewsure.evaluation.evaluate import evaluate
from fewsure.evaluation.metrics.calibration import LEVELS, calibration_errors, quantile_reliability
from fewsure.pipeline import evaluate_run
from fewsure.report import page as page_module
from fewsure.report.comparison import comparison_drawings
from fewsure.report.evaluation_tables import evaluation_tables
from fewsure.report.gallery import confident_mistakes
from fewsure.report.html import Report, picture, points
from fewsure.report.learning_curves import learning_curves_drawings, thinned
from fewsure.report.page import small_enough, write_report
from fewsure.report.reference import REFERENCE, printed_for
from fewsure.report.significance import best_and_tied
from fewsure.report.styles import ALGORITHM_COLOURS, SPARE_COLOURS, RunStyle, display_name, run_styles
from fewsure.report.train_command import train_command
from fewsure.report.unseen_tasks import predict_unseen, predict_unseen_images
from fewsure.training.experiment import load_preset
from fewsure.training.runs import Run

from .report_runs import CPU, TASKS, copied, report

Runs = list[Run]
SINE_LINE = REFERENCE["sine-line, 5-shot"]
SVG = "{http://www.w3.org/2000/svg}"


class Reported(NamedTuple):
    """A report of SImPa with its certificate and MAML on sine-line, and of ProtoNet and BMAML on images."""

    report: Report
    out: Path
    figures: list[Path]
    html: str
    certificate: dict[str, Any]

    def data(self, name: str) -> list[dict[str, str]]:
        return read_csv(self.out.parent / "report_files" / f"{name}.csv")


@pytest.fixture(scope="module")
def reported(sine_line_runs: Runs, image_runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    certificate = certify_run(sine_line_runs[0], CPU, Request(tasks=40, bound_samples=4))
    reports: list[Report] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_module, "small_enough", lambda one: reports.append(one) or small_enough(one))
        written = report([*sine_line_runs, *image_runs], tmp_path_factory.mktemp("report") / "new" / "report.html")
    assert written.problems == []
    html = written.page.read_text(encoding="utf-8")
    return Reported(reports[0], written.page, written.figures, html, certificate)


@pytest.fixture(scope="module")
def page(reported: Reported) -> "Page":
    return Page(reported.html)


class Page:
    """What a browser would find, if the page is well-formed."""

    def __init__(self, html: str) -> None:
        root = ElementTree.fromstring(re.sub(r"<script>.*?</script>", "", html, count=1, flags=re.DOTALL))
        self.tags = {part.tag for part in root.iter()}
        self.text = " ".join(" ".join(root.itertext()).split())
        figures = [figure for figure in root.iter("figure") if "id" in figure.attrib]
        self.points = {figure.attrib["id"]: json.loads(figure.attrib["data-points"]) for figure in figures}
        self.rows = {text_of(row[0]): list(row) for row in root.iter("tr")}
        """The cells of each table row, by the text of the first one."""

    def numbers(self, name: str) -> list[float]:
        """In a row, without what stands below a figure in small print."""
        return [number for cell in self.rows[name][1:] for number in numbers(text_of(cell).split("paper")[0])]

    def paper(self, name: str) -> dict[int, str]:
        """Column → what stands in small print."""
        found = {column: cell.findtext("span[@class='paper']") for column, cell in enumerate(self.rows[name])}
        return {column: text for column, text in found.items() if text is not None}


def text_of(cell: ElementTree.Element) -> str:
    return "".join(cell.itertext()).strip()


def numbers(text: str) -> list[float]:
    plain = text.replace(",", "").replace("−", "-")
    return [float(number) for number in re.findall(r"[-+]?\d+\.?\d*", plain)]


def calibration_of(result: dict[str, Any]) -> list[float]:
    return [round(value, 4) for error in ("ece", "mce") for value in (result[error], *result[f"{error}_ci95"])]


def numbers_of(result: dict[str, Any]) -> list[float]:
    means = [round(result[score][part], 3) for score in ("mse", "nll") for part in ("mean", "ci95")]
    return [result["tasks"], result["samples"], *means, *calibration_of(result)]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def evaluation_of(run: Run) -> dict[str, Any]:
    return run.evaluation() or {}


def table_lines(results: list[dict[str, Any]]) -> list[str]:
    (table,) = evaluation_tables(results)
    return table.text().splitlines()


@pytest.fixture
def headlines(sine_line_runs: Runs) -> list[dict[str, Any]]:
    """Evaluations without the rows on noise."""
    results = [evaluation_of(run) for run in sine_line_runs]
    return [{name: value for name, value in result.items() if name != "with_noise"} for result in results]


# The paper's numbers


def test_the_papers_numbers_are_those_it_prints_and_errors_follow_from_its_reliability(paper: dict) -> None:
    printed = paper["regression_sine_line_5shot"]
    assert {display_name(algorithm) for algorithm in SINE_LINE} == printed["mse"].keys()
    for algorithm, ours in SINE_LINE.items():
        name, reliability = display_name(algorithm), ours["reliability"]
        scores = [ours["mse"]["mean"], ours["ece"], ours["mce"]]
        assert scores == [round(printed[score][name], 4) for score in ("mse", "ece", "mce")]
        assert reliability["levels"] == printed["reliability"]["levels"] == list(LEVELS)
        assert reliability["observed"] == [round(value, 4) for value in printed["reliability"][name]]
        errors = calibration_errors(torch.tensor(reliability["observed"], dtype=torch.float64))
        assert [float(error) for error in errors] == pytest.approx(scores[1:], abs=1e-4)  # both sides are rounded


def test_the_papers_figure_3_and_table_1_are_those_it_prints(paper: dict) -> None:
    calibration = paper["mini_imagenet_calibration"]
    for name, bins in calibration["reliability_5way_1shot"].items():
        ours = REFERENCE["mini-imagenet, 5-way 1-shot"][name.lower()]
        for column in ("confidence", "accuracy"):
            assert ours["reliability"][column] == [round(value, 4) for value in bins[column]]
        for error in ("ece", "mce"):
            assert ours[error] == round(calibration[error][name], 4)
    for name, (one_shot, _) in paper["accuracy"]["omniglot/conv4"].items():
        ours = printed_for({"algorithm": name.lower(), "data": "omniglot", "way": 5, "shot": 1})
        assert list(ours["accuracy"].values()) == [pytest.approx(value / 100) for value in one_shot]


# Predictions


def test_the_drawn_tasks_are_the_first_of_the_evaluation_and_the_same_for_every_run(sine_line_runs: Runs) -> None:
    drawn = [predict_unseen(run.experiment, run.load(CPU).meta, tasks=4, seed=3) for run in sine_line_runs]
    for run, tasks in zip(sine_line_runs, drawn, strict=True):
        _, records = evaluate(run.experiment, run.load(CPU).meta, tasks=7, seed=3)
        noise_std = run.experiment.data.noise_std
        again = [
            quantile_reliability(torch.tensor(functions), torch.tensor(truth), noise_std)
            for functions, truth in zip(tasks.predictions, tasks.truth, strict=True)
        ]
        torch.testing.assert_close(torch.stack(again), records["reliability"][:4])
    for name in ("support_x", "support_y", "x", "truth"):
        np.testing.assert_array_equal(*(getattr(tasks, name) for tasks in drawn))
    assert [tasks.predictions.shape for tasks in drawn] == [(4, 32, 101), (4, 1, 101)]


# Names and colours


def test_an_algorithm_keeps_its_colour_and_no_two_runs_share_one() -> None:
    algorithms = ["maml", "simpa", "simpa", "simpa", "platipus"]
    styles = run_styles(algorithms, [Path("runs") / str(index) for index in range(5)])
    assert [style.label for style in styles] == ["MAML", "1", "2", "3", "PLATIPUS"]
    for index in (0, 1, 4):
        assert styles[index].colour == ALGORITHM_COLOURS[algorithms[index]]
    assert len({style.colour for style in styles}) == 5
    same_name = run_styles(["maml", "maml"], [Path("a/run"), Path("b/run")])
    assert [style.label for style in same_name] == ["a/run", "b/run"]


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


# Tables


def test_the_text_table_has_the_numbers_of_the_results_and_of_the_paper(headlines: list[dict[str, Any]]) -> None:
    header, simpa, paper_simpa, maml, paper_maml = table_lines(headlines)
    assert [simpa.split()[0], maml.split()[0]] == ["simpa", "maml"]
    assert [numbers(simpa), numbers(maml)] == [numbers_of(result) for result in headlines]
    assert paper_simpa.startswith("paper: SImPa")
    assert numbers(paper_simpa) == [1000, 1.58, 0.1473, 0.2295]
    assert numbers(paper_maml) == [1000, 2.32, 0.2740, 0.5139]
    assert simpa.index("[") == maml.index("[")
    assert header.index("ECE") == simpa.index(f"{headlines[0]['ece']:.4f} [") == paper_simpa.index("0.1473")


def test_a_label_names_its_row_and_noise_and_the_paper_have_rows_of_their_own(headlines: list[Any]) -> None:
    result = headlines[0]
    noisy = {name: result[name] for name in ("ece", "ece_ci95", "mce", "mce_ci95")} | {"ece": 0.1234}
    lines = table_lines([result | {"label": "no warm-up", "with_noise": noisy}, result | {"label": "warm-up"}])
    rows = ["no warm-up", "no warm-up + noise", "paper: SImPa", "warm-up"]
    assert [line.split("  ")[0] for line in lines[1:]] == rows
    assert numbers(lines[2]) == [TASKS, *calibration_of(noisy)]
    assert "paper" not in "".join(table_lines([result | {"shot": 10}]))  # it has no numbers there


# Best and tied


def test_what_does_not_differ_from_the_best_on_the_same_tasks_is_tied_with_it() -> None:
    generator = torch.Generator().manual_seed(0)
    difficulty = 5 * torch.rand(200, generator=generator)  # tasks vary far more than methods do
    noise = [0.1 * torch.randn(200, generator=generator) for _ in range(3)]
    scores = [difficulty + noise[0], difficulty + noise[1], difficulty + noise[2] + 0.1]
    tied, worse = (scipy.stats.ttest_rel(scores[0], score).pvalue for score in scores[1:])
    assert tied > 0.05 > worse
    assert scipy.stats.ttest_ind(scores[0], scores[2]).pvalue > 0.05  # unpaired, nobody could tell
    flat = torch.tensor(LEVELS).expand(200, -1)
    shift = 0.1 * torch.randn(200, 1, generator=generator)
    reliability = [flat + shift + 0.02, flat - shift - 0.02, flat + shift + 0.05]
    records = [
        {"mse": score, "nll": score, "reliability": row, "fingerprint": torch.arange(200)}
        for score, row in zip(scores, reliability, strict=True)
    ]
    results = []
    for record in records:
        ece, mce = calibration_errors(record["reliability"].double().mean(0))
        mean = {"mean": float(record["mse"].mean())}
        results.append({"mse": mean, "nll": mean, "ece": float(ece), "mce": float(mce)})
    marked = best_and_tied(results, [[record] for record in records])
    pieces = [
        [{name: value[first : first + 60] for name, value in record.items()} for first in range(0, 200, 60)]
        for record in records
    ]
    assert marked == best_and_tied(results, pieces)
    others = [[record | {"fingerprint": torch.arange(200) + number}] for number, record in enumerate(records)]
    assert best_and_tied(results, others) is None  # they are of different tasks
    assert {"mse", "nll"} <= marked[0] & marked[1]
    assert marked[2] == set()  # its calibration error is larger on every resample of the same tasks
    assert {"ece", "mce"} <= marked[0] | marked[1]


def test_bold_cells_are_the_best_and_the_tied(sine_line_runs: Runs, page: Page) -> None:
    names, results = ("SImPa", "MAML"), [evaluation_of(run) for run in sine_line_runs]
    records = [run.evaluation_records() for run in sine_line_runs]
    for column, score in ((3, "mse"), (4, "nll")):
        best = min((0, 1), key=lambda number: results[number][score]["mean"])
        other = scipy.stats.ttest_rel(*(record[score].double() for record in records)).pvalue
        expected = {names[best]} if other < 0.05 else set(names)
        assert {name for name in names if page.rows[name][column].find("strong") is not None} == expected


# The page


def test_the_page_and_its_figures_are_written_as_png_svg_and_csv(reported: Reported) -> None:
    sine_line = "error reliability calibration predictions_1 training_loss training_bound training_kl training_gradient"
    classes = (
        "accuracy reliability calibration support queries mistakes_3 mistakes_4 shots training_loss training_gradient"
    )
    names = [
        re.sub(r"([a-z]+(?:_[a-z]+)?)(_\d)?$", rf"\1_{setting}\2", panel)
        for setting, panels in (("sine_line_5_shot", sine_line), ("images_2_way_1_shot", classes))
        for panel in panels.split()
    ]
    figures = reported.figures
    assert [figure.name for figure in figures] == [f"{name}.{end}" for name in names for end in ("svg", "png", "csv")]
    for path in figures:
        assert path.parent == reported.out.parent / "report_files"
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        elif path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag == f"{SVG}svg"
        else:
            assert len(read_csv(path)) > 1
    assert sorted(reported.out.parent.iterdir()) == [reported.out, reported.out.parent / "report_files"]


def test_the_page_refers_to_nothing_outside_itself_and_runs_one_script(reported: Reported, page: Page) -> None:
    html = reported.html
    own = re.sub(r'base64,[^"]*', "", html.split("<script>")[0])
    assert html.count("<script") == 1
    assert not page.tags & {"script", "link", "iframe", "object", "embed", "base"}
    assert not re.search(r"https?:|//[a-z]|src=|url\((?!#)|@import", own)
    assert all(link.startswith(("#", "data:image/png")) for link in re.findall(r'href="([^"]*)"', html))
    (script,) = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    assert not re.search(r"fetch|XMLHttp|import|eval|http", script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in html
    names = re.findall(r'\bid="([^"]*)"', html)
    assert len(names) == len(set(names))
    assert set(re.findall(r"url\(#([^)]*)\)", html)) | set(re.findall(r'href="#([^"]*)"', html)) <= set(names)
    assert len(html.encode()) < 5_000_000


def test_the_pages_table_has_the_numbers_of_the_results_and_of_the_paper(page: Page, sine_line_runs: Runs) -> None:
    for run in sine_line_runs:
        result, name = evaluation_of(run), display_name(run.experiment.algorithm_name)
        printed, noisy = SINE_LINE[name.lower()], f"{name} + noise"
        assert page.numbers(name) == numbers_of(result)
        assert page.numbers(noisy) == [TASKS, *calibration_of(result["with_noise"])]
        ours = [result["mse"]["mean"], result["nll"]["mean"], result["ece"], result["mce"]]
        unrounded = [float(cell.attrib["data-value"]) for cell in page.rows[name][1:]]
        assert unrounded == [result["tasks"], result["samples"], *ours]
        assert len(page.rows[name]) == len(page.rows[noisy]) == 7
        assert page.paper(name).keys() == {3, 5, 6}  # the paper prints no NLL
        for column, theirs in ((3, printed["mse"]["mean"]), (5, printed["ece"]), (6, printed["mce"])):
            assert page.paper(name)[column].startswith("paper ")
            difference = round(ours[column - 3] - theirs, 2 if column == 3 else 4)
            assert numbers(page.paper(name)[column]) == [theirs, difference]
    result = evaluation_of(sine_line_runs[0])
    mse = f"{result['mse']['mean']:.3f} ± {result['mse']['ci95']:.3f} (paper: 1.58)"
    ece = f"{result['ece']:.4f} (paper: 0.1473)"
    assert f"SImPa has a mean squared error of {mse} and an expected calibration error of {ece} on 20" in page.text


def test_the_data_behind_the_figures_are_the_results(reported: Reported, sine_line_runs: Runs) -> None:
    def rows(panel: str, method: str) -> list[dict[str, str]]:
        return [row for row in reported.data(f"{panel}_sine_line_5_shot") if row["method"] == method]

    for name, run in zip(("SImPa", "MAML"), sine_line_runs, strict=True):
        result, (error,) = evaluation_of(run), rows("error", name)
        assert [float(error["value"]), error["source"]] == [result["mse"]["mean"], "run"]
        for row in rows("calibration", name):
            bounds = [float(row[column]) for column in ("value", "low", "high")]
            assert bounds == [result[row["score"]], *result[f"{row['score']}_ci95"]]
        observed = [float(row["observed"]) for row in rows("reliability", name)]
        assert observed == result["reliability"]["observed"]
        logged = [float(row["value"]) for row in rows("training_loss", name)]
        assert logged == [line["loss"] for line in run.metrics()]
    assert {row["score"] for row in rows("calibration", "SImPa")} == {"ece", "mce"}
    assert {row["quantity"] for row in rows("training_bound", "SImPa")} == {"bound", "R_0", "R_i", "clipped_loss"}
    simpa = [float(row["value"]) for row in rows("training_kl", "SImPa") if row["quantity"] == "kl"]
    assert simpa == [line["kl"] for line in sine_line_runs[0].metrics()]
    printed = [float(row["observed"]) for row in rows("reliability", "paper: SImPa")]
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
        printed = REFERENCE["omniglot, 5-way 1-shot"]["simpa"]["accuracy"]["mean"]
        assert drawn["paper: SImPa"]["value"] == pytest.approx(1 - printed)


def test_what_is_said_under_the_pointer_stands_where_the_marker_is(reported: Reported, page: Page) -> None:
    points = page.points["reliability_sine_line_5_shot"]
    assert {point[2] for point in points} == {"0", "0 paper", "1", "1 paper"}
    root = ElementTree.parse(reported.out.parent / "report_files/reliability_sine_line_5_shot.svg").getroot()
    owned = [part for part in root.iter() if part.get("data-of") == "0"]
    markers = [(float(use.get("x", 0)), float(use.get("y", 0))) for part in owned for use in part.iter(f"{SVG}use")]
    said = [(point[0], point[1]) for point in points if point[2] == "0"]
    np.testing.assert_allclose(said, markers, atol=0.06)
    assert all(point[3].startswith("SImPa: expected ") for point in points if point[2] == "0")


def test_every_axis_says_what_it_shows_and_in_which_unit(reported: Reported) -> None:
    drawings = reported.report.figures
    assert len(drawings) >= 16
    units = re.compile(r"probabilit|share of|accuracy|unit|number|nats|loss|norm|class")
    for drawing in drawings:
        panels = [axes for axes in drawing.figure.axes if axes.get_visible() and axes.axison]
        places = [axes.get_position() for axes in panels]
        for axes, place in zip(panels, places, strict=True):
            if place.y0 == min(other.y0 for other in places):  # panels above share the lowest one's label
                assert units.search(axes.get_xlabel()), drawing.name
            if place.x0 == min(other.x0 for other in places):
                named = [label.get_text() for label in axes.get_yticklabels()]
                assert units.search(axes.get_ylabel()) or "SImPa" in named or "ProtoNet" in named, drawing.name
            if not drawing.name.startswith(("queries", "mistakes")):
                assert axes.get_title(), drawing.name


def test_the_page_says_what_its_numbers_mean_and_how_they_were_made(page: Page, sine_line_runs: Runs) -> None:
    result = evaluation_of(sine_line_runs[0])
    for text in (
        "32 functions are sampled",
        "no observation noise",
        "no post-hoc scaling",
        "estimate, not a guarantee",
        "vacuous, since above 1",
        "latent = 4",
        "4 of 4",
        "0 in training, 0 in evaluation",
        f"{result['seconds']:,.1f} s on cpu, fewsure {result['version']}",
        f"fewsure evaluate {sine_line_runs[0].folder} --tasks 20 --seed 0",
        "data checksum none: the tasks are generated from the seed",
    ):
        assert text in page.text
    assert "not judged on the same" not in page.text
    assert "problems" not in page.text


def test_the_command_on_the_page_makes_the_same_experiment(sine_line_runs: Runs, image_runs: Runs) -> None:
    preset = load_preset("paper", "simpa", "sine-line")
    for experiment in (*(run.experiment for run in (*sine_line_runs, *image_runs)), preset):
        command = train_command(experiment, Path("runs/a b"))
        assert command is not None
        program, name, *arguments = shlex.split(command)
        assert (program, name) == ("fewsure", "train")
        options, again = read_arguments(arguments)
        assert again == experiment
        assert options.out == Path("runs/a b")


def test_names_are_escaped_and_runs_on_other_tasks_are_pointed_out(sine_line_runs: Runs, tmp_path: Path) -> None:
    names = ["<script>alert(1)", "_$1_a & b$", '" onload="x']
    odd = [copied(sine_line_runs[1], tmp_path / name) for name in names]
    evaluate_run(odd[1], CPU, tasks=TASKS + 1, seed=0)
    html = report(odd, tmp_path / "<b>.html").page.read_text(encoding="utf-8")
    page = Page(html)
    assert html.count("<script") == 1
    assert not page.tags & {"script", "b"}
    assert not re.search(r'<[^>]* onload="', html)
    assert set(names) <= page.rows.keys()
    assert "not judged on the same" in page.text


def test_a_run_given_twice_is_shown_once_with_the_evaluation_it_has(sine_line_runs: Runs, tmp_path: Path) -> None:
    folder, before = sine_line_runs[1].folder, evaluation_of(sine_line_runs[1])
    twice = [folder, folder / ".." / folder.name]
    found = write_report(twice, tmp_path / "report.html", CPU, tasks=2 * TASKS, seed=1)
    page = Page(found.page.read_text(encoding="utf-8"))
    assert evaluation_of(sine_line_runs[1]) == before
    assert list(page.rows) == ["method", "MAML", "MAML + noise"]
    assert "estimate, not a guarantee" not in page.text


def test_long_trainings_keep_their_spikes_and_their_figures_stay_small() -> None:
    values = np.random.default_rng(0).lognormal(size=20_000)
    values[12_345] = 1e6
    lines = [{"update": number + 1, "loss": value} for number, value in enumerate(values)]
    style = RunStyle("SImPa", "#000000", "0")
    (drawing,) = learning_curves_drawings("long", "long", [(style, lines)])
    assert len(picture(drawing, [])) + len(points(drawing)) < 100_000
    said = [point[3] for point in drawing.points()]
    assert len(said) <= 300
    assert "SImPa: loss 1e+06 at 12,346" in said
    assert {0, 12_345, 19_999, int(values.argmin())} <= set(thinned(values.tolist()))
    assert len(list(csv.DictReader(drawing.csv().splitlines()))) == 20_000


def test_figures_that_would_make_the_page_too_large_are_left_to_their_files(
    reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = len(reported.html.encode())
    monkeypatch.setattr(page_module, "LARGEST_PAGE", full - 1000)
    text = small_enough(reported.report)
    assert len(text.encode()) < full - 1000
    assert "Left out to keep the page small; see report_files/predictions_sine_line_5_shot_1.svg" in text
    assert text.count("Left out") == 1


# Images


def test_images_and_mistakes_have_the_probabilities_of_the_evaluation(image_runs: Runs, reported: Reported) -> None:
    for number, run in enumerate(image_runs, start=3):
        shown = predict_unseen_images(calibrated(run, CPU), run.load(CPU).meta, seed=0)
        confidence, label = shown.probabilities.max(-1)
        records = run.evaluation_records()
        torch.testing.assert_close(confidence, records["confidence"])
        assert torch.equal(label == shown.labels, records["correct"])
        wrong = records["confidence"][~records["correct"]].sort(descending=True).values[:4].tolist()
        assert [mistake.confidence for mistake in confident_mistakes(shown)] == pytest.approx(wrong)
        rows = reported.data(f"mistakes_images_2_way_1_shot_{number}")
        drawn = [float(row["probability"]) for row in rows if row["is_true"] == "False"]
        assert drawn == pytest.approx(wrong)  # of two classes, the wrong one is the confident one


def test_pictures_classes_and_the_checksum_are_on_the_page(image_runs: Runs, reported: Reported, page: Page) -> None:
    assert {f"{figure}_images_2_way_1_shot" for figure in ("support", "queries")} <= page.points.keys()
    assert reported.html.count("data:image/png;base64") >= 2 + 6 + 2 * 4 * 2
    data = image_runs[0].experiment.data
    said = [point[3] for points in page.points.values() for point in points]
    assert any(name in text for name in data.pool("test").classes for text in said)
    assert data.checksum("test") in page.text


def test_classification_has_the_papers_normalised_reliability(reported: Reported, image_runs: Runs) -> None:
    rows = reported.data("reliability_images_2_way_1_shot")
    result = evaluation_of(image_runs[0])["reliability"]
    filled = [(c, a) for c, a in zip(result["confidence"], result["accuracy"], strict=True) if c is not None]
    assert [(float(r["confidence"]), float(r["accuracy"])) for r in rows if r["method"] == "ProtoNet"] == filled
    svg = (reported.out.parent / "report_files/reliability_images_2_way_1_shot.svg").read_text()
    assert "|confidence − accuracy|" in svg


# Certificates


def test_certificates_and_coverage_are_those_of_the_json(reported: Reported, page: Page) -> None:
    rows = {name: [cell.text or "" for cell in row[1:]] for name, row in page.rows.items()}
    record = reported.certificate
    assert numbers(rows["held-out certificate (betting)"][0]) == [round(record["held_out"]["limit"], 4)]
    measured = record["conformal"]["measured"][0]
    assert numbers(rows["coverage measured"][0]) == [round(measured["coverage"], 4), round(measured["error"], 4)]
    for bound in record["theorem_2"]["bounds"]:
        assert rows[f"Theorem 2, {bound['form']} form"][1] == ("yes" if bound["rigorous"] else "no")


# Runs that are missing, damaged or unfinished


def edited(**changes: Any) -> Callable[[bytes], bytes]:
    """Change an object of JSON, or each of several lines."""

    def change(content: bytes) -> bytes:
        objects = [content] if content.startswith(b"{\n") else content.splitlines()
        return b"\n".join(json.dumps(json.loads(one) | changes).encode() for one in objects)

    return change


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "config": ("config.json", lambda content: b"{", "left out: .* cannot be read"),
    "unfinished": (
        "config.json",
        lambda content: content.replace(b'"updates": 4', b'"updates": 10'),
        "unfinished: 4 of 10 updates are made",
    ),
    "begun": ("checkpoint.safetensors", lambda content: None, "left out: .* has no checkpoint"),
    "cut": ("checkpoint.safetensors", lambda content: content[:100], "left out: .* damaged or cut short"),
    "evaluation": ("evaluation.json", lambda content: b'{"algorithm": "maml", "format": 1}', "left out: .* is damaged"),
    "no-ece": ("evaluation.json", lambda content: content.replace(b'"ece"', b'"else"'), "left out: .* is damaged"),
    "infinite": ("evaluation.json", edited(mse={"mean": math.nan, "ci95": 1.0}), "left out: .* is damaged"),
    "seconds": ("evaluation.json", edited(seconds="x"), "left out: .* is damaged"),
    "records": ("evaluation/*/*.safetensors", lambda content: b"no", "without tests against other runs"),
    "metrics": ("metrics.jsonl", lambda content: content[: content.index(b"\n") + 20], "lines end at update 1 of 4"),
    "logged": ("metrics.jsonl", edited(device=10**400, loss="high", gradient_norm=1e308), ""),
    "certificate": ("certificate.json", lambda content: b'{"held_out": 3}', "without its certificate"),
}
"""Folder of a run → the file that is damaged, how, and what the report says."""


def test_what_is_wrong_is_named_and_the_others_are_shown(
    sine_line_runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (file, damaged, _) in DAMAGE.items():
        folder = copied(sine_line_runs[1], tmp_path / name).folder
        path = next(folder.glob(file), folder / file)
        content = damaged(path.read_bytes() if path.is_file() else b"")
        path.unlink() if content is None else path.write_bytes(content)
    folders, out = (
        [*(tmp_path / name for name in (*DAMAGE, "nowhere")), sine_line_runs[0].folder],
        tmp_path / "out.html",
    )
    capsys.readouterr()
    assert main(["report", *map(str, folders), "--out", str(out), "--device", "cpu", "--json"]) == 0
    problems = json.loads(capsys.readouterr().out)["problems"]
    page = Page(out.read_text(encoding="utf-8"))
    expected = {name: says for name, (_, _, says) in DAMAGE.items() if says} | {"nowhere": "left out: .* is not a run"}
    for name, says in expected.items():
        (problem,) = (problem for problem in problems if problem.startswith(f"{tmp_path / name}: "))
        assert re.search(says, problem), problem
        assert re.search(says, page.text)
    assert len(problems) == len(expected)
    assert {"SImPa", "records", "metrics", "certificate", "unfinished", "logged"} <= page.rows.keys()
    assert not page.rows.keys() & {name for name, says in expected.items() if says.startswith("left out")}
    assert "after only 4 of 10 updates" in page.text


def test_without_runs_or_a_place_for_the_page_nothing_is_written(sine_line_runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    begun = Run.create(tmp_path / "begun", sine_line_runs[0].experiment)
    for given, out, says in (
        ([], "report.html", "at least one run"),
        ([begun], "report.html", "begun has no checkpoint"),
        (sine_line_runs, "", "is a folder"),
        (sine_line_runs, "file/report.html", "cannot be written"),
    ):
        with pytest.raises(FewsureError, match=says):
            report(given, tmp_path / out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "file"]
