"""Runs of older versions: options that a `config.json` did not have when it was written, or that are gone since.

An option that joins a dataclass of options gets a line here, with the value that does what the code did before. A run
without it then loads, and goes on as it was. What cannot be had that way is a new format (`runs.FORMAT`), which is
refused with what to do.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fewsure.errors import FewsureError
from fewsure.training.experiment import GROUPS


class Added(NamedTuple):
    """An option that format 1 did not have at first."""

    group: str
    """Of options."""
    option: str
    value: Any
    """What does as before."""
    kinds: tuple[str, ...] = ()
    """The algorithms, or the data sets (of a network, too), that have it; none for all."""


FEATURE_SETS = ("features", "mini-imagenet-leo", "tiered-imagenet-leo")
IMAGE_SETS = ("omniglot", "cifar-fs", "mini-imagenet", "tiered-imagenet", "tiny-tiered", "images")
CLASS_SETS = (*FEATURE_SETS, *IMAGE_SETS, "table-classes", "given-classes", "given-images")
ADDED = (
    Added("training", "cuda_graph", True),  # results do not depend on it
    Added("training", "precision", "float32"),  # torch's own choice for matrix products
    Added("algorithm", "weight_noise", 0.0, ("simpa",)),
    Added("algorithm", "inner_clip_norm", None, ("simpa", "maml", "abml", "vampire", "platipus", "bmaml")),
    Added("algorithm", "scaled_generator", False, ("simpa",)),
    Added("algorithm", "initial_weights", "generator", ("simpa",)),
    Added("data", "length", None, FEATURE_SETS),
    Added("data", "train_mixing", 0.0, FEATURE_SETS),
    Added("data", "scale", None, FEATURE_SETS),
    Added("algorithm", "components", 1, ("simpa",)),
    Added("data", "softmax_temperature", 1.0, CLASS_SETS),
    Added("data", "train_shift", 0, IMAGE_SETS),
    Added("data", "train_flip", False, IMAGE_SETS),
    Added("data", "temperature_exponent", 0.0, CLASS_SETS),
    Added("network", "centred", False, (*FEATURE_SETS, "table-classes", "given-classes")),
    Added("data", "temperature_of", "networks", CLASS_SETS),
)
"""In the order in which they came, all within format 1."""
REMOVED = (
    Added("algorithm", "clip_from", 0.0, ("simpa",)),
    Added("algorithm", "clip_lower", True, ("simpa",)),
)
"""Options that came within format 1 and are gone again, with the value that does what the code does now."""


def with_todays_options(record: Mapping[str, Any]) -> dict[str, Any]:
    """A run's record with the options that were added after it was written, and without those that are gone.

    Another value of one that is gone cannot be had any more, and is refused.

    >>> with_todays_options({"algorithm": {"name": "protonet"}, "training": {"precision": "tf32"}})
    {'algorithm': {'name': 'protonet'}, 'training': {'precision': 'tf32', 'cuda_graph': True}}
    """
    groups = {group: dict(record[group]) for group in GROUPS if isinstance(record.get(group), Mapping)}
    for group, option, value, kinds in ADDED:
        kind = groups.get("data" if group == "network" else group, {}).get("name")
        if group in groups and (not kinds or kind in kinds):
            groups[group].setdefault(option, value)
    for group, option, value, _ in REMOVED:
        found = groups.get(group, {}).pop(option, value)
        if found != value and groups[group].get("clip") != "none":  # without clipping they did nothing
            raise FewsureError(
                f"the run was trained with `{option}` = {found!r}, an option that this version does not have; "
                "use the version that made it, or train anew"
            )
    return dict(record) | groups
