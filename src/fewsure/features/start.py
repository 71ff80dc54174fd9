"""Start a run at a body that `fewsure features` has trained on the training classes."""

import dataclasses
import hashlib
from pathlib import Path

import torch

from fewsure.certification.freshness import USED, classes_record
from fewsure.core import streams
from fewsure.data.io.feature_files import load_features
from fewsure.errors import FewsureError
from fewsure.features.convolutional import ConvolutionalNetwork
from fewsure.features.workflow import NETWORK, load_network, load_record
from fewsure.networks.conv4 import Conv4
from fewsure.pipeline import Start
from fewsure.training.experiment import Experiment
from fewsure.types import Parts

STREAMS = ("init", "order", "augment", "held-out", "nearest-mean")
"""The purposes of the streams that the training of a body draws from."""


def start_at_features(experiment: Experiment, folder: Path) -> tuple[Experiment, Start]:
    """The experiment whose base network begins with the blocks that a folder of features has learned.

    The weights that the method has beside them are drawn from the experiment's seed. The record of the data is that of
    the training classes of the features, and of the validation classes that chose among their epochs.
    """
    record, trained, network = load_record(folder), load_network(folder), experiment.model.network
    if not (isinstance(trained, ConvolutionalNetwork) and isinstance(network, Conv4)):
        raise FewsureError(
            f"expected --from to be features of the network conv4, and a run on images, but {folder} holds features of "
            f"{record['recipe']['network']}, and the run is on {experiment.data_name}; give --data features --folder "
            f"{folder} to train on the features themselves"
        )
    body = trained.body(network.norm)
    blocks = {name: tuple(value.shape) for name, value in body.items()}
    if blocks != network.embedding.shapes or tuple(record["shape"]) != network.shape:
        raise FewsureError(
            f"expected --from to be of {network.filters} filters{' with a stride' * network.strided} for images of "
            f"{network.shape}, but {folder} is of {blocks['0.bias'][0]} filters for {tuple(record['shape'])}"
        )
    starts = dataclasses.replace(network, body=body)
    plain, meta = (_first(experiment, one) for one in (network, starts))
    if all(torch.equal(value, meta[part][name]) for part, params in plain.items() for name, value in params.items()):
        raise FewsureError(
            f"expected --from with a method that has weights of a base network, but {experiment.algorithm_name} has "
            "none; leave it out"
        )
    digest = hashlib.sha256((folder / NETWORK).read_bytes()).hexdigest()
    used = {split: (record["checksums"][split], load_features(folder, split).classes) for split in USED}
    start = f"pretrained on the training classes of {record['data']}, features {digest[:16]}"
    return dataclasses.replace(experiment, start=start), Start(meta, classes_record(STREAMS, used))


def _first(experiment: Experiment, network: Conv4) -> Parts:
    """The initial meta-parameters with a base network."""
    generator = streams.generator(experiment.training.seed, "init")
    return experiment.algorithm.init(experiment.model._replace(network=network), generator)
