"""Classification data as an experiment holds it: which set, how many classes and examples a task has."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch

from fewsure.core.config import LEARNED, normalise_fields
from fewsure.core.places import data_root
from fewsure.data.augmentation import Augmentation, Mixing, Moving
from fewsure.data.episodes import Episodes
from fewsure.data.io.cache import load
from fewsure.data.io.feature_files import load_features
from fewsure.data.pools import Pool, Split, merge, restrict
from fewsure.data.protocol import Data
from fewsure.data.scaling import LengthScale, Scale
from fewsure.data.sets.registry import DATA_SETS
from fewsure.errors import FewsureError, require
from fewsure.networks.conv4 import Conv4Options
from fewsure.networks.losses import classification
from fewsure.networks.mlp import Mlp, MlpOptions
from fewsure.types import Kind, Model

BLOCK = 10_000
"""Features that are scaled at once, in double precision."""


@dataclass(frozen=True)
class Classification(Data):
    """Tasks of N classes with k labelled examples each, drawn from the classes of a data set's split."""

    way: int = 5
    """N, classes of a task."""
    shot: int = 1
    """k, support examples per class."""
    query: int = 15
    """Query examples per class."""
    train_way: int | None = None
    """Classes of a task in training, where the method allows another number (protonet); `none` for --way."""
    train_shot: int | None = None
    """Support examples per class in training; `none` for --shot."""
    train_query: int | None = None
    """Query examples per class in training; `none` for --query."""
    within_group: bool = False
    """Draw all classes of a task from one group: an alphabet of Omniglot, a super-category of tiered-ImageNet."""
    train_on_validation: bool = False
    """Train on the validation classes too, for a last run whose options are settled."""
    softmax_temperature: float | None = 1.0
    """What outputs are divided by before the softmax; `none`: learned from validation tasks when training ends, so that
    predictions are neither too sure nor too unsure on new classes."""
    temperature_exponent: float | None = 0.0
    """How much lower the temperature is for a task whose predictions are surer: it is multiplied by odds^−exponent, and
    odds is the geometric mean of p / (1 − p) over the query points, so that a prediction depends on the others. `none`:
    learned with the temperature, so that predictions are calibrated on easy and on hard tasks."""
    temperature_of: Literal["networks", "mixture"] = "networks"
    """Whether the temperature is that of each sampled network, before their probabilities are averaged, or that of
    their mixture, which can then be surer than its parts agree; the same for one network."""

    name: ClassVar[str]
    kind: ClassVar[Kind] = "classification"
    unit = "classes"

    def __post_init__(self) -> None:
        normalise_fields(self)
        require(self.way >= 2, "way", "at least 2 classes", self.way)
        for option in ("shot", "query", "train_shot", "train_query"):
            value = getattr(self, option)
            require(value is None or value >= 1, option, "at least 1 example per class", value)
        require(self.train_way is None or self.train_way >= 2, "train_way", "at least 2 classes", self.train_way)
        temperature = self.softmax_temperature
        known = temperature is None or 0 < temperature < math.inf
        require(known, "softmax_temperature", "a number above 0, or none", temperature)
        exponent = self.temperature_exponent
        known = exponent is None or abs(exponent) <= 1
        require(known, "temperature_exponent", "a number from −1 to 1, or none", exponent)
        if exponent is None and temperature is not None:
            raise FewsureError(
                "expected --softmax-temperature none where the --temperature-exponent is to be learned, since the two "
                f"are learned together, but got {temperature}; add --softmax-temperature none, or give "
                "--temperature-exponent 0"
            )
        if temperature is None and self.train_on_validation:
            raise FewsureError(
                "expected a --softmax-temperature where the validation classes are trained on, since it cannot be "
                "learned from them, but got none; give --softmax-temperature 1 --temperature-exponent 0, or leave out "
                "--train-on-validation"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an example."""
        return DATA_SETS[self.name].shape

    @property
    def outputs(self) -> int:
        return self.way

    @property
    def training_outputs(self) -> int:
        return self.train_way or self.way

    @property
    def support_size(self) -> int:
        """m⁽ᵗ⁾ of a training task."""
        return self.training_outputs * (self.train_shot or self.shot)

    @property
    def query_size(self) -> int:
        """m⁽ᵛ⁾ of a training task."""
        return self.training_outputs * (self.train_query or self.query)

    @property
    def draws_within_group(self) -> bool:
        return self.within_group

    @property
    def fitted_scale(self) -> Scale:
        return Scale(self.shape)

    def model(self, network: Conv4Options | MlpOptions, *, training: bool = False) -> Model:
        way = self.training_outputs if training else self.outputs
        return classification(network.build(self.shape, way), way)

    def pool(self, split: Split) -> Pool:
        """The examples of a split, on the CPU."""
        return load(DATA_SETS[self.name], split)

    def training_pool(self) -> Pool:
        return self.tasks("train", torch.device("cpu")).pool

    def large_enough(self, pool: Pool, split: Split) -> Pool:
        """A split's pool without the classes that have fewer than shot + query examples, as a user's own data may.

        Of training and testing, the one that takes more of a class decides, since validation classes may serve both.
        Where the others make no task, it is left as it is, and drawing from it says what is missing.
        """
        needed = max(self.shot + self.query, (self.train_shot or self.shot) + (self.train_query or self.query))
        enough = (pool.counts >= needed).tolist()
        kept = [
            (name, group) for name, group, is_kept in zip(pool.classes, pool.groups, enough, strict=True) if is_kept
        ]
        together = Counter(group for _, group in kept).values() if self.draws_within_group else [len(kept)]
        way = self.training_outputs if split == "train" else self.way
        if all(enough) or max(together, default=0) < way:
            return pool
        return restrict(pool, [name for name, _ in kept])

    @property
    def at_temperature_1(self) -> Self:
        return replace(self, softmax_temperature=1.0, temperature_exponent=0.0)

    def tasks(self, split: Split, device: torch.device) -> Episodes:
        """The tasks of a split, drawn on a device."""
        return _tasks(self.at_temperature_1, split, device, data_root())  # tasks do not depend on it

    def checksum(self, split: Split) -> str | None:
        """SHA-256 of the split's examples."""
        return self.tasks(split, torch.device("cpu")).pool.checksum


@lru_cache(maxsize=6)
def _tasks(data: Classification, split: Split, device: torch.device, root: Path) -> Episodes:
    """What has been loaded from a data root stays loaded: an evaluation asks for it with each block of tasks."""
    training = split == "train"
    pool = data.pool(split)
    if training and data.train_on_validation:
        pool = merge(pool, data.pool("validation"))
    return Episodes(
        pool.to(device),
        way=data.training_outputs if training else data.way,
        shot=(data.train_shot if training else None) or data.shot,
        query=(data.train_query if training else None) or data.query,
        within_group=data.draws_within_group,
        augmentation=data.augmentation if training else None,
        name=f"{data.name}, {split}",
    )


def forget_pools() -> None:
    """Read data anew where it is next asked for."""
    _tasks.cache_clear()
    _length_scale.cache_clear()


@dataclass(frozen=True)
class ImageSet(Classification):
    """Images with labels, which may be shifted and mirrored in training."""

    pictures = True

    train_shift: int = 0
    """In training, shift each image at random by up to so many pixels in each direction."""
    train_flip: bool = False
    """In training, mirror half of the images left to right, where that leaves the class as it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size = min(self.shape[1:])
        require(
            0 <= self.train_shift < size, "train_shift", f"at least 0 and less than {size} pixels", self.train_shift
        )

    @property
    def augmentation(self) -> Augmentation | None:
        return Moving(self.train_shift, self.train_flip) if self.train_shift or self.train_flip else None


@dataclass(frozen=True)
class Omniglot(ImageSet):
    """Omniglot's handwritten characters, 28×28, original split (Lake et al., 2015)."""

    name = "omniglot"
    inverted = True


@dataclass(frozen=True)
class CifarFs(ImageSet):
    """CIFAR-FS: the 100 classes of CIFAR-100, 32×32, split 64/16/20 (Bertinetto et al., 2019)."""

    name = "cifar-fs"


@dataclass(frozen=True)
class MiniImageNet(ImageSet):
    """mini-ImageNet, 84×84, split 64/16/20 (Ravi and Larochelle, 2017)."""

    name = "mini-imagenet"


@dataclass(frozen=True)
class TieredImageNet(ImageSet):
    """tiered-ImageNet, 84×84, split by super-category (Ren et al., 2018)."""

    name = "tiered-imagenet"


@dataclass(frozen=True)
class TinyTiered(ImageSet):
    """The classes of tiered-ImageNet that Tiny-ImageNet has too, 64×64, in the former's split."""

    name = "tiny-tiered"


@dataclass(frozen=True)
class FeatureSet(Classification):
    """Features with labels, which may be centred, scaled and, in training, mixed."""

    length: float | None = None
    """Take the mean of the training classes off each example, and scale it to this length; `none`: as it is."""
    train_mixing: float = 0.0
    """Add so many times the difference of two random examples to each one in training: classes that the features were
    learned on lie further apart than new ones do."""
    scale: LengthScale | None = field(default=None, metadata=LEARNED)
    """What examples are centred and scaled by; learned from the training classes, and kept with a run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.length is None or 0 < self.length < math.inf, "length", "a number above 0, or none", self.length)
        require(0 <= self.train_mixing < math.inf, "train_mixing", "a number of at least 0", self.train_mixing)

    @property
    def augmentation(self) -> Augmentation | None:
        return Mixing(self.train_mixing) if self.train_mixing else None

    @property
    def fitted_scale(self) -> Scale:
        if self.length is None:
            return super().fitted_scale
        return self.scale or _length_scale(self.at_temperature_1, self.length, data_root())

    def prepared(self) -> Self:
        forget_pools()
        new = replace(self, scale=None)
        return new if self.length is None else replace(new, scale=_length_scale(new, self.length, data_root()))

    def stored_features(self, split: Split) -> Pool:
        return load(DATA_SETS[self.name], split)

    def pool(self, split: Split) -> Pool:
        stored = self.stored_features(split)
        if self.length is None:
            return stored
        scale = self.fitted_scale
        return stored._replace(examples=torch.cat([scale.inputs(rows) for rows in torch.split(stored.examples, BLOCK)]))


@lru_cache(maxsize=4)
def _length_scale(data: FeatureSet, length: float, root: Path) -> LengthScale:
    """Learned once of the training classes in a data root."""
    mean = data.stored_features("train").examples.mean(0, dtype=torch.float64)
    return LengthScale(tuple(mean.shape), x_mean=tuple(mean.tolist()), x_std=(1.0,) * len(mean), length=length)


@dataclass(frozen=True)
class MiniImageNetLeo(FeatureSet):
    """mini-ImageNet as LEO's 640-dimensional features (Rusu et al., 2019)."""

    name = "mini-imagenet-leo"


@dataclass(frozen=True)
class TieredImageNetLeo(FeatureSet):
    """tiered-ImageNet as LEO's 640-dimensional features (Rusu et al., 2019)."""

    name = "tiered-imagenet-leo"


@dataclass(frozen=True)
class Features(FeatureSet):
    """Any features with labels: a folder as `fewsure features` writes it (docs/data.md has the layout)."""

    folder: str = "features"
    """The folder; a relative one is looked for here, then in the data root."""

    name = "features"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.stored_features("train").examples.shape[1:])

    @property
    def place(self) -> Path:
        """Where the folder is."""
        here = Path(self.folder)
        return here if here.is_dir() else data_root() / here

    def stored_features(self, split: Split) -> Pool:
        return load_features(self.place, split)


@dataclass(frozen=True)
class FeatureHeadOptions(MlpOptions):
    """The fully connected head that solves a task on features (ReLU, no normalisation)."""

    hidden: tuple[int, ...] = (128, 32)
    """Hidden units of each layer."""
    centred: bool = False
    """Take the mean of a set off each of its examples: of a query set its own mean, so that a prediction depends on the
    other queries (transductive)."""

    def build(self, shape: tuple[int, ...], outputs: int) -> Mlp:
        return replace(super().build(shape, outputs), centred=self.centred)
