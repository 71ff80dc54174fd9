"""Features of a pool's images, and how well they tell unseen classes apart."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.core import streams
from fewsure.data.augmentation import unit
from fewsure.data.episodes import Episodes
from fewsure.data.pools import Pool
from fewsure.evaluation.metrics.summary import mean_over_tasks
from fewsure.features.backbone import Backbone
from fewsure.features.classifier import EVALUATION_BATCH, arithmetic, autocast

WAY, QUERY = 5, 15
"""Classes of a task, and query images of each, where a pool has as many."""
BLOCK = 100
"""Tasks that are held in memory at once."""


def extract(
    network: Backbone,
    images: Tensor,
    *,
    batch: int = EVALUATION_BATCH,
    exact: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """Features (N, D) of uint8 images (N, C, H, W), on the CPU, computed on the network's device.

    Convolutions are in float32, or else, where not `exact`, as in training.
    The network is in evaluation mode: the features of an image do not depend on the others.
    """
    network.eval()
    device = network.mean.device
    features = torch.empty(len(images), network.outputs)
    with torch.inference_mode(), arithmetic(device, exact=exact), nullcontext() if exact else autocast(device):
        for start in range(0, len(images), batch):
            part = slice(start, start + batch)
            features[part] = network(unit(images[part].to(device))).cpu()
            progress(min(start + batch, len(images)))
    return features


def nearest_mean_accuracy(
    pool: Pool, *, shot: int, tasks: int, centred: bool = False, seed: int = 0
) -> dict[str, Any] | None:
    """Accuracy of the nearest class mean on tasks from a pool of features, with its 95 % interval over tasks.

    Features are scaled to length 1. The mean of a class is that of its `shot` support examples. A query belongs to the
    class whose mean has the smallest Euclidean distance. With `centred`, the mean of the support set is taken off its
    examples, and that of the query set off its own (transductive). None if the pool is too small for such tasks.
    """
    way, query = min(WAY, len(pool.classes)), min(QUERY, int(pool.counts.min()) - shot)
    if way < 2 or query < 1:
        return None
    scaled = pool._replace(examples=functional.normalize(pool.examples, dim=1))
    episodes = Episodes(scaled, way=way, shot=shot, query=query)
    right = []
    for block, start in enumerate(range(0, tasks, BLOCK)):
        generator = streams.generator(seed, "nearest-mean", block)
        task, _ = episodes.sample(min(BLOCK, tasks - start), generator)
        means = task.support.x.reshape(-1, way, shot, pool.examples.shape[1]).mean(2)
        queries = task.query.x
        if centred:
            means, queries = (x - x.mean(1, keepdim=True) for x in (means, queries))
        nearest = torch.cdist(queries, means).argmin(2)
        right.append((nearest == task.query.y).double().mean(1))
    return {"way": way, "shot": shot, "query": query, "tasks": tasks, "accuracy": mean_over_tasks(torch.cat(right))}
