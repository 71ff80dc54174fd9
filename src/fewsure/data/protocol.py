"""The protocol of task distributions and data sets, with defaults: other rooms ask nothing else of data."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor

from fewsure.core.config import Range, ends, normalise_fields
from fewsure.data.augmentation import Augmentation
from fewsure.data.groups import PoolGroups
from fewsure.data.memory import remembered
from fewsure.data.pools import Pool, Split, merge
from fewsure.data.scaling import Scale
from fewsure.types import Batch, Facts, Kind, Model, Task


class Tasks(Protocol):
    """Where tasks come from."""

    def sample(self, tasks: int, generator: torch.Generator) -> tuple[Task, Facts]:
        """A meta-batch on the generator's device, and the facts about its tasks that no method sees."""

    def with_shot(self, shot: int) -> "Tasks":
        """The same tasks with so many support examples, or so many of each class."""


class Data(Protocol):
    """A frozen dataclass of options: which tasks there are. Data sets inherit the defaults."""

    own: ClassVar[bool] = False
    """Whether these are a user's own examples, whose splits depend on the user's files."""
    given: ClassVar[bool] = False
    """Whether they were given in Python, so that classes and tasks are named by their positions."""
    truth_known: ClassVar[bool] = False
    """Whether the facts of a task hold its noise-free function of one variable (`grid`, `truth`); its
    `exact_functions` are known, too."""
    pictures: ClassVar[bool] = False
    """Whether examples are images."""
    inverted: ClassVar[bool] = False
    """Whether pools hold the negatives of image files."""

    @property
    def unit(self) -> Literal["classes", "tasks"] | None:
        """The units of a split's pool; None where a sampler makes tasks without end."""
        return None

    @property
    def fixed_classes(self) -> bool:
        """Whether the classes are the same in every task."""
        return False

    @property
    def known_classes(self) -> tuple[str, ...]:
        """The names of fixed classes, in the order of their numbers."""
        return ()

    def __post_init__(self) -> None:
        """Check the options, as a record's are."""
        normalise_fields(self)

    @property
    def kind(self) -> Kind: ...

    @property
    def shot(self) -> Range:
        """Support examples of a task, or of each of its classes; a range of them for training."""

    @property
    def training_shots(self) -> tuple[int, int]:
        """The fewest and the most support examples of a training task, or of each of its classes."""
        return ends(self.shot)

    @property
    def test_shot(self) -> int:
        """Support examples of a task to test on, or of each of its classes: the middle of a range."""
        return sum(ends(self.shot)) // 2

    def with_shot(self, shot: Range) -> Self:
        """The same data, whose tasks all have so many support examples, or so many of each class."""
        data: Any = self
        found: Self = replace(data, shot=shot)
        return found

    @property
    def query(self) -> int:
        """Query examples of a task, or of each of its classes."""

    @property
    def outputs(self) -> int:
        """C: numbers to predict, or classes of a task."""

    @property
    def training_outputs(self) -> int:
        """C of a training task."""

    @property
    def support_size(self) -> int:
        """m⁽ᵗ⁾, support examples of a training task; the fewest of a range."""

    @property
    def query_size(self) -> int:
        """m⁽ᵛ⁾, query examples of a training task."""

    @property
    def needed_examples(self) -> int:
        """Examples that a class, or a task of rows, must have; a smaller one of a user's own is left out."""
        return ends(self.shot)[0] + self.query

    @property
    def fitted_scale(self) -> Scale:
        """The form of an example, and the scale that networks see it at."""

    def model(self, network: Any, *, training: bool = False) -> Model:
        """The base model that solves a task, given the network's options."""

    def tasks(self, split: Split, device: torch.device) -> Tasks:
        """The tasks of a split, drawn on a device."""

    def groups(self, device: torch.device, generator: torch.Generator) -> Sequence[Batch]:
        """The whole training groups: all rows of each task, or all examples of each class."""
        return PoolGroups(pool_on(self.at_temperature_1, "train", device), rows=self.kind == "regression")

    def pool(self, split: Split) -> Pool:
        """The examples of a split, on the CPU; for data with a `unit`."""
        raise TypeError(f"{type(self).__name__} makes tasks without a pool")

    def exact_functions(self, support: Batch, x: Tensor, size: int, generator: torch.Generator) -> Tensor:
        """(size, N, 1): functions of the exact posterior given a support set, at inputs x; where `truth_known`."""
        raise TypeError(f"the functions of {type(self).__name__} are not known")

    def training_pool(self) -> Pool:
        """The pool of training tasks; it has the validation classes too, where they are trained on."""
        return pool_on(self.at_temperature_1, "train", torch.device("cpu"))

    def checksum(self, split: Split) -> str | None:
        """SHA-256 of the examples of a split, if they come from a pool."""
        return pool_on(self.at_temperature_1, split, torch.device("cpu")).checksum

    def prepared(self) -> Self:
        """The same data, read anew, with the scale of its training examples."""
        return self

    def doubts(self) -> list[str]:
        """Doubts about a user's own data, each in one line with what to do."""
        return []

    def stored_features(self, split: Split) -> Pool | None:
        """The features of a split as they are stored, where examples are features."""
        return None

    @property
    def draws_within_group(self) -> bool:
        """Whether all classes of a task are of one group."""
        return False

    @property
    def grouped_by(self) -> str | None:
        """The column whose groups are independent of each other, or `classes`; None where each task counts as new.

        Tasks of a user's own data are drawn from the same few groups or classes again and again.
        """
        return None

    @property
    def train_on_validation(self) -> bool:
        """Whether the validation classes are trained on."""
        return False

    @property
    def augmentation(self) -> Augmentation | None:
        """How training examples are changed at random."""
        return None

    @property
    def target_column(self) -> str | None:
        """The column of a table that holds what is predicted."""
        return None

    @property
    def noise_std(self) -> float | None:
        """Standard deviation of the noise on a regression target, in its unit; None until it is fitted."""
        return 0.0

    @property
    def scaled_noise_std(self) -> float | None:
        """The same in the unit that networks see."""
        return self.noise_std

    @property
    def softmax_temperature(self) -> float | None:
        """The divisor of outputs before the softmax; None until it is fitted."""
        return 1.0

    @property
    def temperature_exponent(self) -> float | None:
        """How much lower the temperature is for surer tasks; None until it is fitted."""
        return 0.0

    @property
    def temperature_of(self) -> Literal["networks", "mixture"]:
        """Whether the temperature is that of each sampled network or that of their mixture."""
        return "networks"

    @property
    def at_temperature_1(self) -> Self:
        """The same tasks, with outputs as they are."""
        return self


@remembered
def pool_on(data: Data, split: Split, device: torch.device) -> Pool:
    """The pool that the tasks of a split are drawn from, on a device."""
    pool = data.pool(split)
    if split == "train" and data.train_on_validation:
        pool = merge(pool, data.pool("validation"))
    return pool.to(device)
