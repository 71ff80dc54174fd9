"""Theorem 1 of single tasks: how large the loss of a network is that is drawn from a task's posterior.

The prior p(w) = G#p(z) is fixed before the task is seen, and KL[q(w) ‖ p(w)] has a finite upper bound. So the theorem
holds for each new task, with probability 1 − δ over its m support examples and the draws. S networks are drawn from q:

    L̂_s = mean over the support set of ℓ(w_s),   U with Pr(E_q L̂ ≤ U) ≥ 1 − δ/20,   kl⁻¹(U, (KL + ln(2√m/ε))/m)

with ε = 19/20 δ. It is about one drawn network, not about the mean prediction of several.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fewsure.certification.environment import FreshTasks, fresh_blocks
from fewsure.core import streams
from fewsure.core.devices import device_of
from fewsure.core.vectorise import count, draw_per_task
from fewsure.errors import FewsureError
from fewsure.evaluation.evaluate import UnseenBlock, score_blocks, shared_noise
from fewsure.evaluation.metrics.summary import mean_over_tasks
from fewsure.evaluation.scoring.predict import Predict
from fewsure.theory.concentration import Reading, mean_reading
from fewsure.theory.pac_bayes import Bound, Form, bound_one_task, theorem_1_of_draws
from fewsure.training.experiment import Experiment
from fewsure.types import Batch, Facts, Model, Noise, Parts, PerExample, Task

THEOREM = "Theorem 1"
FORM: Form = "kl"
SHARE = 1 / 20
"""The share of δ for the Monte-Carlo error of the loss."""
QUANTILES = (0.05, 0.5, 0.95)
DEPENDENT = "examples are predicted together, so their losses are not independent"
BY_SUPPORT = "the network normalises by the support set, so the prior of networks depends on it"


def speaks_of(experiment: Experiment) -> bool:
    """Whether the theorem says something of single tasks of a run."""
    return experiment.method.theorem == THEOREM


def require_speaks_of(experiment: Experiment) -> None:
    """Refuse a method whose posterior has no finite KL to a prior."""
    if not speaks_of(experiment):
        raise FewsureError(
            "expected a method whose posterior has a finite KL to a prior, such as simpa-latent, but got "
            f"{experiment.algorithm_name}; learner.certify() has statements about every method"
        )


def caveats(experiment: Experiment) -> tuple[str, ...]:
    """Assumptions of the theorem that do not hold for a run."""
    network = experiment.model.network
    some = torch.zeros(2, *network.inputs)
    found = {DEPENDENT: experiment.transductive, BY_SUPPORT: network.given(some) is not network}
    return tuple(caveat for caveat, holds in found.items() if holds)


def loss_of_network(experiment: Experiment) -> str:
    """The loss ℓ in [0, 1] of one network on one example, in words."""
    if experiment.model.kind == "classification":
        return "1 for an error"
    variance = f" / {experiment.data.fitted_scale.y_std**2:.4g}, the variance of the training targets"
    return f"e/(1+e), e the squared error{variance if experiment.data.own else ''}"


def network_losses(model: Model, outputs: Tensor, y: Tensor) -> Tensor:
    """L̂_s: the mean loss in [0, 1] of each of S networks (S,) from outputs (S, N, C); 1 where it is no number."""
    per_example: PerExample = model.bounded_loss if model.kind == "regression" else _error
    labels = y.double() if model.kind == "regression" else y
    losses: Tensor = torch.func.vmap(per_example, in_dims=(0, None))(outputs.double(), labels)
    return losses.nan_to_num(1.0).clamp(0, 1).mean(-1)


def _error(output: Tensor, y: Tensor) -> Tensor:
    return (output.argmax(-1) != y).to(output.dtype)


def bound_of_task(
    experiment: Experiment,
    model: Model,
    posterior: Parts,
    outputs: Callable[[Tensor, Noise], Tensor],
    support: Batch,
    *,
    delta: float,
    samples: int,
    seed: int,
) -> Bound:
    """The bound of one task; `outputs` of inputs and noise are those of networks drawn from its posterior.

    The draws depend on the seed alone, which must be chosen without a look at the examples.
    """
    algorithm, (x, y) = experiment.method, support
    generator = streams.generator(seed, "certify", THEOREM, device=x.device)
    noise = draw_per_task(algorithm.prediction_noise(model, samples, len(x)), 1, generator)
    losses = network_losses(model, outputs(x, {name: draw[0] for name, draw in noise.items()}), y)
    kl = Reading(float(algorithm.posterior_kl(posterior)), "upper bound")
    loss = mean_reading(losses.cpu(), SHARE * delta)
    return bound_one_task(loss, kl, examples=len(x), delta=delta, form=FORM, caveats=caveats(experiment))


def bounds_of_tasks(
    experiment: Experiment,
    meta: Parts,
    fresh: FreshTasks,
    *,
    tasks: int,
    delta: float,
    samples: int,
    seed: int,
    doubts: Sequence[str] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """The bounds of so many fresh tasks, each for its own task, and the mean loss on their query examples.

    `doubts` are reasons to think that the tasks are not fresh.
    """
    algorithm, model, device = experiment.method, experiment.model, device_of(meta)
    generator = streams.generator(seed, "certify", THEOREM, device=device)

    def with_draws(task: Task, facts: Facts) -> UnseenBlock:
        support, query = task.support.x.shape[1], task.query.x.shape[1]
        of_adapting, of_networks = (
            draw_per_task(draws, count(task), generator)
            for draws in (
                algorithm.noise(model, support, query).task,
                algorithm.prediction_noise(model, samples, support),
            )
        )
        return UnseenBlock(task, facts, of_adapting, of_networks)

    def record(predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        assert predict.kl is not None
        on_support, on_query = (
            network_losses(model, predict(batch.x), batch.y) for batch in (task.support, task.query)
        )
        examples = torch.tensor(len(task.support.x))
        kl = predict.kl.nan_to_num(torch.inf)
        return {"losses": on_support, "risk": on_query.mean(), "kl": kl, "examples": examples}

    blocks = (with_draws(*block) for block in fresh_blocks(fresh, THEOREM, tasks, seed, device))
    shared = shared_noise(experiment, seed, "test", device)
    found = score_blocks(experiment, meta, shared, blocks, record, progress)
    examples = int(found["examples"][0])
    bounds = theorem_1_of_draws(found["losses"], found["kl"], examples=examples, delta=delta, share=SHARE, form=FORM)
    return _summary(bounds.total, found, [*caveats(experiment), *doubts]) | {
        "loss": loss_of_network(experiment),
        "form": FORM,
        "examples": examples,
        "tasks": tasks,
        "samples": samples,
        "delta": delta,
        "epsilon": (1 - SHARE) * delta,
    }


def _summary(bounds: Tensor, found: dict[str, Tensor], caveats: Sequence[str]) -> dict[str, Any]:
    groups = found.get("groups")
    quantiles = bounds.quantile(torch.tensor(QUANTILES, dtype=bounds.dtype)).tolist()
    return {
        "bound": mean_over_tasks(bounds, groups),
        "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True)),
        "not_vacuous": float((bounds < 1).double().mean()),
        "kl": mean_over_tasks(found["kl"], groups),
        "support_loss": mean_over_tasks(found["losses"].mean(-1), groups),
        "query_loss": mean_over_tasks(found["risk"], groups),
        "rigorous": not caveats,
        "reason": "; ".join(caveats)
        or "the KL is an upper bound, Monte-Carlo error is paid from δ, and the prior has seen no example of the task",
    }
