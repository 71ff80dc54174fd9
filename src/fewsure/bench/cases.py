"""What is timed: methods × kinds of task, at the paper's T = 20, five inner steps and first order."""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fewsure.algorithms.abml import Abml
from fewsure.algorithms.bmaml import Bmaml
from fewsure.algorithms.maml import Maml
from fewsure.algorithms.platipus import Platipus
from fewsure.algorithms.protonet import ProtoNet
from fewsure.algorithms.simpa import Simpa
from fewsure.algorithms.vampire import Vampire
from fewsure.data.classification import Classification
from fewsure.data.pools import Pool, Split
from fewsure.data.sets.sine_line import SineLine
from fewsure.networks.conv4 import Conv4Options
from fewsure.networks.mlp import MlpOptions
from fewsure.training.experiment import Experiment, Training
from fewsure.types import Algorithm

TASKS = 20
STEPS = 5


@dataclass(frozen=True)
class SyntheticImages(Classification):
    """5-way 1-shot tasks with 75 queries, of random pixels: as costly as real images, and nothing to download."""

    size: int = 28
    channels: int = 1

    name = "synthetic"
    CLASSES, EACH = 50, 20

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.channels, self.size, self.size)

    def pool(self, split: Split) -> Pool:
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(256, (self.CLASSES * self.EACH, *self.shape), generator=generator)
        names = tuple(str(number) for number in range(self.CLASSES))
        starts = torch.arange(self.CLASSES + 1) * self.EACH
        return Pool(pixels.to(torch.uint8), starts, names, ("",) * self.CLASSES, "")


class Case(NamedTuple):
    """A method on a kind of task."""

    method: str
    tasks: str
    experiment: Experiment

    def with_options(self, group: str, **options: Any) -> "Case":
        """The same with other options of one of the experiment's groups."""
        changed = dataclasses.replace(getattr(self.experiment, group), **options)
        return self._replace(experiment=dataclasses.replace(self.experiment, **{group: changed}))


KINDS: dict[str, tuple[Any, Any]] = {
    "sine-line": (SineLine(), MlpOptions()),
    "conv4 28×28": (SyntheticImages(), Conv4Options()),
    "conv4 84×84": (SyntheticImages(size=84, channels=3), Conv4Options()),
}


def case(method: str, kind: str, algorithm: Algorithm, tasks: int = TASKS) -> Case:
    """The case of a method on a kind of task."""
    data, network = KINDS[kind]
    return Case(method, kind, Experiment(algorithm, data, network, Training(updates=10**9, tasks=tasks), "bench"))


def _simpa(**options: Any) -> Simpa:
    return Simpa(inner_steps=STEPS, first_order=True, train_samples=1, **options)


def headline_cases(kinds: tuple[str, ...] = tuple(KINDS)) -> list[Case]:
    """Every method on every kind of task that it can solve."""
    steps: dict[str, Any] = {"inner_steps": STEPS, "first_order": True}
    cases = []
    for kind in kinds:
        cases += [case("maml", kind, Maml(**steps)), case("simpa, no KL", kind, _simpa(kl="none"))]
        if kind == "sine-line":
            cases.append(case("simpa, moment KL, 128 samples", kind, _simpa(kl="moment", kl_samples=128)))
            cases.append(case("simpa, critic KL, 512 samples", kind, _simpa(kl="critic", kl_samples=512)))
        else:
            cases.append(case("simpa, moment KL, 64 samples", kind, _simpa(kl="moment", kl_samples=64)))
            cases.append(case("protonet", kind, ProtoNet()))
        cases.append(case("abml", kind, Abml(**steps)))
        cases.append(case("vampire", kind, Vampire(**steps)))
        cases.append(case("platipus", kind, Platipus(**steps)))
        cases.append(case("bmaml", kind, Bmaml(**steps)))
    return cases
