"""Outputs are divided by a temperature before the softmax: one for all tasks, or a lower one for surer tasks.

It is that of each sampled network, before their probabilities are averaged, or that of their mixture.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fewsure.evaluation.metrics.scores import class_probabilities
from fewsure.training.experiment import Experiment

CERTAIN = 1e-9
"""A largest probability that leaves less for all other classes counts as one that leaves this."""


@dataclass(frozen=True)
class Temperature:
    """T = `at_even_odds` · odds^(−`exponent`), where odds is how sure a task's predictions are together.

    It is the geometric mean, over the query points, of p / (1 − p), with p the largest class probability at temperature
    1. New classes differ in difficulty by more than the sureness of a network's predictions shows. A positive exponent
    makes the predictions of a sure task surer still. They then depend on the other query points.
    """

    at_even_odds: float = 1.0
    exponent: float = 0.0
    of_mixture: bool = False
    """Whether it is the mixture's. Networks that are sure and disagree make an under-confident mixture, whatever their
    own temperature. The temperature of the mixture mends that."""

    def divide(self, outputs: Float[Tensor, "S N C"]) -> Float[Tensor, "R N C"]:
        """The outputs of S functions at a task's N query points, divided by its temperature.

        For a mixture, the outputs of one function that has its class probabilities.

        >>> sure, unsure = torch.tensor([[[3.0, 0.0]]]), torch.tensor([[[1.0, 0.0]]])
        >>> Temperature(2.0).divide(sure)[0, 0, 0], Temperature(1.0, 0.1).divide(sure)[0, 0, 0]
        (tensor(1.5000), tensor(4.0496))
        >>> Temperature(1.0, 0.1).divide(unsure)[0, 0, 0]
        tensor(1.1052)
        >>> Temperature(0.5, of_mixture=True).divide(torch.tensor([[[5.0, 0.0]], [[-5.0, 0.0]]])).softmax(-1)
        tensor([[[0.5000, 0.5000]]], dtype=torch.float64)
        """
        if self.of_mixture:
            outputs = _of_mixture(outputs)
        if self.exponent:
            return outputs / self.of(log_odds(outputs))
        return outputs if self.at_even_odds == 1 else outputs / self.at_even_odds

    def of_networks(self, outputs: Float[Tensor, "S N C"]) -> Float[Tensor, "S N C"]:
        """The outputs of each of the S functions by itself: as they are, where the temperature is the mixture's."""
        return outputs if self.of_mixture else self.divide(outputs)

    def of(self, log_odds: Tensor) -> Tensor:
        """The temperature of tasks whose predictions are so sure."""
        return self.at_even_odds * torch.exp(-self.exponent * log_odds)


def temperature_of(experiment: Experiment) -> Temperature:
    """The temperature of an experiment's class probabilities: 1 where there are no classes, or until it is learned."""
    data = experiment.data
    of_mixture = data.temperature_of == "mixture"
    return Temperature(data.softmax_temperature or 1.0, data.temperature_exponent or 0.0, of_mixture)


def log_odds(outputs: Float[Tensor, "S N C"]) -> Float[Tensor, ""]:
    """The mean, over a task's points, of ln p / (1 − p) for the largest class probability p.

    >>> log_odds(torch.tensor([[[3.0, 0.0], [0.0, 1.0]]]))
    tensor(2., dtype=torch.float64)
    """
    ordered = class_probabilities(outputs).sort(-1).values
    others = ordered[..., :-1].sum(-1).clamp(min=CERTAIN)  # 1 − p, which would round to 0
    return (ordered[..., -1] / others).log().mean(-1)


def _of_mixture(outputs: Float[Tensor, "S N C"]) -> Float[Tensor, "1 N C"]:
    """The logarithm of the mean, over the S functions, of their class probabilities."""
    return outputs.double().log_softmax(-1).logsumexp(0, keepdim=True) - math.log(len(outputs))
