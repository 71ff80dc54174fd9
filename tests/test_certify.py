"""From a trained run to its certificates: fresh tasks, one predictor, honest bounds, and what is refused."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fewsure.algorithms.maml import Maml
from fewsure.algorithms.platipus import Platipus
from fewsure.certification import calibration_of, draws_of, with_coverage
from fewsure.certification.certify import Request, certify_run
from fewsure.certification.environment import Unit, environment_of, fresh_blocks
from fewsure.certification.freshness import require_fresh
from fewsure.certification.predictor import CertifiedPredictor, calibration_file, new_draws, scores
from fewsure.certification.theorem_2 import theorem_of
from fewsure.cli.main import main
from fewsure.core import streams
from fewsure.core.vectorise import draw_per_task, take
from fewsure.data.episodes import Episodes, RowTasks
from fewsure.data.features import FeatureHeadOptions, Features
from fewsure.data.memory import forget
from fewsure.data.own.arrays import GivenClasses, GivenRegression, classification_tasks, regression_tasks
from fewsure.data.own.tables import Table
from fewsure.data.pools import SPLITS, Pool, restrict
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.evaluation.evaluate import unseen_block
from fewsure.networks.mlp import MlpOptions
from fewsure.pipeline import start_at_maml, start_run
from fewsure.report.certificates import BEGIN, END, certificate_table, certificate_text, certificates_section
from fewsure.theory.conformal import conformal_threshold, residual_scores
from fewsure.theory.held_out import held_out, split_classes
from fewsure.theory.pac_bayes import theorem_2
from fewsure.training.experiment import Experiment, Training
from fewsure.training.runs import Run

from .helpers import small_simpa, write_blobs

CPU = torch.device("cpu")


def untrained(folder: Path, experiment: Experiment) -> Run:
    """A run at its start: certificates hold whatever the training was."""
    run = start_run(folder, experiment, resume=False)
    run.save(run.initial())
    return run


def sine_line(**options: object) -> Experiment:
    algorithm = small_simpa(sigma_theta=0.5, **options)
    return Experiment(algorithm, SineLine(query=7), MlpOptions((5,)), Training(tasks=3), preset="test")


def blobs(folder: Path, **options: object) -> Experiment:
    """Maml on Gaussian blobs: 24 classes in each split, 5-way 1-shot would be easy, 3-way 2-shot is easier still."""
    data = Features(**({"folder": str(write_blobs(folder, classes=24)), "way": 3, "shot": 2, "query": 4} | options))  # type: ignore[arg-type]
    return Experiment(Maml(inner_lr=0.1), data, FeatureHeadOptions((8,)), Training(tasks=3), preset="test")


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return untrained(tmp_path_factory.mktemp("certify") / "sine-line", sine_line())


@pytest.fixture(scope="module")
def classification(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("certify")
    return untrained(folder / "run", blobs(folder / "blobs"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Which tasks


def test_a_restricted_pool_has_the_examples_of_its_classes_and_no_others(classification: Run) -> None:
    pool = classification.experiment.data.pool("test")
    names = pool.classes[1::3][::-1]
    part = restrict(pool, names)
    assert part.classes == pool.classes[1::3]
    of_class, of_part = (
        dict(zip(one.classes, one.examples.split(one.counts.tolist()), strict=True)) for one in (pool, part)
    )
    assert all(torch.equal(rows, of_class[name]) for name, rows in of_part.items())
    assert len({pool.checksum, part.checksum, restrict(pool, names[1:]).checksum}) == 3
    with pytest.raises(FewsureError, match="1 are not, for instance 'unheard of'"):
        restrict(pool, ["unheard of", names[0]])


def test_tasks_of_given_classes_are_what_the_sampler_draws_for_these_classes(classification: Run) -> None:
    episodes = Episodes(classification.experiment.data.pool("test"), way=3, shot=2, query=4)
    drawn, facts = episodes.sample(6, streams.generator(0, "test"))
    generator = streams.generator(0, "test")
    torch.randint(1, (6,), generator=generator)  # the sampler's choice of a group
    torch.rand(6, len(episodes.pool.classes), generator=generator)  # and of classes
    again, same = episodes.sample_of(facts["classes"], generator)
    assert torch.equal(same["classes"], facts["classes"])
    assert torch.equal(again.support.x, drawn.support.x)
    assert torch.equal(again.query.x, drawn.query.x)


def test_certified_tasks_are_of_one_half_of_the_test_classes_and_the_checks_of_both(classification: Run) -> None:
    experiment = classification.experiment
    calibration, test = split_classes(experiment.data.pool("test").classes)
    environment = environment_of(experiment, "tasks", 0, CPU)
    assert set(environment.unseen) == {"other tasks", "other classes"}
    for fresh, half in ((environment.certified, calibration), (environment.unseen["other classes"], test)):
        assert isinstance(fresh.sampler, Episodes)
        assert fresh.sampler.pool.classes == half
    assert "features test pool, calibration half (12 of 24 classes), 3-way 2-shot" in environment.certified.description


def test_class_disjoint_tasks_share_no_class(classification: Run) -> None:
    environment = environment_of(classification.experiment, "new-tasks", 0, CPU)
    ((_, facts),) = fresh_blocks(environment.certified, "held-out", 4, 0, CPU)
    classes = facts["classes"].flatten().tolist()
    assert len(set(classes)) == len(classes) == 12
    assert set(environment.unseen) == {"other classes"}
    assert environment.assumed.endswith("a random sample of all classes with at least 6 examples (shot + query)")
    with pytest.raises(FewsureError, match="`tasks` to be at most 4, the tasks without a class or group in"):
        list(fresh_blocks(environment.certified, "held-out", 5, 0, CPU))


def test_the_first_tasks_do_not_depend_on_how_many_follow_and_no_other_stream_has_them(regression: Run) -> None:
    fresh = environment_of(regression.experiment, "tasks", 0, CPU).certified

    def first_inputs(part: str, tasks: int) -> torch.Tensor:
        return torch.cat([task.support.x for task, _ in fresh_blocks(fresh, part, tasks, 0, CPU)])

    assert torch.equal(first_inputs("held-out", 45)[:25], first_inputs("held-out", 25))
    certified = first_inputs("held-out", 20)
    others = [first_inputs(part, 20) for part in ("verify", "other tasks")]
    others += [unseen_block(regression.experiment, 0, 0, split, CPU).task.support.x for split in SPLITS]
    assert all(not bool((certified == other).any()) for other in others)


# The predictor


def test_the_calibration_is_of_predictions_with_its_own_draws(regression: Run) -> None:
    """The scores by hand: adapt and predict with the stored random numbers, residual over spread."""
    certify_run(regression, CPU, Request(tasks=25, bound_samples=4))
    calibration, experiment = calibration_of(regression), regression.experiment
    assert calibration is not None
    draws = draws_of(calibration, experiment)
    for stored, drawn in zip(draws, new_draws(experiment, 0, 32), strict=True):
        assert stored.keys() == drawn.keys()
        assert all(torch.equal(stored[name], drawn[name]) for name in drawn)
    assert calibration.samples == 32
    assert (calibration.way, calibration.shot, calibration.query, calibration.tasks) == (None, 5, 7, 25)

    meta = regression.load(CPU).meta
    fresh = environment_of(experiment, "tasks", 0, CPU).certified
    task, _ = take(next(iter(fresh_blocks(fresh, "held-out", 25, 0, CPU))), 3)
    posterior = experiment.algorithm.adapt(meta, experiment.model, task.support, draws.shared | draws.adapt)
    outputs = experiment.algorithm.predict(posterior, experiment.model, task.query.x, draws.predict)
    residual = (task.query.y - outputs.mean(0)).abs() / (outputs.std(0) + 0.3)
    torch.testing.assert_close(calibration.scores[21:28].float(), residual.squeeze(-1), rtol=1e-4, atol=1e-5)

    lower, upper = with_coverage(calibration, experiment, outputs, shot=5, coverage=0.9)
    inside = (lower <= task.query.y.squeeze(-1)) & (task.query.y.squeeze(-1) <= upper)
    assert torch.equal(inside, calibration.scores[21:28] <= calibration.threshold(0.1))
    with pytest.raises(FewsureError, match="expected `shot` to be 5, as in the calibration tasks, but got 3"):
        with_coverage(calibration, experiment, outputs, shot=3, coverage=0.9)
    with pytest.raises(FewsureError, match="expected `coverage`"):
        with_coverage(calibration, experiment, outputs, shot=5, coverage=1.0)


def test_sets_of_classes_come_from_the_calibrated_probabilities(classification: Run) -> None:
    certify_run(classification, CPU, Request(tasks=40))
    calibration, experiment = calibration_of(classification), classification.experiment
    assert calibration is not None
    assert calibration.draws == {}
    outputs = torch.randn(1, 12, 3, generator=torch.Generator().manual_seed(0))
    sets = with_coverage(calibration, experiment, outputs, shot=2, coverage=0.8)
    assert isinstance(sets, torch.Tensor)
    assert torch.equal(sets, 1 - outputs[0].softmax(-1).double() <= calibration.threshold(0.2))
    assert calibration.threshold(0.2) == conformal_threshold(calibration.scores, calibration.sizes, 0.2)


def test_a_calibration_of_another_checkpoint_or_experiment_is_refused(regression: Run, tmp_path: Path) -> None:
    certify_run(regression, CPU, Request(tasks=4, bound_samples=4))
    calibration = calibration_of(regression)
    assert calibration is not None
    other = untrained(tmp_path / "run", sine_line(latent=2))
    assert calibration_of(other) is None
    with pytest.raises(FewsureError, match="of this experiment, whose random numbers are"):
        draws_of(calibration, other.experiment)
    (other.folder / "conformal-5.safetensors").write_bytes((regression.folder / "conformal-5.safetensors").read_bytes())
    with pytest.raises(FewsureError, match="belongs to another checkpoint; run `fewsure certify"):
        calibration_of(other)


def test_training_further_removes_what_was_certified(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", sine_line())
    certify_run(run, CPU, Request(tasks=4, bound_samples=4))
    assert {"certificate.json", "conformal-5.safetensors"} <= set(files(run.folder))
    run.forget_evaluation()
    assert set(files(run.folder)) == {"config.json", "data.json", "checkpoint.safetensors"}


# The statements


def test_the_loss_of_a_task_is_the_clipped_error_of_the_mean_prediction(regression: Run) -> None:
    experiment = regression.experiment
    predictor = CertifiedPredictor(experiment, regression.load(CPU).meta, new_draws(experiment, 0, 32))
    fresh = environment_of(experiment, "tasks", 0, CPU).certified
    records = predictor.records(fresh_blocks(fresh, "held-out", 30, 0, CPU), lambda done: None)
    by_hand = (records["mean"] - records["y"]).square().clamp(max=1).double().mean(1)
    torch.testing.assert_close(records["loss"], by_hand)
    assert 0 < float(by_hand.min()) < float(by_hand.max()) <= 1
    record = certify_run(regression, CPU, Request(tasks=30, bound_samples=4, delta=0.2, method="both"))
    assert record["held_out"] == held_out(by_hand, 0.2, "both").record() | {"diverged": 0}
    assert scores(records)[0] == "scaled residual"


def test_certificate_and_coverage_hold_on_many_other_tasks(classification: Run) -> None:
    record = certify_run(classification, CPU, Request(tasks=400, alpha=0.2, verify=2000))
    held, measured = record["held_out"], record["measured"]
    assert measured["tasks"] == 2000
    assert measured["mean"] - measured["ci95"] <= held["limit"] <= measured["mean"] + 0.05
    other_tasks, other_classes = record["conformal"]["measured"]
    assert (other_tasks["on"], other_classes["on"]) == ("other tasks", "other classes")
    assert other_tasks["coverage"] >= 0.8 - 4 * other_tasks["error"]
    assert 0 < other_tasks["size"] <= 3
    assert record["theorem_2"] == {"reason": "no bound: maml has no posterior over θ"}


def test_tasks_on_which_adaptation_diverged_count_as_lost(tmp_path: Path) -> None:
    experiment = blobs(tmp_path / "blobs")
    run = untrained(tmp_path / "run", dataclasses.replace(experiment, algorithm=Maml(inner_lr=1e30)))
    calibration_file(run, experiment.data.test_shot).write_bytes(b"of an earlier certificate")
    record = certify_run(run, CPU, Request(tasks=20))
    assert record["held_out"]["mean"] == record["held_out"]["limit"] == 1
    assert record["held_out"]["vacuous"]
    assert record["held_out"]["diverged"] == 20
    assert record["conformal"] == {"reason": "no sets: adaptation diverged on 20 of 20 tasks"}
    assert not calibration_file(run, experiment.data.test_shot).exists()
    assert "no sets: adaptation diverged" in certificate_text(record)


def test_too_few_tasks_for_alpha_are_said_so(classification: Run) -> None:
    record = certify_run(classification, CPU, Request(tasks=8))
    sets = record["conformal"]
    assert (sets["threshold"], sets["vacuous"]) == (None, True)
    assert "needs 9" in sets["reason"]
    assert [found["coverage"] for found in sets["measured"]] == [1, 1]
    assert json.loads((classification.folder / "certificate.json").read_text()) == record


# Theorem 2


def test_with_weight_noise_theorem_2_is_rigorous_and_without_it_never() -> None:
    for noise in (0.3, 0.0):
        experiment = sine_line(weight_noise=noise, kl="moment")
        meta = experiment.algorithm.init(experiment.model, streams.generator(0, "init"))
        bounds, critic = theorem_of(experiment, meta, delta=0.1, samples=40, seed=0)
        assert critic is None
        for bound in bounds:
            assert bound.rigorous == (noise > 0)
            assert bound.epsilon == pytest.approx(0.09 if noise else 0.095)
            assert (bound.tasks, bound.examples) == (3, 7)
            readings = [torch.tensor(reading.value, dtype=torch.float64) for reading in bound.readings.values()]
            by_hand = theorem_2(*readings, examples=7, tasks=3, epsilon=bound.epsilon, form=bound.form)
            assert bound.total == pytest.approx(float(by_hand.total))
            assert bound.vacuous
        kl = bounds[0].readings["KL[q(w) ‖ p(w)]"]
        assert kl.worth == ("upper bound" if noise else "lower estimate")
        assert ("the KL of an implicit posterior is infinite" in bounds[0].reason) == (noise == 0)


def test_the_loss_of_theorem_2_is_an_upper_bound_on_many_more_draws() -> None:
    experiment = sine_line(weight_noise=0.3)
    meta = experiment.algorithm.init(experiment.model, streams.generator(0, "init"))
    few, many = (theorem_of(experiment, meta, delta=0.1, samples=samples, seed=0)[0][0] for samples in (10, 60))
    assert few.readings["loss"].value >= many.readings["loss"].value > 0.3
    assert few.readings["KL[q(w) ‖ p(w)]"].value >= many.readings["KL[q(w) ‖ p(w)]"].value


def test_theorem_2_has_the_arithmetic_of_an_evaluation() -> None:
    """A generator's last layer, of 150 × 1,761 numbers, is rounded under bf16 as it is where the run is evaluated."""
    small = sine_line(weight_noise=0.3, generator_hidden=(8, 150))
    experiment = dataclasses.replace(small, network=MlpOptions((40, 40)))
    meta = experiment.algorithm.init(experiment.model, streams.generator(0, "init"))

    def kl(precision: str) -> float:
        training = dataclasses.replace(experiment.training, precision=precision)
        of_run = dataclasses.replace(experiment, training=training)
        return theorem_of(of_run, meta, delta=0.1, samples=4, seed=0)[0][0].readings["KL[q(w) ‖ p(w)]"].value

    assert kl("float32") == kl("tf32") != kl("bf16")
    assert kl("bf16") == pytest.approx(kl("tf32"), rel=0.05)


