"""Where the tasks of an evaluation come from: a split, whose images go through a network of all tasks once.

Thousands of tasks are drawn from a few thousand images. Where a method sees an image through a network that is the same
for all tasks, and an output depends on its image alone, each image needs to pass the network once.
"""

from typing import NamedTuple

import torch

from fewsure.core.devices import device_of, precision
from fewsure.data import Tasks
from fewsure.data.episodes import Episodes
from fewsure.data.pools import Split, network_inputs
from fewsure.networks.embedded import Embedded
from fewsure.training.experiment import Experiment
from fewsure.types import Model, Parts

BATCH = 200
"""Images that pass the network at once."""


class TaskSource(NamedTuple):
    """The tasks of a split, and the model that sees their inputs."""

    tasks: Tasks
    model: Model


def task_source(experiment: Experiment, meta: Parts, stream: Split, count: int) -> TaskSource:
    """Where `count` tasks of a split are drawn from: embedded once where that is less work than task by task."""
    model, tasks = experiment.model, experiment.data.tasks(stream, device_of(meta))
    network = experiment.method.shared_network(model)
    alone = network is not None and network.maps is not None and not experiment.transductive
    if network is None or not alone or not isinstance(tasks, Episodes) or network.given(torch.empty(0)) is not network:
        return TaskSource(tasks, model)
    images = tasks.pool.examples
    if count * tasks.size <= len(images):
        return TaskSource(tasks, model)
    with torch.no_grad(), precision(experiment.training.precision):
        embedded = torch.cat([network(meta["embedding"], network_inputs(part)) for part in torch.split(images, BATCH)])
    return TaskSource(tasks.seen_as(embedded), model._replace(network=Embedded(embedded.shape[1])))
