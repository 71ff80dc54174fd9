"""Classes that are the same in every task: drawn as they come, with base rates, and support sets that miss one."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import hypergeom
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score

import fewsure
from fewsure.algorithms import ALGORITHMS
from fewsure.algorithms.logistic import Logistic
from fewsure.algorithms.parts.shares import log_shares
from fewsure.cli.main import main
from fewsure.core import streams
from fewsure.data.pools import Pool, by_group, in_group, restrict
from fewsure.errors import FewsureError
from fewsure.evaluation.metrics.ranking import area_under_roc, average_precision
from fewsure.networks.losses import classification
from fewsure.networks.mlp import MlpOptions
from fewsure.types import Batch, Model

NAMES = ("bad", "good")
CPU = torch.device("cpu")
METHODS = [name for name, kind in ALGORITHMS.items() if "classification" in kind.kinds]


def assays(count: int = 30, rows: int = 40) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tasks that share a rule, each with a threshold of its own: a fifth of the examples are good, and in some none."""
    random = np.random.default_rng(0)
    tasks = []
    for _ in range(count):
        x = random.normal(size=(rows, 3))
        logits = 2 * x[:, 0] - x[:, 1] - 2 + random.normal()
        tasks.append((x, np.array(NAMES)[(random.uniform(size=rows) < 1 / (1 + np.exp(-logits))).astype(int)]))
    return tasks


@pytest.fixture(scope="module")
def data() -> fewsure.data.Data:
    return fewsure.classification_tasks(assays(), fixed_classes=True, shot=4, query=20).prepared()


@pytest.fixture(scope="module")
def learner() -> fewsure.Learner:
    tasks = fewsure.classification_tasks(assays(), fixed_classes=True)
    return fewsure.Learner("logistic", data=tasks).train(quiet=True)


# Tasks


def test_units_are_groups_and_labels_keep_their_meaning() -> None:
    names = [in_group("b", "no"), in_group("b", "yes"), in_group("b-2", "yes"), in_group("a", "no")]
    pool = Pool(torch.arange(7.0)[:, None], torch.tensor([0, 1, 3, 6, 7]), tuple(names), ("b", "b", "b-2", "a"), "")
    found = by_group(pool, ("no", "yes"))
    assert (found.classes, found.counts.tolist()) == (("a", "b", "b-2"), [1, 3, 3])
    assert found.examples.flatten().tolist() == [6, 0, 1, 2, 3, 4, 5]
    assert found.labels is not None
    assert found.labels.tolist() == [0, 0, 1, 1, 1, 1, 1]
    kept = restrict(found, ["b"])
    assert kept.labels is not None
    assert (kept.examples.flatten().tolist(), kept.labels.tolist()) == ([0, 1, 2], [0, 1, 1])
    with pytest.raises(FewsureError, match="'b' has 'yes'"):
        by_group(pool, ("no",))


def test_tasks_are_drawn_as_they_come(data: fewsure.data.Data) -> None:
    assert (data.outputs, data.known_classes, data.support_size, data.query_size) == (2, NAMES, 4, 20)
    pool, sampler = data.pool("train"), data.tasks("train", CPU)
    task, facts = sampler.sample(4000, streams.generator(0, "drawn"))
    assert task.support.y.shape == (4000, 4)
    labels = torch.cat([task.support.y, task.query.y], 1).double()
    assert pool.labels is not None
    parts = torch.split(pool.labels.double(), pool.counts.tolist())
    shares = torch.stack([part.mean() for part in parts])
    np.testing.assert_allclose(labels.mean(), shares.mean(), atol=0.01)  # the base rate, not a half
    missing = (task.support.y == 0).all(1).double()  # as often as without replacement from the group
    rates = [hypergeom(len(part), int((1 - part).sum()), 4).pmf(4) for part in parts]
    assert abs(float(missing.mean()) - np.mean(rates)) < 0.03
    first = int(facts["groups"][0])
    rows = pool.examples[int(pool.starts[first]) : int(pool.starts[first + 1])]
    assert all(bool((rows == x).all(1).any()) for x in task.support.x[0])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_copes_with_a_support_set_that_misses_a_class(name: str, data: fewsure.data.Data) -> None:
    learner = fewsure.Learner(name, data=data)
    experiment = learner.experiment
    model: Model = experiment.model
    assert model.fixed_classes
    generator = streams.generator(0, "missing")
    meta = experiment.algorithm.init(model, generator)
    x, y = torch.randn(6, 3, generator=generator), torch.zeros(6, dtype=torch.long)
    spec = experiment.algorithm.noise(model, 6, 4)

    def drawn(draws: object) -> dict[str, torch.Tensor]:
        return {
            key: torch.randn(draw.shape) if draw.kind == "normal" else torch.rand(draw.shape) for key, draw in draws
        }

    noise = drawn([*spec.shared.items(), *spec.task.items()])
    posterior = experiment.algorithm.adapt(meta, model, Batch(x, y), noise)
    prediction = drawn(experiment.algorithm.prediction_noise(model, 4, 6).items())
    outputs = experiment.algorithm.predict(posterior, model, torch.randn(5, 3), prediction)
    assert outputs.shape[1:] == (5, 2)
    assert bool(outputs.isfinite().all())