def test_theorem_2_of_a_mixture_is_that_of_its_components_when_they_are_the_same() -> None:
    """Their losses and KLs are averaged over other draws; the KLs of θ add up."""
    one, two = (sine_line(weight_noise=0.3, kl="moment", components=count) for count in (1, 2))
    meta = one.algorithm.init(one.model, streams.generator(0, "init"))
    twice = {part: {name: torch.cat([value] * 2) for name, value in params.items()} for part, params in meta.items()}
    single, mixture = (
        theorem_of(experiment, parts, delta=0.1, samples=40, seed=0)[0][0].readings
        for experiment, parts in ((one, meta), (two, twice))
    )
    names = ("loss", "KL[q(w) ‖ p(w)]", "KL[q(θ) ‖ p(θ)]")
    assert set(names) == set(mixture)
    assert mixture[names[2]].value == pytest.approx(2 * single[names[2]].value)
    assert mixture[names[1]].value == pytest.approx(single[names[1]].value, rel=0.05)
    assert mixture[names[0]].value == pytest.approx(single[names[0]].value, abs=0.1)


def test_the_mixture_that_predicts_is_the_one_that_is_bounded() -> None:
    """Its components have equal shares, though 5 does not divide the 32 functions that are asked for."""
    mixture, single = (sine_line(components=count) for count in (5, 1))
    algorithm, model = mixture.algorithm, mixture.model
    posterior = algorithm.init(model, streams.generator(0, "init"))
    noise = draw_per_task(algorithm.prediction_noise(model, 32, 5), 1, streams.generator(0, "noise"))
    noise, x = {name: draw[0] for name, draw in noise.items()}, torch.linspace(-5, 5, 9).unsqueeze(-1)
    outputs = algorithm.predict(posterior, model, x, noise)
    of_each = []
    for number in range(5):
        own, part = take(posterior, slice(number, number + 1)), take(noise, slice(number, number + 1))
        of_each.append(single.algorithm.predict(own, model, x, part).mean(0))
    torch.testing.assert_close(outputs.mean(0), torch.stack(of_each).mean(0))
    assert len(outputs) == 35


