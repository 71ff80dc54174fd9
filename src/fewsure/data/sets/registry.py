"""The registry of data sets."""

from fewsure.data.description import DataSet
from fewsure.data.sets.cifar_fs import CIFAR_FS
from fewsure.data.sets.leo import MINI_IMAGENET_LEO, TIERED_IMAGENET_LEO
from fewsure.data.sets.mini_imagenet import MINI_IMAGENET
from fewsure.data.sets.omniglot import OMNIGLOT
from fewsure.data.sets.tiered_imagenet import TIERED_IMAGENET
from fewsure.data.sets.tiny_tiered import TINY_TIERED

DATA_SETS: dict[str, DataSet] = {
    data_set.name: data_set
    for data_set in (
        OMNIGLOT,
        CIFAR_FS,
        MINI_IMAGENET,
        TIERED_IMAGENET,
        TINY_TIERED,
        MINI_IMAGENET_LEO,
        TIERED_IMAGENET_LEO,
    )
}
"""Name → what is known about it."""
