"""Small runs for the tests of reports: regression, and images of one's own."""

from pathlib import Path

import numpy as np
import torch

from fewsure.algorithms.maml import Maml
from fewsure.algorithms.protonet import ProtoNet
from fewsure.algorithms.simpa import Simpa
from fewsure.data.own.images import Images, OwnConv4Options
from fewsure.data.sets.sine_line import SineLine
from fewsure.networks.mlp import MlpOptions
from fewsure.pipeline import start_run
from fewsure.report.page import Written, write_report
from fewsure.training.experiment import Experiment, Training
from fewsure.training.loop import train
from fewsure.training.runs import Run
from fewsure.types import Algorithm

from .data_files import image_bytes, write_tree

CPU = torch.device("cpu")
TINY_SIMPA = Simpa(latent=4, generator_hidden=(8,), kl_samples=4, inner_steps=1)
TINY_MAML = Maml(inner_steps=1)
TASKS = 20
CLASSES = 15


def regression_run(folder: Path, algorithm: Algorithm, shot: int = 5, updates: int = 4) -> Run:
    experiment = Experiment(
        algorithm, SineLine(shot=shot), MlpOptions(hidden=(8,)), Training(updates=updates, tasks=2), "recommended"
    )
    run = start_run(folder, experiment, resume=False)
    train(run, CPU, log_every=1)
    return run


def write_photos(folder: Path) -> Path:
    """Class folders of noisy pictures, each class with a brightness of its own; one has markup for a name."""
    random = np.random.default_rng(0)
    names = [f"class {number:02}" for number in range(CLASSES - 1)] + ["<b>bold&"]
    files = {
        f"{name}/{example}.png": image_bytes(
            random.integers(10 * number, 10 * number + 60, (16, 16, 3), dtype=np.uint8)
        )
        for number, name in enumerate(names)
        for example in range(6)
    }
    write_tree(folder, files)
    return folder


def image_run(
    folder: Path, photos: Path, algorithm: Algorithm | None = None, softmax_temperature: float | None = 1.0
) -> Run:
    """Two classes for each task, three of them in the test split."""
    data = Images(folder=str(photos), image_size=16, way=2, shot=1, query=4, softmax_temperature=softmax_temperature)
    experiment = Experiment(
        algorithm or ProtoNet(), data, OwnConv4Options(filters=2), Training(updates=2, tasks=2), "recommended"
    )
    run = start_run(folder, experiment, resume=False)
    train(run, CPU, log_every=1)
    return run


def report(runs: list[Run], out: Path, tasks: int = TASKS) -> Written:
    return write_report([run.folder for run in runs], out, CPU, tasks=tasks, seed=0)
