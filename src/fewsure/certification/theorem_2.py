"""Theorem 2 of a SImPa run, on fresh tasks of its training sampler, every term with what it is worth.

The T tasks (a mini-batch's) are drawn once. Then θ, the noise of adaptation, z and the noise on the weights are drawn
afresh S times. A draw has one w of each task, or of each component of its posterior. Each draw s gives

    a_s = mean over tasks and query points of ℓ(w) clipped at 1,       G_s = G(z) of each w, (T·K, n),

whose expectations over q are bounded with δ/20 each; the rest of δ is the theorem's. Without weight noise
KL[q(w) ‖ p(w)] is infinite and has no upper bound: Theorem 2 is then printed with a lower estimate, and called so.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from fewsure.algorithms.simpa import Simpa
from fewsure.core import streams
from fewsure.core.devices import device_of
from fewsure.core.distributed import map_in_turn
from fewsure.core.vectorise import better_looped, draw_noise, draw_per_task, for_each
from fewsure.errors import Diverged
from fewsure.evaluation.evaluate import as_evaluated
from fewsure.evaluation.temperature import temperature_of
from fewsure.networks.weights import flatten, unflatten, weight_count
from fewsure.posteriors import outputs
from fewsure.theory.concentration import Reading, mean_reading
from fewsure.theory.divergences import (
    critic_reading,
    gaussian_reading,
    moment_reading,
    semi_implicit_reading,
)
from fewsure.theory.pac_bayes import Bound, Form, bound_new_task
from fewsure.training.experiment import Experiment
from fewsure.types import Draw, Noise, Parts, Task

THEOREM = "Theorem 2"
FORMS: tuple[Form, ...] = ("paper", "log", "kl")
SHARE = 1 / 20
"""The share of δ for the Monte-Carlo error of the loss, and again for that of the KL."""
INFINITE = "the KL of an implicit posterior is infinite"
DEPENDENT = "query points are predicted together, so their losses are not independent"


def no_bound(experiment: Experiment) -> str | None:
    """Why Theorem 2 says nothing of a run; None if it does."""
    if experiment.method.theorem == THEOREM:
        return None
    return f"no bound: {experiment.algorithm_name} has no posterior over θ"


def theorem_of(
    experiment: Experiment,
    meta: Parts,
    *,
    delta: float,
    samples: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[list[Bound], Reading | None]:
    """(Theorem 2 in its three forms, the reading of a critic or None) from `samples` draws of everything in q.

    The critic's reading is Donsker and Varadhan's lower estimate on samples that it has not been trained on. It reads
    KL[q(w) ‖ p(w)], or with `moment+critic` the rest that q's means and variances leave. No bound rests on it.
    """
    algorithm, device = cast(Simpa, experiment.algorithm), device_of(meta)
    count = experiment.training.tasks
    tasks, _ = experiment.data.tasks("train", device).sample(count, _generator(seed, "tasks", device))

    def draw(number: int) -> dict[str, Tensor]:
        loss, mean = _draw(experiment, algorithm, meta, tasks, _generator(seed, number, device))
        return {"loss": loss[None], "mean": mean[None]}

    with as_evaluated(experiment):
        draws = map_in_turn(range(samples), lambda number: 1, draw, progress)
        critic = _critic(experiment, algorithm, meta, tasks, samples, _generator(seed, "critic", device))
    stacked, noise = draws["mean"], algorithm.weight_noise
    if not bool(stacked.isfinite().all()):
        raise Diverged("adaptation diverged on a task of training, so that its weights are no finite numbers")
    if noise > 0:
        kl = semi_implicit_reading(stacked, noise, algorithm.sigma_w, SHARE * delta)
    else:
        kl = _mean_reading([moment_reading(stacked[:, row], algorithm.sigma_w) for row in range(stacked.shape[1])])
    kl_theta = gaussian_reading(flatten(meta["generator"]), algorithm.sigma_0, algorithm.sigma_theta**2)
    caveats = [*([DEPENDENT] if experiment.transductive else []), *([INFINITE] if noise == 0 else [])]
    bounds = [
        bound_new_task(
            mean_reading(draws["loss"], SHARE * delta),
            kl,
            kl_theta,
            examples=experiment.data.query_size,
            tasks=count,
            delta=delta,
            form=form,
            caveats=caveats,
        )
        for form in FORMS
    ]
    return bounds, critic


def _draw(
    experiment: Experiment, algorithm: Simpa, meta: Parts, tasks: Task, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(a_s, G_s) of one draw of everything in q, on the CPU. A loss that is no number counts as 1."""
    model = experiment.training_model
    family, count = algorithm.posterior(model), experiment.training.tasks
    sizes = experiment.data.support_size, experiment.data.query_size
    shared, noise = draw_noise(algorithm.noise(model, *sizes), count, generator)
    own = draw_per_task(algorithm.prediction_noise(model, algorithm.components, sizes[0]), count, generator)
    per_example = model.bounded_loss if algorithm.clip == "bounded" else model.loss

    def one_task(parts: tuple[Task, Noise, Noise], meta: Parts) -> tuple[Tensor, Tensor]:
        task, noise, own = parts
        adapted = algorithm.adapt(meta, model, task.support, shared | noise)
        means = family.sample(adapted["generator"], {"z": own["z"]})  # one of each component
        weights = unflatten(model.network, family.perturb(means, own).flatten(0, 1))
        alone = torch.split(outputs(model.network, weights, task.query.x), 1)  # a loss is of one w
        losses = [per_example(temperature_of(experiment).divide(output)[0], task.query.y) for output in alone]
        return torch.stack(losses).clamp(max=1).nan_to_num(1.0).mean(), means.flatten(0, 1)

    every_task = for_each(one_task, loop=better_looped(model.network, generator.device))
    loss, means = every_task((tasks, noise, own), meta)
    return loss.double().mean().cpu(), means.flatten(0, 1).cpu()


def _critic(
    experiment: Experiment, algorithm: Simpa, meta: Parts, tasks: Task, samples: int, generator: torch.Generator
) -> Reading | None:
    """The adapted critic on fresh samples of q and p, for one draw of θ; a mean over tasks and components."""
    model = experiment.training_model
    estimate = algorithm.kl_estimate(model)
    if estimate.critic is None:
        return None
    family, count = algorithm.posterior(model), experiment.training.tasks
    sizes = experiment.data.support_size, experiment.data.query_size
    shared, noise = draw_noise(algorithm.noise(model, *sizes), count, generator)
    draws = family.draws(samples) | {"prior": Draw((samples, weight_count(model.network)))}
    own = draw_per_task(draws, count, generator)

    def one_task(parts: tuple[Task, Noise, Noise], meta: Parts) -> tuple[Tensor, Tensor]:
        task, noise, own = parts
        adapted = algorithm.adapt(meta, model, task.support, shared | noise)
        return estimate.on_samples(adapted["critic"], family.sample(adapted["generator"], own), own["prior"])

    found: Any = for_each(one_task, loop=True)((tasks, noise, own), meta)  # one task's samples in memory at a time
    pairs = zip(*(value.flatten(0, 1) for value in found), strict=True)
    return _mean_reading([critic_reading(*pair) for pair in pairs])


def _mean_reading(readings: list[Reading]) -> Reading:
    """The reading of the mean over tasks, from readings of one worth."""
    return readings[0]._replace(value=math.fsum(reading.value for reading in readings) / len(readings))


def _generator(seed: int, part: str | int, device: torch.device) -> torch.Generator:
    return streams.generator(seed, "certify", "bound", part, device=device)
