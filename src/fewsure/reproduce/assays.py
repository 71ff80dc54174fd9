"""FS-Mol's protocol (Stanley et al., 2021): rank the molecules of a test assay when 16 to 128 of them are known.

Each test assay has ten random stratified support sets of each size. All other molecules are queries. A score is the
mean over the support sets of an assay, and means, intervals and paired tests are over assays.

    delta_auprc             the area under the precision-recall curve of p = P(active), less the share of actives
    top_tenth               the share of actives among the tenth of the queries with the largest p
    nll, brier, auc, ece    of p
    coverage, set_size      of sets that should hold 90 % of the labels. Their threshold comes from the validation
                            assays in the same protocol (theory/conformal)
"""

import csv
import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sklearn
import torch
from torch import Tensor

from fewsure.core import streams
from fewsure.core.config import from_json
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.core.places import data_root
from fewsure.core.progress import ProgressLine
from fewsure.data.pools import Split
from fewsure.data.sets.fs_mol import FsMol
from fewsure.errors import FewsureError
from fewsure.evaluation.calibrate import calibrated
from fewsure.evaluation.evaluate import score_blocks, shared_noise, with_noise
from fewsure.evaluation.metrics.calibration import binned, binned_errors
from fewsure.evaluation.metrics.paired import PairedScores
from fewsure.evaluation.metrics.ranking import top_precision
from fewsure.evaluation.metrics.scores import brier_score, class_probabilities, negative_log_likelihood
from fewsure.evaluation.metrics.summary import TaskTotal, mean_over_tasks
from fewsure.evaluation.scoring.predict import Predict
from fewsure.report.drawing import figure_png
from fewsure.report.tables import Table
from fewsure.reproduce.assays_page import assays_figure, assays_page, assays_table
from fewsure.reproduce.results import Row, merge
from fewsure.reproduce.run import Job, Reproduction
from fewsure.theory.conformal import conformal_threshold, prediction_sets, probability_scores
from fewsure.training.runs import Run
from fewsure.types import Facts, Noise, Task
from fewsure.version import __version__

SUPPORTS = (16, 32, 64, 128)
DRAWS = 10
"""Support sets of each size and assay."""
ALPHA = 0.1
"""The share of labels that sets may miss."""
TOP = 0.1
TREES = 100
OF_ASSAYS = ("delta_auprc", "top_tenth", "nll")
"""The scores that a row has of each assay, for paired tests."""

Predictions = Iterable[tuple[Tensor, Tensor]]
"""The probabilities (draws, N, 2) of the queries of each assay, and their labels (draws, N)."""
Predicted = Callable[[Split], Predictions]


def sampled(data: FsMol, split: Split, support: int, seed: int) -> Iterator[tuple[Task, Facts]]:
    """The tasks of each assay, DRAWS at a time: the same ones for every method."""
    tasks: Any = dataclasses.replace(data, shot=support, query=1).tasks(split, torch.device("cpu"))
    for number in range(len(tasks.pool.classes)):
        yield tasks.stratified(number, DRAWS, streams.generator(seed, split, number, support))


def predicted_by_run(run: Run, device: torch.device, support: int, seed: int, split: Split) -> Predictions:
    """With the temperature that validation tasks with so many known molecules have given the run."""
    experiment, meta = calibrated(run, device, support), run.load(device, run.chosen).meta
    shared = shared_noise(experiment, seed, split, device)
    for number, drawn in enumerate(sampled(experiment.data, split, support, seed)):  # type: ignore[arg-type]
        generator = streams.generator(seed, split, number, support, "noise")
        block = with_noise(experiment, drawn, {}, generator)
        records = score_blocks(experiment, meta, shared, [block], _record, lambda done: None)
        yield records["probabilities"], drawn[0].query.y