@pytest.mark.parametrize("kl", ["critic", "moment+critic"])
@pytest.mark.parametrize("components", [1, 2])
def test_no_reading_of_a_critic_is_shown_as_a_kl(components: int, kl: str, tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", sine_line(kl=kl, components=components))
    record = certify_run(run, CPU, Request(tasks=4, bound_samples=8))
    theorem = record["theorem_2"]
    assert theorem["critic"]["worth"] == "lower estimate"
    assert theorem["critic"]["ceiling"] == pytest.approx(math.log(8))
    assert len(theorem["bounds"]) == 3
    for bound in theorem["bounds"]:
        assert not bound["rigorous"]
        assert bound["readings"]["KL[q(w) ‖ p(w)]"]["value"] != theorem["critic"]["value"]
    lines = certificate_text(record).splitlines()
    (of_critic,) = (line for line in lines if "critic" in line)
    assert "lower estimate, no KL; no more than ln(m_φ) = 2.08 can be read" in of_critic
    assert not any("≤" in line for line in lines if line.startswith("Theorem 2, "))
    theorem["critic"] |= {"value": 100.0, "reliable": False}
    assert "can be read, so this is noise" in certificate_text(record)


# The command


def test_the_command_prints_one_table_or_one_object(regression: Run, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["certify", str(regression.folder), "--tasks", "12", "--bound-samples", "5", "--device", "cpu"]
    assert main([*arguments, "--verify", "6", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "fewsure: checkpoint at 0 of 10,000 updates\n"
    record = json.loads(printed.out)
    assert json.loads((regression.folder / "certificate.json").read_text()) == record
    assert (record["updates"], record["planned_updates"]) == (0, 10_000)
    assert set(record) >= {"environment", "assumed", "seed", "version", "device", "seconds", "checkpoint", "loss"}
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0] == record["environment"]
    for statement in ("held-out certificate (betting)", "conformal intervals", "Theorem 2, paper form", "kl form"):
        assert statement in table
    assert f"≤ {record['held_out']['limit']:.4f}" in table
    assert "not guaranteed jointly" in table


def test_results_and_page_hold_the_last_certificate_of_each_run(
    regression: Run, classification: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, page = tmp_path / "new" / "results.json", tmp_path / "page.md"
    page.write_text(f"# Mine\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    kept = ["--results", str(results), "--page", str(page), "--device", "cpu", "--bound-samples", "5", "--json"]
    for run, tasks in ((regression, "11"), (classification, "12"), (regression, "13")):
        assert main(["certify", str(run.folder), "--tasks", tasks, *kept]) == 0
    records = json.loads(results.read_text())
    assert [record["held_out"]["tasks"] for record in records] == [12, 13]
    assert page.read_text() == f"# Mine\n\n{BEGIN}\n\n{certificates_section(records)}\n\n{END}\n\nafter\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--delta", "0"], "expected `delta` to be a probability in (0, 1), but got 0.0"),
        (["--delta", "1.5"], "expected `delta` to be a probability in (0, 1)"),
        (["--alpha", "1"], "expected `alpha` to be a probability in (0, 1)"),
        (["--tasks", "1"], "expected `tasks` to be at least 2, since one task says nothing of the next"),
        (["--verify", "1"], "expected `verify` to be 0, or at least 2 tasks"),
        (["--bound-samples", "1"], "expected `bound_samples` to be at least 4"),
        (["--method", "hope"], "invalid choice: 'hope'"),
        (["--unit", "new-tasks"], "every draw of sine-line is a new task, so expected `unit` to be tasks"),
        (["--page", "page.md"], "expected --page together with --results"),
        (["--results", "r.json", "--page", "page.md"], "expected page.md to be a page with the lines"),
    ],
)
def test_what_cannot_be_certified_is_one_line_and_changes_nothing(
    arguments: list[str],
    message: str,
    regression: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = files(regression.folder)
    assert main(["certify", str(regression.folder), "--device", "cpu", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert files(regression.folder) == before
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", sine_line(), resume=False)
    with pytest.raises(FewsureError, match="has no checkpoint yet"):
        certify_run(run, CPU, Request())
    assert set(files(run.folder)) == {"config.json", "data.json"}


@pytest.mark.parametrize(("split", "role"), [("train", "training"), ("validation", "validation")])
def test_classes_of_training_and_of_validation_are_refused(split: str, role: str, tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", blobs(tmp_path / "blobs"))
    shutil.copy(tmp_path / "blobs" / "test.npz", tmp_path / "blobs" / f"{split}.npz")
    forget()
    before = files(run.folder)
    with pytest.raises(FewsureError, match=rf"24 of 24 were classes of {role}, .* a certificate needs fresh ones"):
        certify_run(run, CPU, Request(tasks=4))
    assert files(run.folder) == before


def test_what_a_run_was_trained_on_is_recorded_and_refused_though_the_data_has_changed(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", blobs(tmp_path / "blobs"))
    recorded = json.loads((run.folder / "data.json").read_text())
    assert {split: len(facts["ids"]) for split, facts in recorded["splits"].items()} == {"train": 24, "validation": 24}
    assert "train 03" not in (run.folder / "data.json").read_text()
    require_fresh(run, run.experiment)
    shutil.move(tmp_path / "blobs" / "train.npz", tmp_path / "blobs" / "test.npz")  # and no training split is left
    with pytest.raises(
        FewsureError, match=r"24 of 24 were classes of training, for instance 'train 00'; a certificate"
    ):
        require_fresh(run, run.experiment)
    for content in ("{", json.dumps(recorded | {"streams": [1]}), json.dumps(recorded | {"start": 3}), None):
        (run.folder / "data.json").unlink() if content is None else (run.folder / "data.json").write_text(content)
        with pytest.raises(FewsureError, match=r"data.json cannot be read .* nothing shows which tasks are fresh"):
            require_fresh(run, run.experiment)


def test_streams_of_training_are_refused(regression: Run, tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", sine_line())
    recorded = json.loads((run.folder / "data.json").read_text())
    assert recorded["splits"] == {}
    require_fresh(run, run.experiment)
    (run.folder / "data.json").write_text(json.dumps(recorded | {"streams": ["train", "certify"]}))
    with pytest.raises(FewsureError, match="1 of 1 were random streams of training, for instance 'certify'"):
        require_fresh(run, run.experiment)


def test_a_pool_that_is_too_small_for_two_halves_is_refused(tmp_path: Path) -> None:
    experiment = blobs(tmp_path / "blobs", way=13)
    with pytest.raises(FewsureError, match=r"halves of at least 13 \(way\), but there are 24"):
        environment_of(experiment, "tasks", 0, CPU)
    with pytest.raises(FewsureError, match=r"at least 2 of them for a certificate about new tasks, but there is 1"):
        environment_of(blobs(tmp_path / "blobs", way=12), "new-tasks", 0, CPU)
    with pytest.raises(FewsureError, match=r"groups with at least 3 classes \(way\) into halves, but there is 1"):
        environment_of(blobs(tmp_path / "blobs", within_group=True), "tasks", 0, CPU)


# Tasks within groups, and groups of rows


def grouped(groups: int = 9, kinds: int = 3, each: int = 6) -> GivenClasses:
    """Tasks whose classes are their own; the first has one class less than a task takes."""
    random = np.random.default_rng(0)
    made = []
    for number in range(groups):
        labels = np.repeat(np.arange(kinds - (number == 0)), each)
        made.append((random.normal(size=(len(labels), 2)) + labels[:, None], labels.tolist()))
    return classification_tasks(made, way=kinds, shot=2, query=3, shares=(0.2, 0.2, 0.6))


@pytest.mark.parametrize("unit", ["tasks", "new-tasks"])
def test_where_tasks_are_of_one_group_groups_are_split(unit: Unit) -> None:
    data = grouped(groups=20)
    experiment = Experiment(Maml(), data, MlpOptions((4,)), Training(tasks=2), preset="test")
    environment = environment_of(experiment, unit, 0, CPU)
    pool = data.pool("test")
    large = {group for group in pool.groups if pool.groups.count(group) >= 3}
    members, halves = list(zip(pool.classes, pool.groups, strict=True)), []
    for fresh in (environment.certified, environment.unseen["other groups"]):
        assert isinstance(fresh.sampler, Episodes)
        part = fresh.sampler.pool
        halves.append(set(part.groups))
        assert set(part.classes) == {name for name, group in members if group in halves[-1]}
        groups = f"{len(halves[-1])} of {len(set(pool.groups))} groups"
        assert f"{groups}, {len(part.classes)} of {len(pool.classes)} classes" in fresh.description
    assert halves[0].isdisjoint(halves[1])
    assert halves[0] | halves[1] == large
    assert environment.certified.available == (len(halves[0]) if unit == "new-tasks" else None)
    tasks, found = environment.certified.available or 30, []
    for _, facts in fresh_blocks(environment.certified, "held-out", tasks, 0, CPU):
        assert isinstance(environment.certified.sampler, Episodes)
        groups = environment.certified.sampler.pool.groups
        for row in facts["classes"].tolist():
            (group,) = {groups[number] for number in row}
            found.append(group)
            assert len(set(row)) == 3
    assert unit == "tasks" or sorted(found) == sorted(halves[0])


def lines(groups: int, rows: int = 12) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(1)
    return [
        (x := random.normal(size=(rows, 1)), random.normal() * x[:, 0] + 0.1 * random.normal(size=rows))
        for _ in range(groups)
    ]


def on_lines(tasks: list[tuple[np.ndarray, np.ndarray]]) -> Experiment:
    data = regression_tasks(tasks, shot=3, query=6, noise_std=0.1, shares=(0.4, 0.1, 0.5))
    return Experiment(Maml(inner_lr=0.1), data, MlpOptions((4,)), Training(tasks=2), preset="test")


def test_rows_of_a_users_own_are_certified_with_each_group_once(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", on_lines(lines(40)))
    record = certify_run(run, CPU, Request())
    assert (record["unit"], record["held_out"]["tasks"]) == ("new-tasks", 20)
    assert record["assumed"].endswith("are a random sample of all groups with at least 9 rows (shot + query)")
    assert "the 20 tasks of its test split, each once, 3-shot, 6 query points" in record["environment"]
    (left_out,) = record["conformal"]["measured"]
    assert (left_out["on"], left_out["tasks"]) == ("each left out", 20)
    assert left_out["coverage"] >= 0.9 - 4 * left_out["error"]
    assert "20 tasks, each left out in turn" in certificate_text(record)
    environment = environment_of(run.experiment, "new-tasks", 0, CPU)
    numbers = torch.cat(
        [facts["groups"].flatten() for _, facts in fresh_blocks(environment.certified, "held-out", 20, 0, CPU)]
    )
    assert sorted(numbers.tolist()) == list(range(20))
    with pytest.raises(FewsureError, match="`verify` to be 0, since there are no tasks beside the certified ones"):
        certify_run(run, CPU, Request(verify=10))
    with pytest.raises(FewsureError, match="`tasks` to be at most 20"):
        certify_run(run, CPU, Request(tasks=1000))
    drawn = certify_run(run, CPU, Request(tasks=60, unit="tasks"))
    assert (drawn["unit"], drawn["held_out"]["tasks"]) == ("tasks", 60)
    assert "new draws from the 20 tasks" in drawn["environment"]


def test_too_few_groups_give_intervals_without_ends_and_say_so(tmp_path: Path) -> None:
    record = certify_run(untrained(tmp_path / "run", on_lines(lines(12))), CPU, Request())
    assert record["held_out"]["tasks"] == 6
    assert (record["conformal"]["threshold"], record["conformal"]["vacuous"]) == (None, True)
    said = "it needs 9 that are independent of each other, so intervals have no ends; hold out more, or choose a larger"
    assert said in certificate_text(record)


def test_tasks_given_in_python_are_known_by_their_examples(tmp_path: Path) -> None:
    tasks = lines(40)
    run = untrained(tmp_path / "run", on_lines(tasks))
    require_fresh(run, run.experiment)
    moved = on_lines([(x[::-1].copy(), y[::-1].copy()) for x, y in tasks[7:] + tasks[:7]]).data
    again = dataclasses.replace(run.experiment, data=dataclasses.replace(run.experiment.data, source=moved.source))  # type: ignore[attr-defined,type-var]
    with pytest.raises(FewsureError, match=r"\d+ of 20 were tasks of training"):
        require_fresh(run, again)


def start_of_platipus(folder: Path, data: Table | GivenRegression, maml: Run) -> Run:
    """A PLATIPUS run that starts at a MAML run."""
    experiment = Experiment(Platipus(), data, MlpOptions((4,)), Training(tasks=2), preset="test")
    experiment, start = start_at_maml(experiment, maml.folder)
    return start_run(folder, experiment, resume=False, start=start)


@pytest.mark.parametrize("given", [False, True])
def test_tasks_of_the_run_that_a_run_started_at_cannot_certify_it(given: bool, tmp_path: Path) -> None:
    """MAML learns from groups 0 to 19, PLATIPUS starts at it, and its test groups are 0 to 14."""
    tasks, file = lines(30), tmp_path / "lines.csv"
    rows = [(group, x[0], y) for group, task in enumerate(tasks) for x, y in zip(*task, strict=True)]
    first = ["train"] * 20 + ["validation"] * 4 + ["test"] * 6
    second = ["test"] * 15 + ["train"] * 10 + ["validation"] * 5
    cells = [f"{group:02},{x},{y},{first[group]},{second[group]}" for group, x, y in rows]
    file.write_text("\n".join(["group,x,y,first,second", *cells]))

    def data(split: str) -> Table | GivenRegression:
        table = Table(
            file=str(file), task_column="group", target="y", features=("x",), split_column=split, shot=3, query=6
        )
        if not given:
            return table
        options = {"shot": 3, "query": 6, "noise_std": 0.1}
        return GivenRegression(**options, source=table.rows())

    maml = untrained(tmp_path / "maml", dataclasses.replace(on_lines(tasks), data=data("first")))
    certify_run(maml, CPU, Request(delta=0.2))
    run = start_of_platipus(tmp_path / "run", data("second"), maml)
    with pytest.raises(FewsureError, match=r"15 of 15 were tasks of training of the run that it started at"):
        certify_run(run, CPU, Request())
    if given:
        return
    of_examples = untrained(tmp_path / "examples", on_lines(tasks))  # whose ids cannot be compared with names
    record = certify_run(start_of_platipus(tmp_path / "other", data("second"), of_examples), CPU, Request())
    assert not record["fresh"]["rigorous"]
    says = "ids of examples of the run that it started at cannot be compared with ids of names"
    assert says in certificate_text(record)
    assert [line[2] for line in certificate_table(record).rows[:3]] == ["no", "no", "–"]
    (maml.folder / "data.json").unlink()
    with pytest.raises(FewsureError, match=r"data.json cannot be read .* nothing shows which tasks are fresh"):
        start_of_platipus(tmp_path / "none", data("second"), maml)
    assert not (tmp_path / "none").exists()


def test_coverage_of_new_groups_needs_each_group_once() -> None:
    """Groups differ by an offset, the predictor is the mean of 3 support rows: its error depends on the group's noise.

    A threshold of one task from each of 19 groups covers a new group's point with probability 0.9. One of 400 draws
    from the same 4 groups does not: they are 4 groups, however often they are drawn from.
    """
    repetitions, groups, rows, alpha = 400, 19, 12, 0.1
    covered = {"new-tasks": 0.0, "tasks": 0.0}
    generator = streams.generator(0, "groups")
    for _ in range(repetitions):
        width = torch.randn(groups + 1, 1, generator=generator).mul(1.5).exp()
        y = torch.randn(groups + 1, 1, generator=generator) + width * torch.randn(groups + 1, rows, generator=generator)
        pool = Pool(
            torch.stack([torch.zeros_like(y), y], -1).flatten(0, 1),
            torch.arange(groups + 2) * rows,
            tuple(f"{number:02}" for number in range(groups + 1)),
            ("",) * (groups + 1),
            "",
        )
        sampler = RowTasks(pool, shot=3, query=6)

        def scores_of(which: torch.Tensor, sampler: RowTasks = sampler) -> torch.Tensor:
            task, _ = sampler.sample_of(which, generator)
            y = task.query.y.squeeze(-1)
            return residual_scores(task.support.y.mean(1).expand_as(y), y, torch.ones_like(y))

        new = scores_of(torch.tensor([groups]))  # the group that no threshold has seen
        few = torch.randint(4, (400,), generator=generator)
        for unit, which in {"new-tasks": torch.arange(groups), "tasks": few}.items():
            found = scores_of(which)
            threshold = conformal_threshold(found.flatten(), torch.full((len(found),), 6), alpha)
            covered[unit] += float((new <= threshold).double().mean()) / repetitions
    error = 0.3 / repetitions**0.5  # at most, since a coverage in [0, 1] with mean 0.9 has standard deviation ≤ 0.3
    assert covered["new-tasks"] >= 1 - alpha - 3 * error
    assert covered["new-tasks"] <= 1 - alpha + 1 / (groups + 1) + 3 * error
    assert covered["tasks"] < 1 - alpha - 3 * error
