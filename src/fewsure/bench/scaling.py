"""How the cost of an update grows with T, inner steps, samples and the base network, beside the paper's count."""

import dataclasses
import math
from collections.abc import Callable
from statistics import linear_regression
from typing import Any, NamedTuple

import torch

from fewsure.bench.cases import Case, maml, simpa
from fewsure.bench.timing import time_updates
from fewsure.networks.mlp import MlpOptions


class Sweep(NamedTuple):
    """One number of a case, varied."""

    case: Case
    varied: str
    values: tuple[int, ...]
    change: Callable[[Case, int], Case]


def sweeps() -> list[Sweep]:
    """T, inner steps, samples of w and of the KL, and the width of the base network."""
    moment = simpa("simpa", "sine-line", kl_samples=32)
    critic = simpa("simpa, critic KL", "sine-line", kl="critic")
    both = [
        sweep
        for case in (maml("sine-line"), moment)
        for sweep in (
            Sweep(case, "T", (10, 20, 40, 80, 160), lambda at, value: at.with_options("training", tasks=value)),
            _of_method(case, "N_lower", (1, 2, 5, 10, 20), "inner_steps"),
            Sweep(case, "base width", (20, 40, 80, 160), _with_width),
        )
    ]
    return [
        *both,
        _of_method(moment, "m_φ", (32, 64, 128, 256, 512), "kl_samples"),
        _of_method(moment, "m_w", (1, 2, 4, 8, 16), "train_samples"),
        _of_method(critic, "N_φ", (1, 2, 4), "critic_steps"),
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
        "paper_slope": log_slope(sweep.values, [at.paper_count() for at in cases]),
    }


def log_slope(values: tuple[int, ...], costs: list[float]) -> float:
    """The least-squares slope of ln cost over ln value.

    >>> round(log_slope((1, 2, 4), [3, 12, 48]), 6)
    2.0
    """
    return linear_regression([math.log(value) for value in values], [math.log(cost) for cost in costs]).slope


def _of_method(case: Case, varied: str, values: tuple[int, ...], option: str) -> Sweep:
    return Sweep(case, varied, values, lambda at, value: at.with_options("algorithm", **{option: value}))


def _with_width(at: Case, width: int) -> Case:
    return at._replace(experiment=dataclasses.replace(at.experiment, network=MlpOptions((width, width))))
