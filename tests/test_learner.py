"""The Learner as a user meets it: what goes in, what comes back, and what never changes."""

import dataclasses
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from scipy.stats import norm

import fewsure
from fewsure import FewsureError, Learner, algorithms
from fewsure.algorithms import ALGORITHMS, Maml
from fewsure.certification import calibration_of
from fewsure.certification.certify import Request, certify_run
from fewsure.certification.environment import environment_of, fresh_blocks
from fewsure.core.config import to_record
from fewsure.core.signals import StopSignal
from fewsure.core.vectorise import take
from fewsure.learner.labels import read_labels
from fewsure.training.runs import Run

from . import learner_options
from .helpers import CLASSIFICATION, REGRESSION

SIMPA = {"latent": 3, "generator_hidden": (6,), "kl_samples": 4, "train_samples": 1, "inner_steps": 2}
TINY: dict[str, dict[str, Any]] = {"simpa": SIMPA, "bmaml": {"particles": 3}}
TRAINING = {"tasks": 2, "hidden": (6,), "device": "cpu"}
FEATURES = 4


def line_tasks(tasks: int = 20, each: int = 14) -> list[tuple[np.ndarray, np.ndarray]]:
    """Lines through two inputs, in units that need scaling."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(tasks):
        x = random.normal(size=(each, 2))
        noise = random.normal(size=each)
        made.append((1000 + 50 * x, 20 + 8 * (x @ random.normal(size=2) + 0.1 * noise)))
    return made


def blobs(classes: int = 15, each: int = 8) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        f"class {k}": 5 * random.normal(size=FEATURES) + random.normal(size=(each, FEATURES)) for k in range(classes)
    }


def support(way: int = 3, shot: int = 2, seed: int = 2) -> tuple[np.ndarray, list[str]]:
    random = np.random.default_rng(seed)
    x = np.repeat(5 * random.normal(size=(way, FEATURES)), shot, axis=0) + random.normal(size=(way * shot, FEATURES))
    return x, [f"kind {k}" for k in range(way) for _ in range(shot)]


QUERY = np.random.default_rng(3).normal(size=(9, FEATURES)) * 4
NUMBERS = 1000 + 50 * np.random.default_rng(4).normal(size=(9, 2))


@pytest.fixture(scope="module")
def classifiers() -> dict[str, Learner]:
    made = {}
    for name in CLASSIFICATION:
        options = {"way": 3, "shot": 2, "query": 4, "softmax_temperature": 1.0} | TINY.get(name, {})
        made[name] = Learner(name, data=blobs(), **options, **TRAINING).train(updates=2)
    return made


@pytest.fixture(scope="module")
def regressors() -> dict[str, Learner]:
    options: dict[str, Any] = TRAINING | {"noise_std": 2.0, "shot": 5}
    return {
        name: Learner(name, data=line_tasks(), **TINY.get(name, {}), **options).train(updates=2) for name in REGRESSION
    }


def numbers(prediction: Any) -> np.ndarray:
    return np.asarray(prediction.samples)


def learners(
    classifiers: dict[str, Learner], regressors: dict[str, Learner]
) -> list[tuple[str, Learner, Any, Any, Any]]:
    """(name, learner, support x, support y, query) of every method on both kinds of task."""
    x, y = line_tasks()[3]
    return [
        *((f"{name} classes", learner, *support(), QUERY) for name, learner in classifiers.items()),
        *((f"{name} numbers", learner, x[:5], y[:5], NUMBERS) for name, learner in regressors.items()),
    ]


def test_the_first_block_of_the_documentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    my_tasks = line_tasks()
    learner = fewsure.Learner("simpa", data=my_tasks, **SIMPA, **TRAINING)
    learner.train(updates=3)
    assert "training simpa 3/3" in capsys.readouterr().err
    x_support, y_support = my_tasks[0][0][:5], my_tasks[0][1][:5]
    before = learner.adapt(x_support, y_support).predict(NUMBERS)
    learner.save(tmp_path / "mine")
    learner = fewsure.load(tmp_path / "mine")
    after = learner.adapt(x_support, y_support).predict(NUMBERS)
    for name in ("mean", "std", "samples"):
        assert np.array_equal(getattr(before, name), getattr(after, name))
    assert np.array_equal(before.quantile(0.05), after.quantile(0.05))
    assert after.samples.shape == (32, 9)
    assert learner.folder == tmp_path / "mine"
    with pytest.raises(FewsureError, match=r"given in Python.*fewsure.load\(folder, data=tasks\)"):
        learner.evaluate(tasks=20)
    again = fewsure.load(tmp_path / "mine", data=my_tasks)
    assert again.evaluate(tasks=20)["mse"]["mean"] > 0
    again.train()  # finished already


def test_sine_line_by_name_and_one_dimension_without_a_second_axis() -> None:
    learner = Learner("maml", "sine-line", **TRAINING).train(updates=2)
    x = np.linspace(-2, 2, 5)
    one, two = learner.adapt(x, 2 * x), learner.adapt(x[:, None], (2 * x)[:, None])
    assert np.array_equal(one.predict([0.5]).mean, two.predict([[0.5]]).mean)
    assert one.predict([0.5]).noise_std == 0.3


@pytest.mark.parametrize(
    ("labels", "back"),
    [
        (["a", "b", "c"], list),
        ([3, 1, 2], list),
        ([("x", 1), ("y", 2), ("x", 0)], list),
        ([1, "other", 2.5], list),
        ([True, False], list),
        (np.array(["dog", "cat", "emu"]), np.ndarray),
        (np.array([10, 20, 30], dtype=np.int16), np.ndarray),
        (np.array([0.5, 1.5]), np.ndarray),
        (torch.tensor([7, 5, 6], dtype=torch.int32), torch.Tensor),
    ],
    ids=str,
)
def test_labels_come_back_as_they_were_given(classifiers: dict[str, Learner], labels: Any, back: type) -> None:
    x, _ = support(way=len(labels))
    y = (
        [label for label in labels for _ in range(2)]
        if isinstance(labels, list)
        else labels.repeat_interleave(2)
        if (isinstance(labels, torch.Tensor))
        else np.repeat(labels, 2)
    )
    prediction = classifiers["protonet"].adapt(x, y).predict(x)
    assert type(prediction.label) is back
    if back is not list:
        assert prediction.label.dtype == labels.dtype
    assert list(prediction.label) == list(y)  # its own class mean is the nearest: the blobs are far apart
    assert set(prediction.classes) == set(labels.tolist() if hasattr(labels, "tolist") else labels)
    assert prediction.probabilities.shape == (len(x), len(labels))


A_LABEL = [st.text(), st.integers(), st.booleans(), st.floats(allow_nan=False), st.tuples(st.text(), st.integers())]
MANY_LABELS = st.one_of(*(st.lists(label, min_size=1) for label in [*A_LABEL, st.text() | st.integers()]))


@given(labels=MANY_LABELS, seed=st.integers(0, 9))
def test_any_labels_come_back_and_their_numbers_do_not_depend_on_their_order(labels: list[Any], seed: int) -> None:
    read, numbers = read_labels(labels)
    assert [(type(label), label) for label in read.take(numbers)] == [(type(label), label) for label in labels]
    order = np.random.default_rng(seed).permutation(len(labels))
    again, permuted = read_labels([labels[index] for index in order])
    assert again.classes == read.classes
    assert permuted.tolist() == numbers[torch.from_numpy(order)].tolist()


def test_the_order_of_the_support_examples_does_not_matter(
    classifiers: dict[str, Learner], regressors: dict[str, Learner]
) -> None:
    for name, learner, x, y, query in learners(classifiers, regressors):
        expected = numbers(learner.adapt(x, y).predict(query))
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(len(x))
            found = numbers(learner.adapt(x[order], [y[index] for index in order]).predict(query))
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * scale, err_msg=name)


def test_a_prediction_depends_on_its_own_point_alone(
    classifiers: dict[str, Learner], regressors: dict[str, Learner]
) -> None:
    for name, learner, x, y, query in learners(classifiers, regressors):
        adapted = learner.adapt(x, y)
        together = numbers(adapted.predict(query))
        scale = np.abs(together).max()
        for size in (1, 2, 7):
            found = numbers(adapted.predict(query, batch_size=size))
            np.testing.assert_allclose(found, together, rtol=0, atol=2e-5 * scale, err_msg=name)
        alone = np.concatenate([numbers(adapted.predict(query[row : row + 1])) for row in range(len(query))], axis=1)
        np.testing.assert_allclose(alone, together, rtol=0, atol=2e-5 * scale, err_msg=name)


def test_the_same_call_gives_the_same_numbers_and_changes_nothing(
    classifiers: dict[str, Learner], regressors: dict[str, Learner]
) -> None:
    for name, learner, x, y, query in learners(classifiers, regressors):
        meta = learner._trained().meta
        before = {(part, key): value.clone() for part, params in meta.items() for key, value in params.items()}
        first = learner.adapt(x, y)
        expected = numbers(first.predict(query))
        learner.adapt(x + 1, y).predict(query)
        assert np.array_equal(numbers(first.predict(query)), expected), name
        assert np.array_equal(numbers(learner.adapt(x, y).predict(query)), expected), name
        assert all(torch.equal(meta[part][key], value) for (part, key), value in before.items()), name


def test_threads_adapt_and_predict_as_one_after_the_other(
    classifiers: dict[str, Learner], regressors: dict[str, Learner]
) -> None:
    jobs = [job for job in learners(classifiers, regressors) if job[0].split()[0] in ("simpa", "bmaml", "protonet")] * 3

    def work(job: tuple[str, Learner, Any, Any, Any]) -> np.ndarray:
        _, learner, x, y, query = job
        return numbers(learner.adapt(x, y).predict(query))

    expected = [work(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(expected, pool.map(work, jobs), strict=True):
            assert np.array_equal(one, other)


def test_an_adapted_task_reads_back_from_a_small_file(
    classifiers: dict[str, Learner], regressors: dict[str, Learner], tmp_path: Path
) -> None:
    for name, learner, x, y, query in learners(classifiers, regressors):
        adapted = learner.adapt(x, y)
        path = tmp_path / f"{name}.safetensors"
        adapted.save(path)
        read = learner.load_adapted(path)
        expected, found = adapted.predict(query), read.predict(query)
        assert np.array_equal(numbers(found), numbers(expected)), name
        if isinstance(expected, fewsure.ClassPrediction):
            assert list(found.label) == list(expected.label)
    protonet = tmp_path / "protonet classes.safetensors"
    with safe_open(protonet, framework="pt") as file:
        assert list(file.keys()) == ["prototypes/mean", "support/x", "support/y"]  # the embedding is the learner's
    with pytest.raises(FewsureError, match="another checkpoint"):
        classifiers["maml"].load_adapted(protonet)
    protonet.write_bytes(protonet.read_bytes()[:50])
    with pytest.raises(FewsureError, match="cannot be read as an adapted task"):
        classifiers["protonet"].load_adapted(protonet)


def test_a_run_that_is_loaded_predicts_the_same(
    classifiers: dict[str, Learner], regressors: dict[str, Learner], tmp_path: Path
) -> None:
    for name, learner, x, y, query in learners(classifiers, regressors):
        copied = shutil.copytree(learner.folder, tmp_path / name)
        found = fewsure.load(copied, device="cpu").adapt(x, y).predict(query)
        assert np.array_equal(numbers(found), numbers(learner.adapt(x, y).predict(query))), name
        assert {path.suffix for path in copied.rglob("*") if path.is_file()} <= {".json", ".jsonl", ".safetensors"}


def test_uncertainty_splits_into_what_examples_remove_and_what_they_do_not(
    classifiers: dict[str, Learner], regressors: dict[str, Learner]
) -> None:
    x, y = support()
    for name, learner in classifiers.items():
        p = learner.adapt(x, y).predict(QUERY)
        np.testing.assert_allclose(p.expected_entropy + p.mutual_information, p.entropy, atol=1e-12)
        np.testing.assert_allclose(p.probabilities.sum(1), 1, atol=1e-12)
        assert (p.entropy <= np.log(3) + 1e-12).all()
        draws = learner.experiment.algorithm.prediction_noise(learner.experiment.model, 32, len(y))
        single = not draws and name != "bmaml"  # whose functions are its particles
        assert len(p.samples) == (1 if single else 3 if name == "bmaml" else 32)
        assert (p.mutual_information.max() == 0) == single
    x, y = line_tasks()[0]
    for name, learner in regressors.items():
        p = learner.adapt(x[:5], y[:5]).predict(NUMBERS)
        np.testing.assert_allclose(p.function_std**2 + p.noise_std**2, p.std**2, rtol=1e-12)
        assert (p.function_std.max() == 0) == (name == "maml")


def test_quantiles_invert_the_mixtures_distribution(regressors: dict[str, Learner]) -> None:
    x, y = line_tasks()[0]
    p = regressors["simpa"].adapt(x[:5], y[:5]).predict(NUMBERS)
    for level in (0.01, 0.05, 0.5, 0.95):
        below = norm.cdf(p.quantile(level), loc=p.samples, scale=p.noise_std).mean(0)
        np.testing.assert_allclose(below, level, atol=1e-9)
    point = regressors["maml"].adapt(x[:5], y[:5]).predict(NUMBERS)
    np.testing.assert_allclose(point.quantile(0.05), norm.ppf(0.05, point.mean, point.std), rtol=1e-9)


def test_the_same_tasks_in_other_units_give_the_same_predictions_in_those_units() -> None:
    tasks = line_tasks()
    other = [(7 * x - 3, 1000 + 5 * y) for x, y in tasks]
    one, two = (Learner("maml", data=data, **TRAINING).train(updates=3) for data in (tasks, other))
    (x, y), (u, v) = tasks[0], other[0]
    expected, found = one.adapt(x[:5], y[:5]).predict(x[5:]), two.adapt(u[:5], v[:5]).predict(u[5:])
    np.testing.assert_allclose(found.mean, 1000 + 5 * expected.mean, rtol=1e-5)
    np.testing.assert_allclose(found.std, 5 * expected.std, rtol=1e-3)


def test_training_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Learner("maml", data=line_tasks(), out=tmp_path / "whole", **TRAINING).train(updates=6)

    class Impatient(StopSignal):
        calls = 0

        def __call__(self) -> bool:
            self.calls += 1
            self.received = 2 if self.calls >= 3 else 0
            return self.calls >= 3

    learner = Learner("maml", data=line_tasks(), out=tmp_path / "parts", **TRAINING)
    with monkeypatch.context() as patch:
        patch.setattr("fewsure.pipeline.StopSignal", Impatient)
        with pytest.raises(KeyboardInterrupt, match=r"holds a checkpoint, and train\(\) goes on"):
            learner.train(updates=6)
    assert Run.open(tmp_path / "parts").load(torch.device("cpu")).update == 3
    fresh = Learner("maml", data=line_tasks(), out=tmp_path / "parts", **TRAINING)  # as another process would
    fresh.train(updates=6)
    ends = [(folder / "checkpoint.safetensors").read_bytes() for folder in (whole.folder, fresh.folder)]
    assert ends[0] == ends[1]


def test_training_in_a_thread_hears_no_signals() -> None:
    learner = Learner("maml", "sine-line", **TRAINING)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(learner.train, 2).result()
    assert learner.adapt([0.0, 1.0], [0.0, 1.0]).predict([2.0]).mean.shape == (1,)


def test_images_are_not_transductive_unless_asked_for() -> None:
    random = np.random.default_rng(0)
    images = {k: random.integers(0, 256, (6, 1, 16, 16), dtype=np.uint8) for k in range(12)}
    options = {"way": 2, "filters": 2, "tasks": 2, "device": "cpu"}
    learner = Learner("protonet", data=images, **options).train(updates=1)
    assert learner.experiment.network.norm == "instance"
    x = np.concatenate([images[0][:2], images[1][:2]])
    adapted = learner.adapt(x, ["a", "a", "b", "b"])
    together, alone = adapted.predict(images[0]).probabilities, adapted.predict(images[0][:1]).probabilities
    np.testing.assert_allclose(together[:1], alone, atol=1e-5)
    as_floats = adapted.predict(images[0] / 255).probabilities
    np.testing.assert_allclose(as_floats, together, atol=1e-5)
    batch = Learner("protonet", data=images, norm="batch", **options).train(updates=1)
    transductive = batch.adapt(x, ["a", "a", "b", "b"])
    assert transductive.model.network.transductive
    assert (
        np.abs(
            transductive.predict(images[0][:2]).probabilities - transductive.predict(images[0]).probabilities[:2]
        ).max()
        > 1e-6
    )
    assert Learner("maml", "omniglot").experiment.network.norm == "instance"
    photographs = Learner("maml", "cifar-fs").experiment
    assert (photographs.network.norm, photographs.data.temperature_exponent) == ("instance", 0.0)
    assert not photographs.transductive
    assert Learner("maml", "cifar-fs", temperature_exponent=0.5).experiment.transductive
    assert not Learner("maml", "mini-imagenet-leo").experiment.transductive
    assert Learner("maml", "mini-imagenet-leo", centred=True).experiment.transductive
    own = fewsure.Images(folder="photos", softmax_temperature=None, temperature_exponent=None)
    assert Learner("maml", own).experiment.data.temperature_exponent is None


def test_a_centred_head_predicts_a_query_set_and_refuses_a_query_alone() -> None:
    random = np.random.default_rng(0)
    classes = {k: random.normal(k, 1.0, (20, 4)) for k in range(12)}
    learner = Learner("maml", data=classes, way=2, tasks=2, query=4, centred=True, device="cpu")
    adapted = learner.train(updates=1).adapt(np.concatenate([classes[0][:1], classes[9][:1]]), ["a", "b"])
    assert adapted.transductive
    query = np.concatenate([classes[0][1:6], classes[9][1:6]])
    shifted = adapted.predict(query + 100).probabilities
    np.testing.assert_allclose(adapted.predict(query).probabilities, shifted, atol=1e-4)
    with pytest.raises(FewsureError, match=r"at least 2 examples.*--no-centred.*but got 1"):
        adapted.predict(query[:1])


def test_some_methods_take_any_way_and_shot_and_the_others_any_shot(classifiers: dict[str, Learner]) -> None:
    for name, learner in classifiers.items():
        for way in (2, 3, 5) if ALGORITHMS[name].any_way else ():
            p = learner.adapt(*support(way=way, shot=3)).predict(QUERY)
            assert p.probabilities.shape == (9, way)
    x, y = support()
    uneven = classifiers["maml"].adapt(x[1:], y[1:]).predict(QUERY)
    assert uneven.probabilities.shape == (9, 3)
    with pytest.raises(
        FewsureError, match=r"trained for 3 classes, but the support set has 5.*use protonet, which takes any"
    ):
        classifiers["maml"].adapt(*support(way=5))


def test_tensors_go_in_and_come_out(classifiers: dict[str, Learner], regressors: dict[str, Learner]) -> None:
    x, y = support()
    p = classifiers["maml"].adapt(torch.tensor(x), y).predict(torch.tensor(QUERY))
    assert isinstance(p.probabilities, torch.Tensor)
    np.testing.assert_allclose(p.probabilities.numpy(), classifiers["maml"].adapt(x, y).predict(QUERY).probabilities)
    x, y = line_tasks()[0]
    q = regressors["maml"].adapt(torch.tensor(x[:5]), torch.tensor(y[:5])).predict(torch.tensor(NUMBERS))
    assert isinstance(q.quantile(0.5), torch.Tensor)


def test_coverage_needs_a_certified_run_and_then_gives_sets_and_intervals(
    classifiers: dict[str, Learner], regressors: dict[str, Learner], tmp_path: Path
) -> None:
    x, y = line_tasks()[0]
    learner = regressors["simpa"]
    adapted = learner.adapt(x[:5], y[:5])
    with pytest.raises(FewsureError, match="coverage needs a certified run: run `fewsure certify "):
        adapted.predict(NUMBERS, coverage=0.9)
    request = Request(tasks=40, bound_samples=4, unit="tasks")
    certify_run(learner._trained().run, torch.device("cpu"), request)
    p = adapted.predict(NUMBERS, coverage=0.9)  # adapted before, with the same draw of θ
    assert p.environment is not None
    assert p.environment.startswith("given-regression, new draws from the 4 tasks of its test split, 5-shot")
    assert adapted.predict(NUMBERS).environment is None
    assert (p.lower < p.mean).all()
    assert (p.mean < p.upper).all()
    wider = adapted.predict(NUMBERS, coverage=0.95)
    assert (wider.upper - wider.lower >= p.upper - p.lower).all()
    with pytest.raises(FewsureError, match=r"certified for 5 examples, but got 4; run `fewsure certify .* --shot 4`"):
        learner.adapt(x[:4], y[:4]).predict(NUMBERS, coverage=0.9)
    with pytest.raises(FewsureError, match=r"ask for them with predict\(x, coverage=0.9\)"):
        _ = adapted.predict(NUMBERS).lower
    for level in (0, 1, 90):
        with pytest.raises(FewsureError, match=r"expected `coverage` to be a probability in \(0, 1\)"):
            classifiers["maml"].adapt(*support()).predict(QUERY, coverage=level)  # said before that it is not certified
        with pytest.raises(FewsureError, match=r"expected `coverage` to be a probability in \(0, 1\)"):
            adapted.predict(NUMBERS, coverage=level)
    saved = tmp_path / "task.safetensors"
    adapted.save(saved)
    certify_run(learner._trained().run, torch.device("cpu"), dataclasses.replace(request, seed=1))
    with pytest.raises(FewsureError, match=r"other random numbers than those that .* is certified with; adapt again"):
        learner.load_adapted(saved)
    with pytest.raises(FewsureError, match="certified after this task was adapted; load it and adapt again"):
        adapted.predict(NUMBERS, coverage=0.9)
    assert learner.adapt(x[:5], y[:5]).predict(NUMBERS, coverage=0.9).lower.shape == (9,)


def test_tasks_given_in_python_are_certified_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = line_tasks(tasks=60)
    learner = Learner("maml", data=tasks, shot=5, **TRAINING).train(updates=2, quiet=True)
    found = learner.certify(quiet=True)
    assert capsys.readouterr().err == ""
    assert found["environment"].startswith("given-regression, the 12 tasks of its test split, each once, 5-shot")
    assert (found["conformal"]["tasks"], found["conformal"]["vacuous"]) == (12, False)
    x, y = tasks[0]
    expected = learner.adapt(x[:5], y[:5]).predict(NUMBERS, coverage=0.9)
    learner.save(tmp_path / "run")
    again = fewsure.load(tmp_path / "run")
    assert np.array_equal(again.adapt(x[:5], y[:5]).predict(NUMBERS, coverage=0.9).upper, expected.upper)
    with pytest.raises(FewsureError, match=r"given in Python.*fewsure.load\(folder, data=tasks\)"):
        again.certify()
    assert fewsure.load(tmp_path / "run", data=tasks).certify()["held_out"] == found["held_out"]
    with pytest.raises(FewsureError, match=r"of 12 were tasks of training, .* a certificate needs fresh ones"):
        fewsure.load(tmp_path / "run", data=tasks[::-1]).certify()


def test_what_is_printed_of_a_learner_and_what_it_makes_is_one_line(
    classifiers: dict[str, Learner], regressors: dict[str, Learner]
) -> None:
    assert repr(Learner("maml", "sine-line")) == "Learner(maml on sine-line, not trained yet)"
    assert repr(classifiers["simpa"]) == "Learner(simpa on given-classes, trained)"
    adapted = classifiers["simpa"].adapt(*support())
    assert repr(adapted) == "Adapted(simpa, 6 examples of 3 classes)"
    assert repr(adapted.predict(QUERY)) == "ClassPrediction(9 points, 3 classes)"
    x, y = line_tasks()[0]
    adapted = regressors["maml"].adapt(x[:5], y[:5])
    assert repr(adapted) == "Adapted(maml, 5 examples)"
    assert repr(adapted.predict(NUMBERS)) == "ValuePrediction(9 points)"


def test_what_predicts_is_what_was_certified(regressors: dict[str, Learner]) -> None:
    """The Learner's scores on the calibration tasks are the calibration's, for every method with random numbers.

    Also where a generator's last layer, of 150 × 1,801 numbers, is rounded.
    """
    cpu = torch.device("cpu")
    wide = SIMPA | {"generator_hidden": (8, 150), "precision": "bf16"}
    rounded = Learner(
        "simpa", data=line_tasks(), **wide, **TRAINING | {"hidden": (40, 40), "noise_std": 2.0, "shot": 5}
    ).train(updates=2)
    learners = {name: regressors[name] for name in ("simpa", "abml", "vampire", "platipus", "bmaml")}
    for name, learner in (learners | {"simpa, rounded": rounded}).items():
        run = learner._trained().run
        certify_run(run, cpu, Request(tasks=6, bound_samples=4, unit="tasks", seed=3))
        calibration, experiment = calibration_of(run), learner._trained().experiment
        assert calibration is not None
        fresh = environment_of(experiment, "tasks", 3, cpu).certified
        ((tasks, _),) = fresh_blocks(fresh, "held-out", 6, 3, cpu)
        scale = learner._trained().scale
        mean, std = (torch.tensor(values, dtype=torch.float64) for values in (scale.x_mean, scale.x_std))
        for number in range(6):
            task = take(tasks, number)
            x, y = task.support.x.double() * std + mean, scale.values(task.support.y.squeeze(-1))
            p = learner.adapt(x, y).predict(task.query.x.double() * std + mean, coverage=0.5)
            scores = calibration.scores[9 * number : 9 * number + 9]
            truth = scale.values(task.query.y.squeeze(-1))
            spread = (p.samples.std(0) + p.noise_std) / scale.y_std
            found = (truth - p.mean).abs() / scale.y_std / spread
            torch.testing.assert_close(found, scores, rtol=1e-3, atol=1e-3, msg=name)
            clear = (scores - calibration.threshold(0.5)).abs() > 1e-3
            inside = (p.lower <= truth) & (truth <= p.upper)
            assert torch.equal(inside[clear], (scores <= calibration.threshold(0.5))[clear]), name


@pytest.mark.parametrize("components", [1, 2])
def test_an_adapted_simpa_task_is_small_in_memory_and_in_its_file(components: int, tmp_path: Path) -> None:
    options = {"latent": 8, "generator_hidden": (64, 128), "kl_samples": 4, "inner_steps": 2, "hidden": (40, 40)}
    options |= {"components": components, "noise_std": 2.0}
    learner = Learner("simpa", data=line_tasks(), tasks=2, device="cpu", **options).train(updates=1)
    x, y = line_tasks()[0]
    one, two = (learner.adapt(x[:5], y[:5] + shift) for shift in (0, 1))
    last = "2.weight"
    assert one.posterior["generator"][last] is two.posterior["generator"][last]
    assert one.posterior["generator"][last] is one.state.start["generator"][last]
    one.save(tmp_path / "task.safetensors")
    with safe_open(tmp_path / "task.safetensors", framework="pt") as file:
        assert f"generator/{last}" not in file.keys()  # noqa: SIM118 (it is no mapping)
    checkpoint = learner.folder / "checkpoint.safetensors"
    assert (tmp_path / "task.safetensors").stat().st_size < checkpoint.stat().st_size / 20
    read = learner.load_adapted(tmp_path / "task.safetensors")
    assert np.array_equal(numbers(read.predict(NUMBERS)), numbers(one.predict(NUMBERS)))


def test_numbers_of_numpy_are_numbers(classifiers: dict[str, Learner], tmp_path: Path) -> None:
    learner = Learner("maml", data=line_tasks(), **TRAINING | {"tasks": np.int64(2), "shot": np.int32(4)})
    assert learner.train(updates=np.int64(1)).experiment.training.updates == 1  # type: ignore[arg-type]
    assert Learner("maml", "sine-line", updates=np.int64(3)).experiment.training.updates == 3
    x, _ = support(way=2)
    adapted = classifiers["protonet"].adapt(x, [np.int64(7), np.int64(7), np.int64(5), np.int64(5)])
    adapted.save(tmp_path / "task")
    assert classifiers["protonet"].load_adapted(tmp_path / "task").predict(x).label == [7, 7, 5, 5]


def test_a_list_of_classification_tasks_with_few_examples_is_trained_on(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tasks = [(random.normal(size=(20, 3)), ["a"] * 10 + ["b"] * 10) for _ in range(6)]
    learner = Learner("maml", data=tasks, out=tmp_path / "run", **TRAINING).train(updates=1)
    data = learner.experiment.data
    assert (data.outputs, data.shot, data.query) == (2, (1, 5), 5)
    x, y = tasks[0]
    assert fewsure.load(tmp_path / "run").adapt(x[6:14], y[6:14]).predict(x).probabilities.shape == (20, 2)


def test_pixels_out_of_range_are_refused_alike_in_training_and_in_adapting() -> None:
    random = np.random.default_rng(0)
    images = {k: random.random((6, 1, 16, 16)) for k in range(12)}
    options = {"way": 2, "filters": 2, "tasks": 2, "device": "cpu"}
    learner = Learner("protonet", data=images, **options).train(updates=1)
    x, y = np.concatenate([images[0][:2], images[1][:2]]), ["a", "a", "b", "b"]
    learner.adapt(x, y)
    for change, came in (
        (lambda pixels: 255 * pixels, "float64 from "),
        (lambda pixels: pixels - 0.5, "float64 from -"),
    ):
        words = f"as bytes .uint8. or as numbers from 0 to 1, but got {came}.*; convert with astype.'uint8'., or divide"
        with pytest.raises(FewsureError, match="expected pixels of class 0 " + words):
            Learner("protonet", data={k: change(pixels) for k, pixels in images.items()}, **options)
        with pytest.raises(FewsureError, match="expected pixels of `x` " + words):
            learner.adapt(change(x), y)


WRONG_DATA = {
    "no tasks": ([], "expected tasks .x, y., but the data given has none"),
    "not pairs": ([np.zeros(3)], r"expected task 0 to be a pair \(x, y\) of arrays"),
    "a number": (7, "expected `data` to be the name of a data set, .* but got int"),
    "other lengths": ([(np.zeros((3, 1)), np.zeros(4))], "x and y of task 0 to have the same length, but got 3 and 4"),
    "NaN in a task": ([(np.full((3, 1), np.nan), np.zeros(3))], "finite numbers in x of task 0, but row 0 has NaN"),
    "other widths": (
        [(np.zeros((3, 1)), np.zeros(3)), (np.zeros((3, 2)), np.zeros(3))],
        r"examples of one shape, but got \(1,\) and \(2,\)",
    ),
    "too few tasks": ([(np.zeros((20, 1)), np.zeros(20))] * 2, "expected 3 tasks or more, .* but got 2"),
    "a path": (Path(__file__), r"is a path; give fewsure.Table\(file=…"),
    "an unknown name": ("sine-lines", "table, table-classes, but got 'sine-lines'; did you mean 'sine-line'"),
    "no classes": ({}, "expected examples of classes, {class: examples}, but the data given has none"),
    "no labels": ((np.zeros((4, 1)), None), r"labels of shape \(N,\), one for each example, but got None"),
    "a number as labels": ((np.zeros((4, 1)), 5), r"labels of shape \(N,\), one for each example, but got 5"),
    "labels with lists": ((np.zeros((4, 1)), [(1, [2])] * 4), r"labels of shape \(N,\), one for each example"),
    "arrays as labels": ((np.zeros((4, 1)), [np.zeros(2)] * 4), r"labels of shape \(N,\), one for each example"),
}


@pytest.mark.parametrize("case", WRONG_DATA)
def test_wrong_data_is_refused_with_what_to_do(case: str) -> None:
    data, message = WRONG_DATA[case]
    with pytest.raises(FewsureError, match=message):
        Learner("maml", data=data, **TRAINING).train(updates=1)


X, Y = support()
LONG = np.zeros((3, FEATURES + 1))
WRONG_SUPPORT = {
    "text": (np.array([["a"] * FEATURES] * 6), Y, "expected `x` to be numbers, but got text"),
    "objects": (np.array([[None] * FEATURES] * 6), Y, "expected `x` to be numbers, but got values of type object"),
    "complex": (X * 1j, Y, "expected `x` to be numbers, but got values of type complex128"),
    "NaN": (np.where(np.arange(6)[:, None] == 2, np.nan, X), Y, "example 2 has NaN or infinity; fill it in, or leave"),
    "other features": (LONG, Y[:3], r"expected `x` of shape \(N, 4\), .* but got \(3, 5\); give the same 4 inputs"),
    "no first axis": (X[0], Y[:1], r"a single example needs a first dimension, x\[None\]"),
    "ragged": ([[1.0], [1.0, 2.0]], Y[:2], "expected `x` to be an array, but its rows differ in length"),
    "empty": (X[:0], [], "expected `x` to hold at least 1 example, but got none"),
    "fewer labels": (X, Y[:4], "a label for each of 6 examples of x, but got 4 labels"),
    "one class": (X, ["a"] * 6, "2 classes or more, but all have the label 'a'; there is nothing to tell apart"),
    "one-hot": (X, np.eye(6), r"labels of shape \(N,\), .* but got \(6, 6\); of one-hot rows, give argmax\(1\)"),
    "a label is missing": (X, [*Y[:5], None], "label 5 is None; leave the example out"),
    "a label is NaN": (X, [0.0, 0.0, 1.0, 1.0, 2.0, float("nan")], "label 5 is nan; leave the example out"),
    "lists as labels": (X, [[k] for k in range(6)], "one name or number for each example, but label 0 is a list"),
    "a string as labels": (X, "abcabc", "labels as a list, an array or a tensor, but got str"),
}


@pytest.mark.parametrize("case", WRONG_SUPPORT)
def test_a_wrong_support_set_is_refused_with_what_to_do(classifiers: dict[str, Learner], case: str) -> None:
    x, y, message = WRONG_SUPPORT[case]
    with pytest.raises(FewsureError, match=message):
        classifiers["protonet"].adapt(x, y)


def test_wrong_targets_and_queries_are_refused_with_what_to_do(
    classifiers: dict[str, Learner], regressors: dict[str, Learner], tmp_path: Path
) -> None:
    x, y = line_tasks()[0]
    learner = regressors["simpa"]
    for targets, message in (
        (["low"] * 5, "expected `y` to be numbers, but got text; encode"),
        (y[:4], r"expected `y` of shape \(5,\), a number for each example of x, but got \(4,\)"),
        (np.full(5, np.inf), "finite numbers in `y`, but example 0 has NaN or infinity"),
    ):
        with pytest.raises(FewsureError, match=message):
            learner.adapt(x[:5], targets)
    with pytest.raises(FewsureError, match="2 examples or more for simpa"):
        learner.adapt(x[:1], y[:1])
    adapted = learner.adapt(x[:5], y[:5])
    with pytest.raises(FewsureError, match=r"expected `x` of shape \(N, 2\)"):
        adapted.predict(np.zeros((4, 3)))
    with pytest.raises(FewsureError, match="`batch_size` to be at least 1"):
        adapted.predict(NUMBERS, batch_size=0)
    with pytest.raises(FewsureError, match=r"`level` to be a probability in \(0, 1\), but got 5"):
        adapted.predict(NUMBERS).quantile(5)
    with pytest.raises(FewsureError, match=r"text or numbers to be stored, but got \('a', 1\)"):
        classifiers["protonet"].adapt(X, [("a", 1)] * 3 + [("b", 2)] * 3).save(tmp_path / "task")
    assert not (tmp_path / "task").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "simpla"}, "did you mean 'simpa'"),
        ({"shott": 5}, "did you mean 'shot'"),
        ({"learning_rate": 1e-3}, "did you mean 'lr'"),
        ({"batch_size": 8}, "did you mean 'tasks'"),
        ({"shot": "five"}, "expected `shot` to be a whole number or a range, 5 or 1-10, but got 'five'"),
        ({"shot": 0}, "expected `shot` to be at least 1 example, but got 0"),
        ({"preset": "papers"}, "did you mean 'paper'"),
        ({"preset": None}, "expected `preset` to be of type str, but got None"),
        ({"algorithm": None}, "expected `algorithm` to be of type str, but got None"),
        ({"device": None}, "expected --device to be cpu, cuda or auto"),
        ({"device": "gpu"}, "expected --device to be cpu, cuda or auto"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FewsureError, match=message):
        Learner(**{"algorithm": "simpa"} | options)


def test_a_method_may_be_an_object() -> None:
    data = fewsure.regression_tasks(line_tasks(), shot=5)
    method, preset = Maml(inner_lr=0.02, inner_steps=3), Learner("maml", data).experiment
    assert Learner(method, data).experiment == dataclasses.replace(preset, algorithm=method)
    given = Maml(inner_lr=np.float64(0.02))  # type: ignore[arg-type]
    assert to_record(Learner(given, data, inner_steps=3).experiment.algorithm) == to_record(method)
    with pytest.raises(FewsureError, match=r"`inner_steps` to be of type int, but got 2\.5"):
        Learner(Maml(inner_steps=2.5), data)  # type: ignore[arg-type]
    with pytest.raises(FewsureError, match=r"to be a method, but got its class; write Maml\(\)"):
        Learner(Maml, data)  # type: ignore[arg-type]


def test_editors_know_every_option() -> None:
    assert learner_options.FILE.read_text(encoding="utf-8") == learner_options.module(), (
        "run `python tests/learner_options.py`"
    )
    hints = get_type_hints(fewsure.learner.options.Options)
    assert hints["inner_clip_norm"] == float | None
    assert hints["shot"] == int | tuple[int, int] | str


def test_every_method_has_a_public_name() -> None:
    assert {*algorithms.__all__} == {"ALGORITHMS", *(kind.__name__ for kind in ALGORITHMS.values())}
    assert all(getattr(algorithms, kind.__name__) is kind for kind in ALGORITHMS.values())


def test_options_of_tasks_in_python_are_refused_by_name(regressors: dict[str, Learner]) -> None:
    with pytest.raises(FewsureError, match="`shot` to be a whole number or a range, 5 or 1-10, but got 'five'"):
        fewsure.regression_tasks(line_tasks(), shot="five")
    with pytest.raises(FewsureError, match="did you mean 'shot'"):
        fewsure.classification_tasks([], shott=3)
    learner = regressors["maml"]
    for call, message in (
        (lambda: learner.train(checkpoint_every="a"), "`checkpoint_every` to be of type int, but got 'a'"),  # type: ignore[arg-type]
        (lambda: learner.evaluate(tasks=10.5), "`tasks` to be of type int, but got 10.5"),  # type: ignore[arg-type]
        (lambda: learner.certify(alpha="x"), "`alpha` to be of type float, but got 'x'"),  # type: ignore[arg-type]
        (lambda: learner.certify(unit="x"), "`unit` to be one of tasks, new-tasks, but got 'x'"),  # type: ignore[arg-type]
        (lambda: learner.adapt(*line_tasks()[0]).predict(NUMBERS, coverage="a"), "`coverage` to be of type float"),  # type: ignore[arg-type]
        (lambda: learner.adapt(*line_tasks()[0]).predict(NUMBERS).quantile([0.1]), "`level` to be of type float"),  # type: ignore[arg-type]
    ):
        with pytest.raises(FewsureError, match=message):
            call()


def test_none_may_be_written_as_on_the_command_line() -> None:
    for none in (None, "none"):
        options = {"way": 3, "shot": 2, "query": 4, "softmax_temperature": none, "train_way": none}
        assert Learner("maml", data=blobs(), **options, **TRAINING).experiment.data.softmax_temperature is None


def test_what_is_not_there_yet_is_said(tmp_path: Path) -> None:
    learner = Learner("maml", "sine-line", **TRAINING)
    with pytest.raises(FewsureError, match=r"not trained yet: call train\(\) first, or fewsure.load"):
        learner.adapt([0.0], [0.0])
    with pytest.raises(FewsureError, match=r"is not a run: it has no config.json"):
        fewsure.load(tmp_path)
    learner.train(updates=2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    with pytest.raises(FewsureError, match="expected `folder` to be new or empty"):
        learner.save(tmp_path / "full")
    with pytest.raises(FewsureError, match=r"trained with 2 updates, .* but got 9; train a new Learner"):
        learner.train(updates=9)
    with pytest.raises(FewsureError, match=r"expected `updates` to be of type int, but got 2.5"):
        learner.train(updates=2.5)  # type: ignore[arg-type]


def test_importing_fewsure_does_not_load_torch() -> None:
    code = "import sys, fewsure; assert 'torch' not in sys.modules; assert 'Learner' in dir(fewsure); fewsure.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "has no attribute 'nothing'" in done.stderr
