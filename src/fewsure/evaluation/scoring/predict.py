"""How a task is predicted, and what scorers make of it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fewsure.errors import FewsureError
from fewsure.evaluation.metrics.density import around_functions
from fewsure.evaluation.temperature import Temperature
from fewsure.types import Draw, Facts, Mixture, Noise, Records, Task

NO_TEMPERATURE = Temperature()


class Predict(NamedTuple):
    """The predictions of one adapted task."""

    outputs: Callable[[Tensor], Tensor]
    """x (N, …) → outputs (S, N, C) of S functions from the task's posterior."""
    own_density: Callable[[Tensor], Mixture] | None = None
    """x → the density of a label, of a method that has one."""
    kl: Tensor | None = None
    """KL[q(w) ‖ p(w)] of the task's posterior, or an upper bound, of a method that Theorem 1 speaks of."""
    temperature: Temperature = NO_TEMPERATURE
    """What divides outputs before the softmax."""

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs, divided by the temperature."""
        return self.temperature.divide(self.outputs(x))

    def density(self, x: Tensor, noise_std: float | None, functions: Tensor | None = None) -> Mixture:
        """The density of a label at x; the values of the `functions` there are made where they are not given."""
        if self.own_density is not None:
            return self.own_density(x)
        if noise_std is None:
            raise FewsureError("the noise on labels is not known yet; evaluate a trained run, or give --noise-std")
        values = self(x) if functions is None else functions
        return around_functions(values.squeeze(-1), noise_std)


class Scorer(Protocol):
    """Scores of one task, and their summary."""

    @property
    def draws(self) -> Mapping[str, Draw]:
        """Random numbers of a task for its scores, beside the ones for predictions."""
        return {}

    def score(self, predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
        """The records of one task."""
        ...

    def summarise(self, shards: Iterable[Records]) -> dict[str, Any]:
        """The figures over all tasks, whose records come shard by shard, as JSON values."""
        ...
