"""Small runs for the tests of reports: regression, and images of one's own."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fewsure.algorithms.bmaml import Bmaml
from fewsure.algorithms.maml import Maml
from fewsure.algorithms.protonet import ProtoNet
from fewsure.algorithms.simpa import Simpa
from fewsure.data.own.images import Images, OwnConv4Options
from fewsure.data.sets.sine_line import SineLine
from fewsure.networks.mlp import MlpOptions
from fewsure.pipeline import evaluate_run, start_run
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


def trained(folder: Path, experiment: Experiment) -> Run:
    run = start_run(folder, experiment, resume=False)
    train(run, CPU, log_every=1)
    evaluate_run(run, CPU, tasks=TASKS, seed=0)
    return run


def regression_run(folder: Path, algorithm: Algorithm) -> Run:
    training = Training(updates=4, tasks=2)
    return trained(folder, Experiment(algorithm, SineLine(), MlpOptions(hidden=(8,)), training, "recommended"))


def sine_line_runs(folder: Path) -> list[Run]:
    """SImPa and MAML, evaluated on the same tasks; a folder's name looks like markup."""
    return [regression_run(folder / "simpa", TINY_SIMPA), regression_run(folder / "[bold]maml", TINY_MAML)]


def image_runs(folder: Path) -> list[Run]:
    """ProtoNet, and BMAML with a fitted temperature: two classes for each task, three of them in the test split."""
    data = Images(folder=str(write_photos(folder / "photos")), image_size=16, way=2, shot=1, query=4)
    network, training = OwnConv4Options(filters=2), Training(updates=2, tasks=2)
    methods = {"protonet": (ProtoNet(), 1.0), "bmaml": (Bmaml(particles=2, inner_steps=1), None)}
    return [
        trained(
            folder / name,
            Experiment(method, replace(data, softmax_temperature=temperature), network, training, "recommended"),
        )
        for name, (method, temperature) in methods.items()
    ]


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


def copied(run: Run, folder: Path) -> Run:
    """The same run in another folder."""
    return Run.open(shutil.copytree(run.folder, folder))


def report(runs: Sequence[Run], out: Path) -> Written:
    return write_report([run.folder for run in runs], out, CPU, tasks=TASKS, seed=0, baselines=False)
