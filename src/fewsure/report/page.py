"""From run folders to a report: evaluate what is not evaluated yet, draw, and write the page and its figures."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fewsure.data.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.files import write_atomically
from fewsure.report.curves import learning_curves_figure
from fewsure.report.drawing import figure_png
from fewsure.report.figures import comparison_figure, predictions_figure
from fewsure.report.markup import PageFigure, RunFacts, page
from fewsure.report.styles import run_styles
from fewsure.report.tables import setting
from fewsure.report.unseen import predict_unseen
from fewsure.training.runs import Run
from fewsure.workflow import evaluate_run

DRAWN_TASKS = 4


def write_report(
    runs: list[Run], out: Path, device: torch.device, *, tasks: int, seed: int, quiet: bool = False
) -> list[Path]:
    """Write the page `out` and its figures beside it; their paths, the page first.

    A run without an evaluation is evaluated on `tasks` unseen tasks. `seed` chooses these, and the ones that are drawn.
    """
    runs = list({run.folder.resolve(): run for run in runs}.values())
    if not runs:
        raise FewsureError("expected at least one run to report, but got none")
    if out.is_dir():
        raise FewsureError(f"expected --out to be a file such as report.html, but {out} is a folder")
    # What can go wrong with the runs or with `out` goes wrong here, before a long evaluation.
    checkpoints = [run.load(device) for run in runs]
    folder = out.with_name(f"{out.stem}_files")
    with _writing(out):
        folder.mkdir(parents=True, exist_ok=True)
    styles = run_styles([run.experiment.algorithm_name for run in runs], [run.folder for run in runs])
    results = [run.evaluation() or evaluate_run(run, device, tasks=tasks, seed=seed, quiet=quiet) for run in runs]
    facts = [
        RunFacts(run, style, checkpoint, run.metrics(), result)
        for run, style, checkpoint, result in zip(runs, styles, checkpoints, results, strict=True)
    ]
    figures = [
        *(figure for group in _by_setting(facts) for figure in _setting_figures(group, seed)),
        PageFigure(
            "learning_curves",
            figure_png(learning_curves_figure([fact.metrics for fact in facts], styles)),
            "What was logged in training: each point is a mean over the updates since the last one.",
        ),
    ]
    paths = [folder / f"{figure.name}.png" for figure in figures]
    with _writing(out):
        for path, figure in zip(paths, figures, strict=True):
            write_atomically(path, figure.png)
        write_atomically(out, page(facts, figures))
    return [out, *paths]


def _by_setting(facts: list[RunFacts]) -> list[list[RunFacts]]:
    """The runs of each kind of task."""
    groups: dict[str, list[RunFacts]] = {}
    for fact in facts:
        groups.setdefault(setting(fact.result), []).append(fact)
    return list(groups.values())


def _setting_figures(facts: list[RunFacts], seed: int) -> list[PageFigure]:
    """What runs on one kind of task predict, where that can be drawn, and how they compare."""
    styles, title = [fact.style for fact in facts], setting(facts[0].result)
    name = re.sub(r"\W+", "_", title)
    figures = []
    if isinstance(facts[0].run.experiment.data, SineLine):  # one variable, and the truth is known
        predictions = [
            predict_unseen(fact.run.experiment, fact.checkpoint.meta, tasks=DRAWN_TASKS, seed=seed) for fact in facts
        ]
        figures.append(
            PageFigure(
                f"predictions_{name}",
                figure_png(predictions_figure(predictions, styles)),
                f"{title}: predictions on {DRAWN_TASKS} unseen tasks after adapting to the support points (the paper's "
                "Figure 1).",
            )
        )
    score, number = ("accuracy", 3) if "accuracy" in facts[0].result else ("error", 2)
    comparison = PageFigure(
        f"comparison_{name}",
        figure_png(comparison_figure([fact.result for fact in facts], styles)),
        f"{title}: {score}, calibration and reliability on unseen tasks, with 95 % intervals (the paper's Figure "
        f"{number}). Hatched bars and dotted lines are the paper's printed values; where there are none, the paper has "
        "none.",
    )
    return [*figures, comparison]


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FewsureError(f"the report cannot be written to {out} ({error.strerror}); choose another --out") from error
