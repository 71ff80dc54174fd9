"""Images that pass a network of all tasks once: the same records as task by task."""

import dataclasses
from typing import Any

import pytest
import torch

import fewsure.evaluation.evaluate
from fewsure.core import streams
from fewsure.data.sets.mini_imagenet import MiniImageNet
from fewsure.evaluation.evaluate import evaluate
from fewsure.evaluation.source import TaskSource, task_source
from fewsure.networks.embedded import Embedded
from fewsure.reproduce.targets import changed
from fewsure.training.experiment import Experiment, load_preset
from fewsure.types import Parts

from .test_features import textures

TASKS = 20


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mini-ImageNet holds textures."""
    pool = textures(5, 12, 2, "test", side=84)
    monkeypatch.setattr(MiniImageNet, "pool", lambda self, split: pool)


def experiment(method: str, norm: str) -> Experiment:
    options: dict[str, Any] = {
        "data": {"query": 4, "softmax_temperature": 1.0, "temperature_exponent": 0.0},
        "network": {"filters": 4, "norm": norm},
        "training": {"precision": "float32"},
    }
    return changed(load_preset("recommended", method, "mini-imagenet"), options, None)


def initial(experiment: Experiment) -> Parts:
    return experiment.algorithm.init(experiment.model, streams.generator(0, "init"))


@pytest.mark.parametrize("method", ["protonet", "simpa-latent", "ridge", "dkt", "metaoptnet", "metaqda"])
def test_records_are_those_of_task_by_task(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = experiment(method, "none")
    meta = initial(asked)
    assert isinstance(task_source(asked, meta, "test", TASKS).model.network, Embedded)
    _, once = evaluate(asked, meta, tasks=TASKS, seed=0)

    def one_by_one(asked: Experiment, meta: Parts, *other: object) -> TaskSource:
        return TaskSource(asked.data.tasks("test", torch.device("cpu")), asked.model)

    monkeypatch.setattr(fewsure.evaluation.evaluate, "task_source", one_by_one)
    _, each = evaluate(asked, meta, tasks=TASKS, seed=0)
    for name, value in once.items():
        torch.testing.assert_close(value.double(), each[name].double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "norm", "tasks"),
    [("maml", "none", TASKS), ("protonet", "batch", TASKS), ("protonet", "support", TASKS), ("protonet", "none", 2)],
    ids=["own-networks", "batch", "support", "few-tasks"],
)
def test_networks_of_a_task_and_few_tasks_see_images(method: str, norm: str, tasks: int) -> None:
    asked = experiment(method, norm)
    assert task_source(asked, initial(asked), "test", tasks).model == asked.model


def test_a_network_that_adds_inputs_to_features_sees_images() -> None:
    asked = experiment("ridge", "none")
    asked = dataclasses.replace(asked, algorithm=dataclasses.replace(asked.algorithm, with_inputs=True))  # type: ignore[type-var]
    assert task_source(asked, initial(asked), "test", TASKS).model == asked.model
