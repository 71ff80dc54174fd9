"""How the cost of an update grows with T, inner steps, samples and the base network, beside the paper's count.

The paper's appendix counts, with n base weights and n′ generator weights,

    deterministic    (N_lower m⁽ᵗ⁾ + m⁽ᵛ⁾ T) n                                        100 n in its practical setting
    Gaussian         m_w (N_lower (m⁽ᵗ⁾ + 1) + T (m⁽ᵛ⁾ + 1)) n                         440 n
    SImPa            m_θ (N_lower (m_w (m⁽ᵗ⁾ + 1) + 3 N_φ m_φ) + T (m⁽ᵛ⁾ + 1)) n′       125 n′

(it lists N_φ twice; the second one, 256, is m_φ, which it then takes as parallel). m_θ, samples of θ, is 1 here
as it is there: more of them multiply everything.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fewsure.algorithms.abml import Abml
from fewsure.algorithms.maml import Maml
from fewsure.algorithms.simpa import Simpa
from fewsure.algorithms.vampire import Vampire
from fewsure.bench.cases import STEPS, Case, case
from fewsure.bench.timing import time_updates
from fewsure.networks.mlp import MlpOptions
from fewsure.networks.weights import weight_count


class Sweep(NamedTuple):
    """One number of a case, varied."""

    case: Case
    varied: str
    values: tuple[int, ...]
    change: Callable[[Case, int], Case]


def sweeps() -> list[Sweep]:
    """T, inner steps, samples of w and of the KL, and the width of the base network."""
    maml = case("maml", "sine-line", Maml(inner_steps=STEPS, first_order=True))
    simpa = case("simpa", "sine-line", Simpa(inner_steps=STEPS, first_order=True, train_samples=1, kl_samples=32))
    critic = case(
        "simpa, critic KL", "sine-line", Simpa(inner_steps=STEPS, first_order=True, train_samples=1, kl="critic")
    )
    both: list[Sweep] = []
    for one in (maml, simpa):
        both += [
            Sweep(one, "T", (10, 20, 40, 80, 160), lambda at, value: at.with_options("training", tasks=value)),
            Sweep(one, "N_lower", (1, 2, 5, 10, 20), lambda at, value: at.with_options("algorithm", inner_steps=value)),
            Sweep(one, "base width", (20, 40, 80, 160), _with_width),
        ]
    return [
        *both,
        Sweep(simpa, "m_φ", (32, 64, 128, 256, 512), lambda at, value: at.with_options("algorithm", kl_samples=value)),
        Sweep(simpa, "m_w", (1, 2, 4, 8, 16), lambda at, value: at.with_options("algorithm", train_samples=value)),
        Sweep(critic, "N_φ", (1, 2, 4), lambda at, value: at.with_options("algorithm", critic_steps=value)),
    ]


def growth(sweep: Sweep, device: torch.device, seconds: float) -> dict[str, Any]:
    """Seconds of an update at each value, and how fast they grow: the slope of ln seconds over ln value.

    Beside it, the slope of the paper's count over the same values.
    """
    cases = [sweep.change(sweep.case, value) for value in sweep.values]
    found = [time_updates(at, device, seconds).seconds for at in cases]
    return {
        "method": sweep.case.method,
        "tasks": sweep.case.tasks,
        "varied": sweep.varied,
        "values": list(sweep.values),
        "seconds": found,
        "slope": log_slope(sweep.values, found),
        "paper_slope": log_slope(sweep.values, [paper_count(at) for at in cases]),
    }


def paper_count(at: Case) -> float:
    """The cost that the paper's appendix gives an update, in passes over one number.

    Its practical setting is one of 5 support and 15 query points, T = 5, five inner steps and four samples of w:

    >>> def count(algorithm, size):
    ...     practical = case("", "sine-line", algorithm, tasks=5).with_options("data", query=15)
    ...     return paper_count(practical) / size
    >>> count(Maml(inner_steps=5), 1761), count(Vampire(inner_steps=5, train_samples=4), 1761)
    (100.0, 440.0)

    and for SImPa it takes one sample of w, and all m_φ as one:

    >>> simpa = Simpa(inner_steps=5, train_samples=1, kl="critic", kl_samples=4)
    >>> generator = 128 * 256 + 256 + 256 * 512 + 512 + 512 * 1761 + 1761
    >>> count(simpa, generator) - 5 * 3 * (4 - 1)
    125.0
    """
    experiment = at.experiment
    algorithm, data, tasks = experiment.algorithm, experiment.data, experiment.training.tasks
    steps = getattr(algorithm, "inner_steps", 1)
    if isinstance(algorithm, Simpa):
        generator = weight_count(algorithm.posterior(experiment.model).generator)
        critic = 3 * algorithm.critic_steps * algorithm.kl_samples if algorithm.kl != "none" else 0
        lower = steps * (algorithm.train_samples * (data.support_size + 1) + critic)
        return float((lower + tasks * (data.query_size + 1)) * generator)
    weights = weight_count(experiment.model.network)
    if isinstance(algorithm, Abml | Vampire):
        both = steps * (data.support_size + 1) + tasks * (data.query_size + 1)
        return float(algorithm.train_samples * both * weights)
    return float((steps * data.support_size + data.query_size * tasks) * weights)


def log_slope(values: Sequence[float], seconds: Sequence[float]) -> float:
    """The least-squares slope of ln seconds over ln value.

    >>> round(log_slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    x, y = [math.log(value) for value in values], [math.log(second) for second in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def _with_width(at: Case, width: int) -> Case:
    return at._replace(experiment=dataclasses.replace(at.experiment, network=MlpOptions((width, width))))
