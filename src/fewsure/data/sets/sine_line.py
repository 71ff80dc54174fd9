"""The task distribution of section 5.1: half sinusoids, half lines."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fewsure.data.pools import Split
from fewsure.data.regression import Regression
from fewsure.data.scaling import Scale
from fewsure.errors import require
from fewsure.types import Batch, Facts, Task

GRID = 101
"""Inputs, evenly over the range, at which a function is known without noise."""
GROUPS = 200
"""Tasks that stand for all training tasks, which have no end."""
PRIOR = 200_000
"""Functions of the task distribution that stand for all of them where the exact posterior is drawn from."""


class Functions(NamedTuple):
    """T noise-free functions of one variable; each parameter has shape (T, 1)."""

    is_sine: Tensor
    amplitude: Tensor
    phase: Tensor
    slope: Tensor
    intercept: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Values at x, both of shape (T, N)."""
        sine = self.amplitude * torch.sin(x + self.phase)
        return torch.where(self.is_sine, sine, self.slope * x + self.intercept)

    def given(self, support: Batch, noise_std: float, size: int, generator: torch.Generator) -> "Functions":
        """`size` of these functions, drawn by their likelihood on a support set (m, 1)."""
        x, y = (part.squeeze(-1) for part in support)
        log_weights = -0.5 * ((self(x.expand(len(self.slope), -1)) - y) / noise_std).square().sum(1)
        chosen = torch.multinomial(log_weights.softmax(0), size, replacement=True, generator=generator)
        return Functions(*(parameter[chosen] for parameter in self))


@dataclass(frozen=True)
class SineLine(Regression):
    """Regression tasks in one dimension: A·sin(x + Φ) or a·x + b, with Gaussian noise on y (section 5.1)."""

    query: int = 50
    """m⁽ᵛ⁾, query points of a task."""
    train_query: int | None = None
    """Query points of a training task; `none` for `query`."""
    noise_std: float = 0.3
    """Standard deviation of the noise on y."""
    x_range: tuple[float, float] = (-5.0, 5.0)
    """Inputs are uniform on this interval."""
    amplitude: tuple[float, float] = (0.1, 5.0)
    """A of a sinusoid, uniform."""
    phase: tuple[float, float] = (0.0, math.pi)
    """Φ of a sinusoid, uniform."""
    slope: tuple[float, float] = (-3.0, 3.0)
    """a of a line, uniform."""
    intercept: tuple[float, float] = (-3.0, 3.0)
    """b of a line, uniform."""
    sine_share: float = 0.5
    """Probability that a task is a sinusoid."""

    truth_known = True
    fitted_scale: ClassVar[Scale] = Scale((1,))

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.query_size >= 1, "train_query", "at least 1 example", self.train_query)
        require(0 <= self.sine_share <= 1, "sine_share", "a probability in [0, 1]", self.sine_share)
        for name in ("x_range", "amplitude", "phase", "slope", "intercept"):
            low, high = getattr(self, name)
            ordered = -math.inf < low <= high < math.inf
            require(ordered, name, "two numbers, the lower one first", (low, high))

    @property
    def query_size(self) -> int:
        return self.query if self.train_query is None else self.train_query

    def tasks(self, split: Split, device: torch.device) -> "SineLine":
        """The same tasks for every split, which differ by the random streams that they are drawn from."""
        return dataclasses.replace(self, query=self.query_size) if split == "train" else self

    def groups(self, device: torch.device, generator: torch.Generator) -> Sequence[Batch]:
        tasks, _ = self.sample(GROUPS, generator)
        x, y = (torch.cat(parts, dim=1) for parts in zip(tasks.support, tasks.query, strict=True))
        return [Batch(*group) for group in zip(x, y, strict=True)]

    def checksum(self, split: Split) -> None:
        """Nothing is read from a file."""

    def functions(self, tasks: int, generator: torch.Generator) -> Functions:
        """Draw the noise-free functions of `tasks` tasks."""
        return Functions(
            self._uniform((0.0, 1.0), (tasks, 1), generator) < self.sine_share,
            self._uniform(self.amplitude, (tasks, 1), generator),
            self._uniform(self.phase, (tasks, 1), generator),
            self._uniform(self.slope, (tasks, 1), generator),
            self._uniform(self.intercept, (tasks, 1), generator),
        )

    def exact_functions(self, support: Batch, x: Tensor, size: int, generator: torch.Generator) -> Tensor:
        drawn = self.functions(PRIOR, generator).given(support, self.noise_std, size, generator)
        return drawn(x.squeeze(-1).expand(size, -1)).unsqueeze(-1)

    def sample(self, tasks: int, generator: torch.Generator) -> tuple[Task, Facts]:
        """A meta-batch on the generator's device, x and y of shape (T, N, 1).

        The facts are the noise-free functions (`truth`) at `GRID` inputs evenly over the range (`grid`), (T, GRID, 1).
        """
        functions = self.functions(tasks, generator)
        support = self._observe(functions, self.test_shot, generator)
        query = self._observe(functions, self.query, generator)
        grid = torch.linspace(*self.x_range, GRID, device=generator.device).expand(tasks, GRID)
        return Task(support, query), {"grid": grid.unsqueeze(-1), "truth": functions(grid).unsqueeze(-1)}

    def _observe(self, functions: Functions, count: int, generator: torch.Generator) -> Batch:
        shape = (len(functions.is_sine), count)
        x = self._uniform(self.x_range, shape, generator)
        noise = torch.randn(shape, generator=generator, device=generator.device)
        return Batch(x.unsqueeze(-1), (functions(x) + self.noise_std * noise).unsqueeze(-1))

    @staticmethod
    def _uniform(limits: tuple[float, float], shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        low, high = limits
        return low + (high - low) * torch.rand(shape, generator=generator, device=generator.device)
