"""The timed cases: methods × kinds of task, at the paper's T = 20, five inner steps and first order."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fewsure.algorithms.abml import Abml
from fewsure.algorithms.bmaml import Bmaml
from fewsure.algorithms.maml import Maml
from fewsure.algorithms.platipus import Platipus
from fewsure.algorithms.protonet import ProtoNet
from fewsure.algorithms.simpa import Simpa
from fewsure.algorithms.simpa_latent import SimpaLatent
from fewsure.algorithms.vampire import Vampire
from fewsure.bench import complexity
from fewsure.data.classification import Classification
from fewsure.data.pools import Pool, Split
from fewsure.data.sets.sine_line import SineLine
from fewsure.networks.conv4 import Conv4Options
from fewsure.networks.mlp import MlpOptions
from fewsure.posteriors.implicit import ImplicitPosterior
from fewsure.training.experiment import Experiment, Training
from fewsure.types import Algorithm, Model

TASKS = 20


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
    formula: Callable[[Experiment], float] | None = None
    """The paper's count, of the methods that it counts."""
    plain: type[Simpa] | None = None
    """The method's class in the plain program, if that is another."""

    def with_options(self, group: str, **options: Any) -> "Case":
        """The same with other options of one of the experiment's groups."""
        changed = dataclasses.replace(getattr(self.experiment, group), **options)
        return self._replace(experiment=dataclasses.replace(self.experiment, **{group: changed}))

    def paper_count(self) -> float:
        """The paper's count for an update of a method that it counts."""
        assert self.formula is not None, self.method
        return self.formula(self.experiment)


class DenseSimpa(Simpa):
    """Each task has its own copy of the generator's last layer."""

    def posterior(self, model: Model) -> ImplicitPosterior:
        """Without low-rank factors."""
        return dataclasses.replace(super().posterior(model), rank=0)


KINDS: dict[str, tuple[Any, Any]] = {
    "sine-line": (SineLine(), MlpOptions()),
    "conv4 28×28": (SyntheticImages(), Conv4Options()),
    "conv4 84×84": (SyntheticImages(size=84, channels=3), Conv4Options()),
}
STEPS: dict[str, Any] = {"inner_steps": 5, "first_order": True}


def headline_cases(kinds: tuple[str, ...] = tuple(KINDS)) -> list[Case]:
    """Every method on every kind of task that it can solve."""
    cases = []
    for kind in kinds:
        cases += [maml(kind), simpa("simpa, no KL", kind, kl="none")]
        if kind == "sine-line":
            cases.append(simpa("simpa, moment KL, 128 samples", kind, kl="moment", kl_samples=128))
            cases.append(simpa("simpa, critic KL, 512 samples", kind, kl="critic", kl_samples=512))
        else:
            cases.append(simpa("simpa, moment KL, 64 samples", kind, kl="moment", kl_samples=64))
            cases.append(_case("protonet", kind, ProtoNet()))
        cases.append(_case("simpa-latent", kind, SimpaLatent()))
        cases.append(_case("abml", kind, Abml(**STEPS), complexity.gaussian))
        cases.append(_case("vampire", kind, Vampire(**STEPS), complexity.gaussian))
        cases.append(_case("platipus", kind, Platipus(**STEPS)))
        cases.append(_case("bmaml", kind, Bmaml(**STEPS)))
    return cases


def maml(kind: str) -> Case:
    """MAML on a kind of task."""
    return _case("maml", kind, Maml(**STEPS), complexity.deterministic)


def simpa(name: str, kind: str, **options: Any) -> Case:
    """SImPa with one sample of w in training."""
    return _case(name, kind, Simpa(train_samples=1, **STEPS, **options), complexity.implicit, DenseSimpa)


def _case(
    method: str,
    kind: str,
    algorithm: Algorithm,
    formula: Callable[[Experiment], float] | None = None,
    plain: type[Simpa] | None = None,
) -> Case:
    data, network = KINDS[kind]
    experiment = Experiment(algorithm, data, network, Training(updates=10**9, tasks=TASKS), "bench")
    return Case(method, kind, experiment, formula, plain)
