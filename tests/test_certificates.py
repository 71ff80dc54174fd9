"""Held-out certificates, hierarchical conformal prediction and the rules about what is fresh, against known truth."""

import doctest
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fewsure.certification.predictor import measure
from fewsure.errors import FewsureError
from fewsure.evaluation.metrics.scores import class_probabilities
from fewsure.theory import conformal
from fewsure.theory.concentration import upper_limit
from fewsure.theory.conformal import (
    Calibration,
    conformal_threshold,
    label_scores,
    prediction_intervals,
    prediction_sets,
    probability_scores,
    residual_scores,
)
from fewsure.theory.held_out import disjoint_tasks, held_out, split_classes

REPETITIONS = 2000


# Held-out certificates


@pytest.mark.parametrize("delta", [0.05, 0.2])
def test_the_certificate_of_tasks_with_many_queries_fails_no_more_often_than_delta(delta: float) -> None:
    """A task's error rate is uniform on [0, 0.4], its loss the share of errors among 15 queries: on average 0.2."""
    generator = torch.Generator().manual_seed(0)
    rates = 0.4 * torch.rand(REPETITIONS, 50, 1, generator=generator)
    losses = (torch.rand(REPETITIONS, 50, 15, generator=generator) < rates).double().mean(-1)
    allowed = delta + 3 * math.sqrt(delta * (1 - delta) / REPETITIONS)
    for method in ("betting", "chernoff", "both"):
        assert float((upper_limit(losses, delta, method) < 0.2).double().mean()) <= allowed
    certificate = held_out(losses[0], delta)
    assert certificate.limit == float(upper_limit(losses[0], delta, "betting"))
    assert certificate.mean == pytest.approx(float(losses[0].mean()))
    assert (certificate.tasks, certificate.vacuous) == (50, False)


def test_a_certificate_of_nothing_but_errors_is_vacuous() -> None:
    certificate = held_out(torch.ones(30), 0.05, "chernoff")
    assert certificate.vacuous
    assert certificate.record() == {
        "limit": 1.0,
        "mean": 1.0,
        "tasks": 30,
        "delta": 0.05,
        "method": "chernoff",
        "vacuous": True,
    }


def test_bad_input_to_a_certificate_is_refused_with_the_reason() -> None:
    fine = torch.full((10,), 0.5)
    with pytest.raises(FewsureError, match="one value says nothing of a mean"):
        held_out(fine[:1], 0.05)
    with pytest.raises(FewsureError, match="delta"):
        held_out(fine, 1.5)
    with pytest.raises(FewsureError, match=r"in \[0, 1\]"):
        held_out(fine + 1, 0.05)
    with pytest.raises(FewsureError, match=r"in \[0, 1\], but 1 of 11 are not, for instance nan"):
        held_out(torch.cat([fine, torch.tensor([math.nan])]), 0.05)


# Which classes and tasks


def test_the_split_of_classes_depends_on_their_names_alone() -> None:
    names = [f"alphabet/character{number:02}" for number in range(659)]
    calibration, test = split_classes(names)
    assert (len(calibration), len(test)) == (330, 329)
    assert not set(calibration) & set(test)
    assert set(calibration) | set(test) == set(names)
    assert split_classes(names[::-1]) == (calibration, test)
    fewer = split_classes(names[:-1])  # one class less moves at most one other class to the other side
    assert len(set(fewer[0]) ^ set(calibration)) <= 2
    by_parity = sum(int(name[-2:]) % 2 for name in calibration)  # and the split does not follow the names' order
    assert 120 < by_parity < 210


def test_class_disjoint_tasks_use_no_class_twice_and_every_class_but_a_few() -> None:
    tasks = disjoint_tasks(33, way=5, seed=0)
    assert tasks.shape == (6, 5)
    assert len(set(tasks.flatten().tolist()) & set(range(33))) == 30
    assert not torch.equal(disjoint_tasks(33, way=5, seed=1), tasks)


def test_class_rules_refuse_bad_input() -> None:
    with pytest.raises(FewsureError, match="one for each half"):
        split_classes(["one"])
    with pytest.raises(FewsureError, match="different"):
        split_classes(["a", "a", "b"])
    with pytest.raises(FewsureError, match="at least 5"):
        disjoint_tasks(2, way=5, seed=0)


# Conformal prediction


