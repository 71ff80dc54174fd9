"""Every method learns to classify: tasks of Gaussian blobs, a small network, a short training."""

import pytest
import torch
from torch import Tensor

from fewsure.algorithms.abml import Abml
from fewsure.algorithms.bmaml import Bmaml
from fewsure.algorithms.maml import Maml
from fewsure.algorithms.platipus import Platipus
from fewsure.algorithms.simpa import Simpa
from fewsure.algorithms.vampire import Vampire
from fewsure.core import streams
from fewsure.core.vectorise import draw_noise, draw_per_task, for_each
from fewsure.networks.losses import classification
from fewsure.networks.mlp import Mlp
from fewsure.training.engine import Engine
from fewsure.training.optimiser import Optimiser
from fewsure.types import Algorithm, Batch, Parts, Stage, Task

WAYS, NUISANCES = 3, 6
GENERATOR = {"latent": 8, "generator_hidden": (32,), "kl_samples": 8, "warm_up_tasks": 0}

METHODS: dict[str, Algorithm] = {
    "maml first order": Maml(inner_lr=0.3, inner_steps=3, first_order=True),
    "maml second order": Maml(inner_lr=0.3, inner_steps=3, first_order=False),
    "simpa first order": Simpa(inner_lr=0.05, inner_steps=3, first_order=True, **GENERATOR),
    "simpa second order": Simpa(inner_lr=0.05, inner_steps=3, first_order=False, **GENERATOR),
    "simpa bounded": Simpa(inner_lr=0.1, inner_steps=3, first_order=True, clip="bounded", kl="none", **GENERATOR),
    "abml first order": Abml(inner_lr=0.3, inner_steps=3, first_order=True, initial_std=0.15, kl_weight=0.1),
    "abml second order": Abml(inner_lr=0.3, inner_steps=3, first_order=False, initial_std=0.15, kl_weight=0.1),
    "vampire first order": Vampire(inner_lr=0.3, inner_steps=3, first_order=True, initial_std=0.15, kl_weight=0.1),
    "vampire second order": Vampire(inner_lr=0.3, inner_steps=3, first_order=False, initial_std=0.15, kl_weight=0.1),
    "platipus": Platipus(inner_lr=0.3, inner_steps=3, first_order=False, prior_std=0.05, inference_std=0.05),
    "bmaml": Bmaml(4, inner_lr=0.5, inner_steps=3, first_order=False, likelihood_scale=1.0),
    "bmaml with chaser": Bmaml(4, inner_lr=0.5, inner_steps=3, first_order=False, likelihood_scale=1.0, chaser=True),
}


def blobs(tasks: int, generator: torch.Generator) -> Task:
    """2 support and 10 query examples of each class.

    The classes of a task lie apart in two dimensions; in all others is noise, which a meta-learner finds out.
    """
    positions = 3 * torch.randn(tasks, WAYS, 1, 2, generator=generator)
    centres = torch.cat([positions, torch.zeros(tasks, WAYS, 1, NUISANCES)], dim=-1)
    spread = torch.tensor([0.5, 0.5] + [3.0] * NUISANCES)
    x = centres + spread * torch.randn(tasks, WAYS, 12, 2 + NUISANCES, generator=generator)
    y = torch.arange(WAYS).unsqueeze(1).expand(tasks, WAYS, 12)
    support, query = ((x[:, :, part].flatten(1, 2), y[:, :, part].flatten(1)) for part in (slice(0, 2), slice(2, 12)))
    return Task(Batch(*support), Batch(*query))


def accuracy_after(algorithm: Algorithm, updates: int) -> float:
    """The mean accuracy on unseen tasks after a short training; chance is 1/3."""
    model = classification(Mlp((2 + NUISANCES, 24, WAYS)), WAYS)
    meta = algorithm.init(model, streams.generator(0, "init"))
    engine, optimiser = Engine(algorithm, model), Optimiser(meta, torch.device("cpu"))
    optimiser.set_learning_rate(1e-2)
    for update in range(updates):
        generator = streams.generator(0, "train", update)
        tasks = blobs(8, generator)
        shared, noise = draw_noise(algorithm.noise(model, 5, 10), 8, generator)
        gradient, _ = engine.gradient(meta, tasks, shared, noise, Stage(torch.tensor(update), 8))
        optimiser.step(gradient, clip_norm=10.0)

    generator = streams.generator(0, "unseen")
    tasks = blobs(100, generator)
    shared, noise = draw_noise(algorithm.noise(model, 5, 10), 100, generator)
    prediction_noise = draw_per_task(algorithm.prediction_noise(model, 8, 5), 100, generator)

    def accuracy(parts: tuple, meta: Parts) -> Tensor:
        task, own, prediction = parts
        posterior = algorithm.adapt(meta, model, task.support, shared | own)
        probabilities = algorithm.predict(posterior, model, task.query.x, prediction).softmax(-1).mean(0)
        return (probabilities.argmax(-1) == task.query.y).float().mean()

    with torch.no_grad():
        return float(for_each(accuracy)((tasks, noise, prediction_noise), meta).mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(METHODS))
def test_it_learns_to_classify_blobs(name: str) -> None:
    before, after = accuracy_after(METHODS[name], 0), accuracy_after(METHODS[name], 80)
    assert before < 0.6
    assert after > max(0.62, before + 0.1)
