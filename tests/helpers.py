"""Small settings that several tests share."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fewsure.algorithms import ALGORITHMS
from fewsure.algorithms.simpa import Simpa
from fewsure.core import streams
from fewsure.core.vectorise import draw_noise
from fewsure.data.io.feature_files import write_features
from fewsure.data.pools import SPLITS, Pool
from fewsure.data.sets.sine_line import SineLine
from fewsure.networks.losses import regression
from fewsure.networks.mlp import Mlp
from fewsure.training.engine import Engine
from fewsure.types import Algorithm, Model, Parts, Stage

REGRESSION = [name for name, kind in ALGORITHMS.items() if "regression" in kind.kinds]
CLASSIFICATION = [name for name, kind in ALGORITHMS.items() if "classification" in kind.kinds]
WITH_STEPS = [name for name, kind in ALGORITHMS.items() if hasattr(kind, "inner_steps")]
"""Methods that adapt by gradient steps."""
TASKS = 4
DATA = SineLine(query=7)
MODEL = regression(Mlp((1, 5, 1)))


def small_simpa(**options: object) -> Simpa:
    settings = {"latent": 3, "generator_hidden": (4, 6), "critic_hidden": (5,), "kl_samples": 5, "warm_up_tasks": 0}
    settings |= {
        "first_order": True,
        "form": "paper",
        "train_samples": 1,
        "inner_steps": 2,
        "inner_lr": 0.01,
        "critic_lr": 0.01,
    }
    return Simpa(**(settings | options))  # type: ignore[arg-type]


def meta_batch(algorithm: Algorithm, seed: int = 0, model: Model = MODEL) -> tuple:
    """(meta, tasks, shared noise, noise of each task, stage): the arguments of an engine's methods."""
    generator = streams.generator(seed, "test")
    meta = algorithm.init(model, generator)
    tasks, _ = DATA.sample(TASKS, generator)
    return meta, tasks, *draw_noise(algorithm.noise(model, 5, 10), TASKS, generator), Stage(torch.tensor(1000), TASKS)


def slope(function: Callable[[Parts], Tensor], at: Parts, direction: Parts, step: float = 1e-5) -> float:
    """The derivative along a direction by central differences."""

    def shifted(by: float) -> Parts:
        return {
            part: {name: value + by * direction[part][name] for name, value in params.items()}
            for part, params in at.items()
        }

    return float(function(shifted(step)) - function(shifted(-step))) / (2 * step)


def inner_product(a: Parts, b: Parts) -> float:
    return float(sum((a[part][name] * b[part][name]).sum() for part in a for name in a[part]))


def random_direction(like: Parts, seed: int = 1) -> Parts:
    generator = streams.generator(seed, "direction")
    return {
        part: {name: torch.randn(value.shape, generator=generator) for name, value in params.items()}
        for part, params in like.items()
    }


def assert_close(a: Parts, b: Parts, tolerance: float) -> None:
    for part, params in a.items():
        for name, value in params.items():
            difference = float((value - b[part][name]).abs().max())
            assert difference <= tolerance, f"{part}/{name} differs by {difference}"


def assert_vectorised_equals_loop(algorithm: Algorithm, model: Model, batch: tuple) -> None:
    """The meta-gradient and what is logged, for all tasks at once and for any chunk of them."""
    reference, info = Engine(algorithm, model, loop=True).gradient(*batch)
    for chunk_size in (None, 1, 3):
        gradient, vectorised_info = Engine(algorithm, model, chunk_size=chunk_size).gradient(*batch)
        assert_close(gradient, reference, 1e-10)
        assert_close({"info": vectorised_info}, {"info": info}, 1e-10)


def assert_gradient_equals_finite_differences(
    algorithm: Algorithm, model: Model, batch: tuple, step: float = 1e-5, absolute: float = 0.0
) -> None:
    """The meta-gradient along three random directions."""
    meta, *rest = batch
    engine = Engine(algorithm, model)
    gradient, _ = engine.gradient(meta, *rest)
    for seed in range(3):
        direction = random_direction(meta, seed)
        expected = slope(lambda at: engine.loss(at, *rest)[0], meta, direction, step)
        assert abs(inner_product(gradient, direction) - expected) <= 1e-6 * abs(expected) + absolute


def write_blobs(folder: Path, classes: int = 8, each: int = 12, dimensions: int = 6) -> Path:
    """A folder of features: each class is a Gaussian blob; the three splits have different classes."""
    for number, split in enumerate(SPLITS):
        generator = streams.generator(number, "blobs")
        centres = 3 * torch.randn(classes, 1, dimensions, generator=generator)
        features = (centres + torch.randn(classes, each, dimensions, generator=generator)).flatten(0, 1)
        names = tuple(f"{split} {number:02}" for number in range(classes))
        pool = Pool(features, torch.arange(classes + 1) * each, names, ("",) * classes, "")
        write_features(folder, split, features.float(), pool)
    return folder