# Methods


def test_shares_are_counts_and_base_rates() -> None:
    meta = {"shares": {"log_rates": torch.tensor([0.8, 0.2]).log(), "log_strength": torch.tensor(5.0).log()}}
    found = log_shares(meta, torch.tensor([0, 1, 1]), 2)["log_share"].exp()
    torch.testing.assert_close(found, torch.tensor([(1 + 4) / 8, (2 + 1) / 8]))
    assert log_shares({}, torch.tensor([0, 1]), 2) == {}


@pytest.mark.usefixtures("float64")
def test_logistic_regression_starts_at_that_of_all_training_rows() -> None:
    tasks = [Batch(torch.from_numpy(x), torch.from_numpy((y == "good").astype(int))) for x, y in assays()]
    model = classification(MlpOptions().build((3,), 2), 2)._replace(fixed_classes=True)
    method, generator = Logistic(), streams.generator(0, "pooled")
    meta = method.fit(method.init(model, generator), model, tasks, generator)
    reference = LogisticRegression(C=2, tol=1e-10, max_iter=1000, fit_intercept=False)  # two columns share the penalty
    x, y = (torch.cat(parts).numpy() for parts in zip(*tasks, strict=True))
    reference.fit(np.column_stack([np.ones(len(x)), x]), y)
    weights = meta["pooled"]["mean"]
    np.testing.assert_allclose(weights[:, 1] - weights[:, 0], reference.coef_[0], atol=2e-3)
    close = meta | {"prior": {"log_std": torch.tensor(-9.0)}}
    (logits,) = method.predict(method.adapt(close, model, tasks[0], {}), model, tasks[1].x, {})
    features = torch.cat([torch.ones(len(tasks[1].x), 1), tasks[1].x], 1)
    torch.testing.assert_close(logits, features @ weights, atol=1e-4, rtol=0)  # a prior without spread: pooled


# Scores


@pytest.mark.parametrize("digits", [1, 3])
def test_areas_are_those_of_scikit_learn(digits: int) -> None:
    random = np.random.default_rng(digits)
    scores, y = random.uniform(size=60).round(digits), random.uniform(size=60) < 0.3  # with ties
    found = area_under_roc(torch.from_numpy(scores), torch.from_numpy(y))
    assert float(found) == pytest.approx(roc_auc_score(y, scores))
    found = average_precision(torch.from_numpy(scores), torch.from_numpy(y))
    assert float(found) == pytest.approx(average_precision_score(y, scores))


def test_one_class_alone_has_no_areas() -> None:
    scores, nothing = torch.rand(4), torch.zeros(4, dtype=torch.bool)
    assert bool(area_under_roc(scores, nothing).isnan())
    assert bool(average_precision(scores, nothing).isnan())


def test_an_evaluation_reports_ranking_and_base_rates(learner: fewsure.Learner) -> None:
    found = learner.evaluate(tasks=200, quiet=True)
    assert found["fixed_classes"] == list(NAMES)
    assert (found["groups"], found["grouped_by"]) == (9, "tasks")
    bad, good = found["by_class"]
    assert (bad["class"], good["class"]) == NAMES
    assert bad["base_rate"]["mean"] + good["base_rate"]["mean"] == pytest.approx(1)
    assert good["base_rate"]["mean"] < 0.4
    assert bad["auc"]["mean"] == pytest.approx(good["auc"]["mean"])  # of two classes
    assert good["auprc"]["mean"] > good["base_rate"]["mean"] + 0.2
    assert found["auc"]["mean"] > 0.8
    assert {row["name"] for row in found["baselines"]} >= {"ridge", "simpleshot"}
    assert all("reason" not in row for row in found["baselines"])


# Use


@pytest.mark.parametrize("labels", [["bad", "bad", "bad"], ["good", "bad", "bad"]])
def test_a_task_may_miss_a_class(learner: fewsure.Learner, labels: Sequence[str]) -> None:
    x, _ = assays()[0]
    predicted = learner.adapt(x[:3], labels).predict(x[3:])
    assert predicted.classes == NAMES
    assert predicted.probabilities.shape == (37, 2)
    np.testing.assert_allclose(predicted.probabilities.sum(1), 1)