def _record(predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
    return {"probabilities": class_probabilities(predict(task.query.x))}


def predicted_by_classifier(name: str, support: int, seed: int, split: Split) -> Predictions:
    """By a classifier of scikit-learn that is fitted to the known molecules alone.

    Its votes, of trees or of neighbours, count as if there were one more of each class: no molecule is certain.
    """
    for task, _ in sampled(FsMol(), split, support, seed):
        probabilities = []
        for x, y, asked in zip(task.support.x, task.support.y, task.query.x, strict=True):
            model, votes = CLASSIFIERS[name](support)
            share = model.fit(x.numpy() > 0, y.numpy()).predict_proba(asked.numpy() > 0)
            probabilities.append(torch.from_numpy((votes * share + 1) / (votes + 2)))
        yield torch.stack(probabilities), task.query.y


def _random_forest(support: int) -> tuple[Any, int]:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(TREES, random_state=0), TREES


def _nearest_neighbours(support: int) -> tuple[Any, int]:
    """By the Tanimoto similarity of bits."""
    from sklearn.neighbors import KNeighborsClassifier

    neighbours = round(support**0.5)
    return KNeighborsClassifier(neighbours, metric="jaccard", algorithm="brute"), neighbours


CLASSIFIERS: dict[str, Callable[[int], tuple[Any, int]]] = {
    "random-forest": _random_forest,
    "nearest-neighbours": _nearest_neighbours,
}
"""References that learn from an assay's known molecules alone: a support size → the classifier and its votes."""


def scores(probabilities: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The scores of one query set, from class probabilities (N, 2) and labels (N,)."""
    from sklearn.metrics import average_precision_score, roc_auc_score  # which sort thousands of queries

    p, active = probabilities[:, 1], y == 1
    auprc = torch.tensor(average_precision_score(active, p))
    return {
        "delta_auprc": auprc - active.double().mean(),
        "auprc": auprc,
        "auc": torch.tensor(roc_auc_score(active, p)),
        "top_tenth": top_precision(p, active, TOP),
        "nll": negative_log_likelihood(probabilities, y),
        "brier": brier_score(probabilities, y),
    }


def measured(predicted: Predicted) -> dict[str, Any]:
    """The summary of a method's predictions at one support size."""
    missed = [probability_scores(*found).flatten() for found in predicted("validation")]
    threshold = conformal_threshold(torch.cat(missed), torch.tensor([len(found) for found in missed]), ALPHA)
    of_assays: dict[str, list[Tensor]] = {}
    reliability, assays = TaskTotal(), 0
    with ProgressLine("predicting test assays") as line:
        for assays, (probabilities, y) in enumerate(predicted("test"), start=1):
            draws = [scores(*draw) for draw in zip(probabilities.double(), y, strict=True)]
            found = {name: torch.stack([draw[name] for draw in draws]).mean() for name in draws[0]}
            sets = prediction_sets(probabilities, threshold)
            found |= {"coverage": sets.gather(-1, y.unsqueeze(-1)).double().mean()}
            found |= {"set_size": sets.sum(-1).double().mean()}
            for name, value in found.items():
                of_assays.setdefault(name, []).append(value)
            confidence, label = probabilities.double().flatten(0, 1).max(-1)
            reliability.add(binned(confidence, label == y.flatten()).unsqueeze(0))
            line.show(assays, len(FsMol().pool("test").classes), "assays")
    values = {name: torch.stack(found) for name, found in of_assays.items()}
    return {
        **{name: mean_over_tasks(found) for name, found in values.items()},
        **reliability.calibration(binned_errors),
        "assays": assays,
        "tasks": DRAWS * assays,
        "of_assays": {name: [round(value, 5) for value in values[name].tolist()] for name in OF_ASSAYS},
    }


def published(file: Path) -> dict[str, dict[int, dict[str, float]]]:
    """Method → support size → assay → the ΔAUPRC that the authors print, where their table is beside the data."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    if not file.is_file():
        return found
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            of_size = found.setdefault(row["method"], {}).setdefault(int(row["support"]), {})
            of_size[row["assay"]] = float(row["auprc"]) - float(row["positive_share"])
    return found


def against(ours: Sequence[float], names: Sequence[str], theirs: Mapping[str, float]) -> dict[str, Any]:
    """Our ΔAUPRC less theirs, assay by assay."""
    common = [number for number, name in enumerate(names) if name in theirs]
    pairs = PairedScores()
    pairs.add(torch.tensor([ours[number] for number in common]), torch.tensor([theirs[names[n]] for n in common]))
    test = pairs.test()
    return {"delta_auprc": test["second"], "difference": test["difference"], "p_value": test["p_value"]} | {
        "assays": len(common)
    }


@dataclasses.dataclass(frozen=True)
class AssayReproduction(Reproduction):
    """FS-Mol in a folder. One training of a method serves all support sizes."""

    @property
    def methods(self) -> list[str]:
        return [*super().methods, *CLASSIFIERS]

    def stages(self, method: str) -> list[list[Job]]:
        return [[Job(method, "seed", 0)]] if method in CLASSIFIERS else super().stages(method)

    def do(self, job: Job) -> None:
        if job.method not in CLASSIFIERS:
            super().do(job)
            return
        for support in SUPPORTS:
            predicted = partial(predicted_by_classifier, job.method, support, self.target.test_seed)
            self._measure(self._folder(job), support, predicted, {"device": "cpu", "algorithm": job.method})

    def _evaluate(self, run: Run) -> None:
        facts = {"device": device_name(self.device), "algorithm": run.experiment.algorithm_name}
        for support in SUPPORTS:
            predicted = partial(predicted_by_run, run, self.device, support, self.target.test_seed)
            self._measure(run.folder, support, predicted, facts)

    def _measure(self, folder: Path, support: int, predicted: Predicted, facts: Row) -> None:
        """The summary at one support size, kept in the folder."""
        file, seed = folder / f"assays-{support}.json", self.target.test_seed
        if file.is_file() and from_json(file.read_text(encoding="utf-8"))["seed"] == seed:
            return
        began = time.perf_counter()
        found = {"support": support, "stream": "test", "seed": seed, "draws": DRAWS} | measured(predicted) | facts
        found |= {"version": __version__, "data_checksum": FsMol().checksum("test")}
        found |= {"seconds": round(time.perf_counter() - began, 1)}
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(found, indent=1) + "\n")

    def write(self, results: Path, page: Path) -> list[Row]:
        """Write the list of result objects and the page; rows of methods with nothing finished here are kept."""
        theirs, names = published(data_root() / "fs-mol" / "published.csv"), FsMol().pool("test").classes
        found = []
        for file in sorted(self.folder.glob("*/seed-*/assays-*.json")):
            row = from_json(file.read_text(encoding="utf-8")) | self._facts_of(file.parent)
            of_size = {method: sizes[row["support"]] for method, sizes in theirs.items() if row["support"] in sizes}
            ours = row["of_assays"]["delta_auprc"]
            found.append(row | {"against": {name: against(ours, names, one) for name, one in of_size.items()}})
        rows = merge(found, self.kept(results))
        if not rows:
            raise FewsureError(f"{self.folder} holds no finished run of this experiment; run it without --collect")
        picture = page.parent / "figures" / f"{self.name}.png"
        texts: dict[Path, str | bytes] = {
            results: "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n",
            page: assays_page(rows),
            picture: figure_png(assays_figure(rows)),
        }
        for path, content in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
        return rows

    def _facts_of(self, folder: Path) -> Row:
        """The fields of a row beside its scores."""
        method = folder.parent.name
        if method in CLASSIFIERS:
            made = {"updates": 0, "train_seconds": 0.0, "trials": [], "preset": f"scikit-learn {sklearn.__version__}"}
            return {"target": self.name, "label": method, "train_seed": 0} | made
        run = Run.open(folder)
        return self._facts(run) | {"train_seconds": run.metrics()[-1]["seconds"]}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        return [assays_table(rows)]