def hierarchical_scores(sizes: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Points of tasks that differ a lot: a task's centre and scale, then its points."""
    centre = 2 * torch.randn(len(sizes), generator=generator).repeat_interleave(sizes)
    scale = torch.randn(len(sizes), generator=generator).exp().repeat_interleave(sizes)
    return centre + scale * torch.randn(int(sizes.sum()), generator=generator)


@pytest.mark.parametrize(("tasks", "alpha"), [(19, 0.1), (30, 0.2), (12, 0.1)])
@pytest.mark.parametrize("points", ["one", "equal", "unequal"])
def test_hierarchical_coverage_is_what_the_theory_says(points: str, tasks: int, alpha: float) -> None:
    generator = torch.Generator().manual_seed(tasks)
    covered, most, smallest = 0, 8, {"one": 1, "equal": 6, "unequal": 1}[points]
    for _ in range(REPETITIONS):
        if points == "unequal":
            sizes = torch.randint(1, most, (tasks + 1,), generator=generator)
        else:
            sizes = torch.full((tasks + 1,), smallest)
        scores = hierarchical_scores(sizes, generator)
        calibration = int(sizes[:-1].sum())
        threshold = conformal_threshold(scores[:calibration], sizes[:-1], alpha)
        covered += float(scores[calibration]) <= threshold
    excess = (1 if points != "unequal" else 2) / (tasks + 1)
    error = 3 * math.sqrt(alpha * (1 - alpha) / REPETITIONS)
    assert 1 - alpha - error <= covered / REPETITIONS <= 1 - alpha + excess + error


def test_each_task_weighs_the_same_however_many_points_it_has() -> None:
    """Nine tasks with one point each at 0, and one with 1,000 points at 1, which must not outvote them."""
    scores = torch.cat([torch.zeros(9), torch.ones(1000)])
    sizes = torch.tensor([1] * 9 + [1000])
    assert conformal_threshold(scores, sizes, alpha=0.2) == 0
    assert conformal_threshold(scores, sizes, alpha=0.1) == 1


def test_the_quantile_is_exact_where_weights_add_up_to_the_level() -> None:
    """K = 9, α = 0.3: 0.7 · 10 = 7 of 9 tasks; in floating point 0.7 and sums of 1/3 would miss it."""
    scores, sizes = torch.arange(27.0), torch.full((9,), 3)
    assert conformal_threshold(scores, sizes, alpha=0.3) == 20  # the 21st of 27
    assert conformal_threshold(torch.arange(99.0), torch.ones(99, dtype=torch.int64), alpha=0.05) == 94


def test_too_few_tasks_give_an_infinite_threshold_and_every_label() -> None:
    scores, sizes = torch.zeros(16), torch.full((8,), 2)
    assert conformal_threshold(scores, sizes, alpha=0.1) == math.inf
    assert conformal_threshold(scores, sizes, alpha=0.12) == 0
    assert bool(prediction_sets(torch.tensor([[0.0, 1.0]]), math.inf).all())
    lower, upper = prediction_intervals(torch.zeros(2), math.inf, torch.ones(2))
    assert bool(lower.isinf().all())
    assert bool(upper.isinf().all())


def test_sets_and_intervals_hold_the_labels_with_scores_up_to_the_threshold() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(4, 51, 5, generator=generator).double().softmax(-1)
    labels = torch.randint(0, 5, (4, 51), generator=generator)
    found = probability_scores(probabilities, labels)
    torch.testing.assert_close(found, 1 - probabilities.gather(-1, labels.unsqueeze(-1)).squeeze(-1))
    measured = measure({"probabilities": probabilities, "y": labels}, float(found.median()))
    covered = (found <= found.median()).double().mean(1)
    assert measured["coverage"] == pytest.approx(float(covered.mean()))
    assert measured["error"] == pytest.approx(float(covered.std()) / 2)
    assert measured["size"] == pytest.approx(float((1 - probabilities <= found.median()).double().sum(-1).mean()))

    mean, y = torch.randn(2, 4, 51, generator=generator)
    spread = torch.rand(4, 51, generator=generator) + 0.1
    found = residual_scores(mean, y, spread)
    torch.testing.assert_close(found, (y.double() - mean.double()).abs() / spread.double())
    measured = measure({"mean": mean, "spread": spread, "y": y}, float(found.median()))
    assert measured["coverage"] == pytest.approx(float((found <= found.median()).double().mean()))
    assert measured["size"] == pytest.approx(2 * float(found.median()) * float(spread.double().mean()), rel=1e-4)


def test_intervals_hold_labels_that_lie_on_their_ends() -> None:
    """Of labels 0 and 1 around a mean of 0.1 with spread 0.3 the score of 1 is the threshold, and the end rounds."""
    mean, spread = torch.tensor([0.1]), torch.tensor([0.3])
    labels = torch.randint(0, 2, (REPETITIONS, 20, 1), generator=torch.Generator().manual_seed(0)).float()
    covered = 0
    for y in labels:
        scores = residual_scores(mean.expand(19, 1), y[:-1], spread.expand(19, 1)).flatten()
        lower, upper = prediction_intervals(mean, conformal_threshold(scores, torch.ones(19, dtype=int), 0.1), spread)
        covered += bool(lower <= y[-1] <= upper)
    assert covered / REPETITIONS >= 1 - 0.1


def test_sets_of_a_few_queries_hold_classes_whose_rivals_are_beyond_single_precision() -> None:
    """Logits 16 to 17 apart: 1 − p is 1e-7, and in single precision a mean of 32 depends on the number of queries."""
    generator, tasks, points = torch.Generator().manual_seed(0), 9, 15

    def probabilities(queries: int) -> torch.Tensor:
        outputs = torch.zeros(32, queries, 5)
        outputs[..., 0] = 16 + torch.rand(32, queries, generator=generator)
        return class_probabilities(outputs)

    covered = dict.fromkeys((2, 3, 5), 0.0)
    for _ in range(2000):
        calibration = torch.stack([probabilities(points) for _ in range(tasks)])
        scores = probability_scores(calibration, torch.zeros(tasks, points, dtype=int)).flatten()
        threshold = conformal_threshold(scores, torch.full((tasks,), points), 0.2)
        for queries in covered:
            covered[queries] += float(prediction_sets(probabilities(queries), threshold)[:, 0].double().mean()) / 2000
    assert min(covered.values()) >= 1 - 0.2
    assert float(label_scores(probabilities(1))[0, 0]) == pytest.approx(4 * math.exp(-16.5), rel=0.2)


def test_conformal_prediction_refuses_bad_input() -> None:
    with pytest.raises(FewsureError, match="alpha"):
        conformal_threshold(torch.zeros(4), torch.full((4,), 1), alpha=1.0)
    with pytest.raises(FewsureError, match="spread"):
        residual_scores(torch.zeros(3), torch.zeros(3), torch.tensor([1.0, 0.0, 1.0]))


def calibration(**changes: object) -> Calibration:
    scores = torch.rand(30, generator=torch.Generator().manual_seed(0)).double()
    facts = {"score": "probability", "way": 5, "shot": 1, "query": 75, "transductive": True}
    facts |= {"environment": "omniglot, 330 classes of its test pool", "seed": 3, "samples": 32}
    facts |= {"checkpoint": "c0ffee", "draws": {"shared/theta": torch.arange(3.0)}}
    return Calibration(**({"scores": scores, "sizes": torch.tensor([10, 5, 15])} | facts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": torch.tensor([10, 5, 14])}, "as many as the tasks have points, 29"),
        ({"sizes": torch.tensor([30])}, "at least 2"),
        ({"sizes": torch.tensor([30, 0])}, "at least 1 each"),
        ({"scores": torch.full((30,), math.nan)}, "finite"),
    ],
)
def test_a_calibration_that_does_not_add_up_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(FewsureError, match=message):
        calibration(**changes)


def test_a_calibration_is_for_tasks_like_its_own() -> None:
    like = {"way": 5, "shot": 1, "points": 75}
    calibration().require_like(**like)
    for name, value in (("way", 20), ("shot", 5)):
        with pytest.raises(FewsureError, match=f"expected `{name}`"):
            calibration().require_like(**(like | {name: value}))
    for points in (1, 74, 76):
        with pytest.raises(
            FewsureError, match=f"75 query points, .* since they are predicted together, but got {points}"
        ):
            calibration().require_like(**(like | {"points": points}))
    calibration(transductive=False).require_like(**(like | {"points": 1}))


@pytest.mark.parametrize("way", [5, None])
def test_a_saved_calibration_reads_back(tmp_path: Path, way: int | None) -> None:
    path, written = tmp_path / "conformal-5.safetensors", calibration(way=way)
    conformal.save(path, written)
    read = conformal.load(path)
    torch.testing.assert_close(read.scores, written.scores, rtol=0, atol=0)
    assert torch.equal(read.sizes, written.sizes)
    assert torch.equal(read.draws["shared/theta"], written.draws["shared/theta"])
    tensors = {name: getattr(written, name) for name in ("scores", "sizes", "draws")}
    assert replace(read, **tensors) == replace(written, **tensors)
    assert read.threshold(0.3) == written.threshold(0.3)


def test_a_damaged_calibration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "conformal-5.safetensors"
    with pytest.raises(FewsureError, match="is not there; make it with `fewsure certify`"):
        conformal.load(path)
    conformal.save(path, calibration())
    whole = path.read_bytes()

    for content in (whole[:-8], b"", b"not a file of tensors", whole.replace(b'\\"seed\\"', b'\\"sead\\"')):
        path.write_bytes(content)
        with pytest.raises(FewsureError, match="cannot be read"):
            conformal.load(path)

    path.write_bytes(whole)
    tensors = load_file(path)
    save_file(tensors, path)  # without its facts
    with pytest.raises(FewsureError, match="cannot be read"):
        conformal.load(path)
    path.write_bytes(whole.replace(f'\\"format\\": {conformal.FORMAT}'.encode(), b'\\"format\\": 1'))
    with pytest.raises(FewsureError, match="of another format"):
        conformal.load(path)


def test_the_worked_example_of_the_guarantees_page_computes_what_it_says() -> None:
    page = Path(__file__).resolve().parents[1] / "docs" / "guarantees.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert (failed, tried > 10) == (0, True)