def test_labels_come_back_as_they_were_given() -> None:
    numbers = [(x, (y == "good").astype(int)) for x, y in assays()]
    single = fewsure.Learner("simpleshot", data=fewsure.classification_tasks(numbers, fixed_classes=True))
    single.train(quiet=True)
    predicted = single.adapt(numbers[0][0][:3], np.zeros(3, dtype=int)).predict(numbers[0][0][3:])
    assert predicted.classes == (0, 1)
    assert predicted.label.dtype == int
    with pytest.raises(FewsureError, match="expected labels among 0, 1"):
        single.adapt(numbers[0][0][:3], [0, 1, 7])


def test_sets_hold_the_truth_for_a_number_of_examples_in_all(learner: fewsure.Learner) -> None:
    found = learner.certify(alpha=0.3, quiet=True)
    assert (found["unit"], found["shot"]) == ("new-tasks", 5)
    x, y = assays()[1]
    sets = learner.adapt(x[:8], y[:8]).predict(x[8:], coverage=0.7).sets  # from 5 of the 8
    assert all(set(chosen) <= set(NAMES) for chosen in sets)


# Formats


def test_a_table_and_a_folder_of_features_make_the_tasks_of_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks, parts = assays(), {"train": range(18), "validation": range(18, 24), "test": range(24, 30)}
    lines = ["assay,a,b,c,state,part"]
    for part, numbers in parts.items():
        lines += [
            f"{number},{','.join(map(str, row))},{label},{part}"
            for number in numbers
            for row, label in zip(*tasks[number], strict=True)
        ]
        x, y = (np.concatenate([tasks[number][side] for number in numbers]) for side in (0, 1))
        groups = np.repeat([f"{number}" for number in numbers], 40)
        np.savez(tmp_path / f"{part}.npz", features=x.astype(np.float32), labels=y, groups=groups)
    file = tmp_path / "assays.csv"
    file.write_text("\n".join(lines) + "\n")
    table = ["--data", "table-classes", "--file", str(file), "--label", "state", "--task-column", "assay"]
    shared = ["--fixed-classes", "--shot", "5", "--query", "15"]
    found = []
    for name, source in {
        "table": [*table, "--split-column", "part"],
        "features": ["--data", "features", "--folder", str(tmp_path)],
    }.items():
        run = str(tmp_path / name)
        main(["train", "logistic", *source, *shared, "--out", run])
        capsys.readouterr()
        main(["evaluate", run, "--tasks", "100", "--no-baselines", "--json"])
        found.append(json.loads(capsys.readouterr().out))
    one, two = found
    assert one["grouped_by"] == "assay"
    assert (one["groups"], two["groups"]) == (6, 6)
    assert one["auc"]["mean"] == pytest.approx(two["auc"]["mean"], abs=0.02)  # the table's columns are scaled
    main(["evaluate", str(tmp_path / "table"), "--tasks", "100", "--no-baselines"])
    shown = capsys.readouterr().out
    assert "AUPRC" in shown
    assert "bad or good, 5 known" in shown


def test_images_lie_in_folders_of_groups_and_classes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for group in range(9):
        for label, base in (("defect", 40), ("ok", 200)):
            folder = tmp_path / "parts" / f"line{group}" / label
            folder.mkdir(parents=True)
            for number in range(4 if label == "defect" else 12):
                pixels = np.clip(random.normal(base, 30, (16, 16, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    data = fewsure.Images(folder=str(tmp_path / "parts"), image_size=16, fixed_classes=True, shot=4, query=6)
    learner = fewsure.Learner("logistic", data).train(quiet=True)
    found = learner.evaluate(tasks=40, quiet=True)
    assert found["fixed_classes"] == ["defect", "ok"]
    assert found["accuracy"]["mean"] > 0.9
    assert next(row for row in found["by_class"] if row["class"] == "ok")["base_rate"]["mean"] == pytest.approx(
        0.75, abs=0.05
    )
    assert {"logistic on pixels", "logistic on colours"} <= {row["name"] for row in found["baselines"]}
    assert all("reason" not in row for row in found["baselines"])


def test_what_has_no_groups_or_one_class_is_refused() -> None:
    x, labels = np.random.default_rng(0).normal(size=(60, 2)), [f"class {number % 12}" for number in range(60)]
    with pytest.raises(FewsureError, match="takes the group of each example"):
        fewsure.Learner("logistic", data=(x, labels), fixed_classes=True).train(quiet=True)
    same = [(x[:30], ["no"] * 30) for _ in range(12)]
    with pytest.raises(FewsureError, match="all examples are 'no'"):
        fewsure.Learner("logistic", data=fewsure.classification_tasks(same, fixed_classes=True)).train(quiet=True)
