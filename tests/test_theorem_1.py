"""Theorem 1 of single tasks: its terms by hand, its worth, and how often it fails where the truth is known."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

import fewsure
from fewsure.algorithms import ALGORITHMS
from fewsure.algorithms.simpa_latent import SimpaLatent
from fewsure.certification.certify import Request, certify_run
from fewsure.certification.environment import environment_of
from fewsure.certification.theorem_1 import BY_SUPPORT, DEPENDENT, bounds_of_tasks, caveats, network_losses
from fewsure.core import streams
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.networks.losses import classification, regression
from fewsure.networks.mlp import Mlp, MlpOptions
from fewsure.pipeline import start_run
from fewsure.report.certificates import certificate_text, certificates_section
from fewsure.report.tables import interval
from fewsure.theory.concentration import bernoulli_kl, betting_limit
from fewsure.theory.pac_bayes import theorem_1, theorem_1_of_draws
from fewsure.training.experiment import Experiment, Training
from fewsure.training.runs import Run

from .helpers import small_simpa

CPU = torch.device("cpu")
SMALL = {"latent": 3, "generator_hidden": (4,), "encoder_width": 8, "input_scale": 5.0, "target_scale": 1.0}


def sine_line(shot: int = 5) -> Experiment:
    method = SimpaLatent(**SMALL)  # type: ignore[arg-type]
    return Experiment(method, SineLine(shot=shot, query=60), MlpOptions((5,)), Training(tasks=3), preset="test")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """At its start: the theorem holds whatever the training was."""
    made = start_run(tmp_path_factory.mktemp("theorem") / "run", sine_line(), resume=False)
    made.save(made.initial())
    return made


def test_the_loss_of_a_network_is_its_mean_over_examples_and_1_where_it_is_no_number() -> None:
    outputs, y = torch.tensor([[[0.0], [1.0]], [[math.nan], [3.0]]]), torch.tensor([[0.0], [2.0]])
    found = network_losses(regression(Mlp((1, 1))), outputs, y)
    assert found.tolist() == [0.25, 0.75]  # 0 and 1/2; 1 and 1/2
    logits = torch.tensor([[[2.0, 1.0], [0.0, 3.0]], [[0.0, 1.0], [0.0, 1.0]]])
    found = network_losses(classification(Mlp((1, 2)), 2), logits, torch.tensor([0, 1]))
    assert found.tolist() == [0.0, 0.5]


def test_draws_are_paid_for() -> None:
    losses = torch.rand(4, 300, generator=streams.generator(0, "losses")) ** 3
    kl = torch.tensor([0.0, 1.0, 8.0, math.inf])
    found = theorem_1_of_draws(losses, kl, examples=20, delta=0.1, share=0.2, form="kl")
    limit = betting_limit(losses, 0.02)
    torch.testing.assert_close(found.loss, limit)
    torch.testing.assert_close(found.total, theorem_1(limit, kl.double(), examples=20, epsilon=0.08, form="kl").total)
    assert bool(
        (found.total > theorem_1(losses.double().mean(1), kl, examples=20, epsilon=0.1, form="kl").total)[:3].all()
    )
    assert float(found.total[3]) == 1


def test_it_fails_no_more_often_than_delta_where_the_truth_is_known() -> None:
    """q follows the examples: lines with a Gaussian slope around least squares, prior N(0, 1), 16 networks drawn."""
    tasks, examples, networks, delta = 4000, 4, 16, 0.2
    generator = streams.generator(0, "known truth")
    slope = torch.randn(tasks, 1, generator=generator)

    def observe(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(tasks, count, generator=generator)
        return x, slope * x + 0.5 * torch.randn(tasks, count, generator=generator)

    def losses(slopes: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        error = (slopes.unsqueeze(-1) * x.unsqueeze(1) - y.unsqueeze(1)).square()
        return (error / (1 + error)).mean(-1)

    x, y = observe(examples)
    mean, std = (x * y).sum(1) / (x.square().sum(1) + 0.01), 0.1  # it fits too closely
    kl = 0.5 * (std**2 + mean.square() - 1 - 2 * math.log(std))

    def drawn(count: int) -> torch.Tensor:
        return mean.unsqueeze(1) + std * torch.randn(tasks, count, generator=generator)

    bound = theorem_1_of_draws(losses(drawn(networks), x, y), kl, examples=examples, delta=delta, share=0.5, form="kl")
    risk = losses(drawn(8), *observe(400)).mean(1)
    assert float((risk > bound.total).double().mean()) <= delta
    assert (
        float((risk > losses(drawn(networks), x, y).mean(1)).double().mean()) > 0.5
    )  # without the KL it would not hold
    assert float((bound.total < 1).double().mean()) == 1


@pytest.mark.parametrize("shot", [5, 20])
def test_on_sine_line_it_holds_for_nearly_every_task(run: Run, shot: int) -> None:
    experiment = dataclasses.replace(run.experiment, data=SineLine(shot=shot, query=60))
    fresh = environment_of(experiment, "tasks", 0, CPU).certified
    settings = {"tasks": 60, "delta": 0.05, "samples": 50}
    found = bounds_of_tasks(experiment, run.load(CPU).meta, fresh, **settings, seed=0)  # type: ignore[arg-type]
    assert (found["examples"], found["epsilon"]) == (shot, pytest.approx(0.0475))
    assert found["bound"]["mean"] > found["query_loss"]["mean"]
    assert found["quantiles"]["0.05"] <= found["quantiles"]["0.5"] <= found["quantiles"]["0.95"] <= 1
    assert found["rigorous"]
    doubted = bounds_of_tasks(experiment, run.load(CPU).meta, fresh, **settings, seed=0, doubts=["unknown"])  # type: ignore[arg-type]
    assert (doubted["rigorous"], doubted["reason"], doubted["bound"]) == (False, "unknown", found["bound"])


def test_of_a_range_of_examples_m_is_the_number_that_tests_have(run: Run) -> None:
    experiment = dataclasses.replace(run.experiment, data=SineLine(shot=(4, 13), query=60)).with_shot()
    fresh = environment_of(experiment, "tasks", 0, CPU).certified
    found = bounds_of_tasks(experiment, run.load(CPU).meta, fresh, tasks=4, delta=0.05, samples=10, seed=0)
    assert found["examples"] == 8


def test_certify_prints_it_for_a_finite_kl_alone(run: Run, tmp_path: Path) -> None:
    record = certify_run(run, CPU, Request(tasks=30, bound_samples=20))
    theorem, text = record["theorem_1"], certificate_text(record)
    assert "Theorem 1, kl form" in text
    assert "loss of one drawn network, e/(1+e), e the squared error; m = 5, ε = 0.0475" in text
    assert f"{1 - theorem['not_vacuous']:.2%} of tasks" in text
    assert "Theorem 1 is rigorous" in text
    assert f"| kl form | 30 | {interval(theorem['bound'])} | " in certificates_section([record])
    assert "no bound: simpa-latent has no posterior over θ" in text
    implicit = Experiment(small_simpa(), SineLine(query=7), MlpOptions((5,)), Training(tasks=3), preset="test")
    other = start_run(tmp_path / "run", implicit, resume=False)
    other.save(other.initial())
    assert "theorem_1" not in certify_run(other, CPU, Request(tasks=4, bound_samples=4))


def test_a_method_says_which_theorem_speaks_of_it() -> None:
    assert {name for name, method in ALGORITHMS.items() if method.theorem == "Theorem 1"} == {"simpa-latent"}
    assert {name for name, method in ALGORITHMS.items() if method.theorem == "Theorem 2"} == {"simpa"}
    with pytest.raises(NotImplementedError, match="Simpa has no finite KL to a prior"):
        small_simpa().posterior_kl({})


def test_an_adapted_task_gives_its_bound_term_by_term(run: Run, tmp_path: Path) -> None:
    learner = fewsure.load(run.folder)
    x, y = 5 * [-4.0, -1.0, 0.5, 2.0], 5 * [0.1, 0.2, 0.0, -0.3]
    adapted = learner.adapt(x, y)
    bound = adapted.bound(0.1, samples=40)
    assert (bound.theorem, bound.form, bound.examples, bound.delta, bound.rigorous) == (
        "Theorem 1",
        "kl",
        20,
        0.1,
        True,
    )
    q = {name: value.double() for name, value in adapted.posterior["latent"].items()}
    kl = 0.5 * ((2 * q["log_std"]).exp() + q["mean"].square() - 1 - 2 * q["log_std"]).sum()
    assert bound.readings["KL[q(w) ‖ p(w)]"].value == pytest.approx(float(kl))
    assert bound.readings["KL[q(w) ‖ p(w)]"].worth == "upper bound"
    limit = torch.tensor(bound.terms["loss"], dtype=torch.float64)
    price = bernoulli_kl(limit, torch.tensor(bound.total, dtype=torch.float64))
    assert float(price) == pytest.approx((float(kl) + math.log(2 * math.sqrt(20) / 0.095)) / 20)
    assert adapted.bound(0.1, samples=40) == bound != adapted.bound(0.1, samples=40, seed=1)
    adapted.save(tmp_path / "task")
    assert learner.load_adapted(tmp_path / "task").bound(0.1, samples=40) == bound


def test_more_draws_give_a_smaller_bound_that_many_more_hardly_lower(run: Run) -> None:
    adapted = fewsure.load(run.folder).adapt([-4.0, -1.0, 0.5, 2.0], [1.0, 2.0, 0.0, -3.0])
    few, many, most = (adapted.bound(samples=samples).terms["loss"] for samples in (20, 500, 4000))
    assert few > many > most
    assert many - most < 0.1


def test_a_bound_that_does_not_exist_is_refused(run: Run) -> None:
    adapted = fewsure.load(run.folder).adapt([0.0, 1.0], [0.0, 1.0])
    for settings, message in (({"delta": 1.0}, "delta"), ({"samples": 1}, "samples"), ({"delta": "x"}, "delta")):
        with pytest.raises(FewsureError, match=f"`{message}`"):
            adapted.bound(**settings)  # type: ignore[arg-type]
    maml = fewsure.Learner("maml", "sine-line", updates=0).train(quiet=True)
    with pytest.raises(
        FewsureError, match="whose posterior has a finite KL to a prior, such as simpa-latent, but got maml"
    ):
        maml.adapt([0.0, 1.0], [0.0, 1.0]).bound()


def test_dependent_examples_and_a_prior_that_sees_the_support_set_are_caveats(run: Run) -> None:
    assert caveats(run.experiment) == ()
    base = fewsure.Learner("maml", {number: torch.rand(30, 1, 16, 16) for number in range(30)}, norm="batch").experiment
    assert caveats(base) == (DEPENDENT,)
    given = dataclasses.replace(base, network=dataclasses.replace(base.network, norm="support"))
    assert caveats(given) == (BY_SUPPORT,)
