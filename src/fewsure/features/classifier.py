"""The plain classifier that a feature network is trained as: one linear layer on its features, all training classes."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fewsure.core import streams
from fewsure.data.augmentation import crops, jittered, unit
from fewsure.data.pools import Pool
from fewsure.errors import require, require_known
from fewsure.features.backbone import Backbone
from fewsure.features.convolutional import ConvolutionalNetwork
from fewsure.features.residual import ResNet12, WideResNet, initialise
from fewsure.training.schedule import learning_rate

MOMENTUM = 0.9
EVALUATION_BATCH = 500
"""Images that are passed through a network at once where no gradient is needed."""
NETWORKS: dict[str, type[Backbone]] = {
    "resnet12": ResNet12,
    "wrn-28-10": WideResNet,
    "conv4": ConvolutionalNetwork,
}
"""Name on the command line → network."""


@dataclass(frozen=True)
class Recipe:
    """Which network, and how it is trained: SGD with Nesterov momentum, the learning rate along a cosine to 0."""

    network: str = "resnet12"
    """`resnet12` or `wrn-28-10`, with 640 features each; `conv4`, the base network whose body `fewsure train --from`
    starts at. Other defaults depend on it."""
    width: float = 1.0
    """Multiplies the filters of each layer, and so the number of features."""
    epochs: int = 90
    """Passes over the images of the training classes."""
    batch: int = 128
    """Images of an update."""
    lr: float = 0.1
    """Learning rate at the start."""
    weight_decay: float = 5e-4
    """Weight decay of all weights."""
    padding: int | None = None
    """Pixels by which a crop is shifted at most; `none` for an eighth of the image's side."""
    flip: bool = True
    """Mirror half of the images left to right."""
    jitter: float = 0.0
    """Brightness, contrast and saturation are multiplied by random factors within 1 ± this."""
    label_smoothing: float = 0.0
    """Share of the target that all classes have in common, so that the classifier is less sure of its images."""
    keep_best: int = 0
    """Epochs between two looks at validation classes: the weights with the best mean accuracy of nearest class means
    (1 and 5 shots) are kept. 0 keeps the last ones."""
    held_out: float = 0.05
    """Share of the images of each training class that shows the classifier's own accuracy and is not trained on."""
    seed: int = 0
    """Chooses the initial weights, the held-out images, the order of the others and the crops."""

    def __post_init__(self) -> None:
        require_known("network", self.network, list(NETWORKS))
        require(0 < self.width < math.inf, "width", "a number above 0", self.width)
        require(self.epochs >= 1, "epochs", "at least 1", self.epochs)
        require(self.batch >= 2, "batch", "at least 2 images", self.batch)
        require(0 < self.lr < math.inf, "lr", "a number above 0", self.lr)
        require(0 <= self.weight_decay < math.inf, "weight_decay", "a number of at least 0", self.weight_decay)
        require(self.padding is None or self.padding >= 0, "padding", "at least 0 pixels", self.padding)
        require(0 <= self.jitter <= 1, "jitter", "a share in [0, 1]", self.jitter)
        require(0 <= self.label_smoothing < 1, "label_smoothing", "a share in [0, 1)", self.label_smoothing)
        require(self.keep_best >= 0, "keep_best", "at least 0 epochs", self.keep_best)
        require(0 <= self.held_out < 1, "held_out", "a share in [0, 1)", self.held_out)


RECIPES = {
    "conv4": Recipe("conv4", epochs=30, lr=0.05, jitter=0.2, label_smoothing=0.1, keep_best=5),
}
"""The recommended recipe of a network, where it is not the default one."""


def recipe_of(network: str) -> Recipe:
    """The recommended recipe of a network."""
    return RECIPES.get(network) or Recipe(network)


def build_network(recipe: Recipe, shape: tuple[int, int, int]) -> Backbone:
    """The recipe's network for images (C, H, W), without memory for its weights yet."""
    with torch.device("meta"):
        return NETWORKS[recipe.network].of_images(shape, recipe.width)


class Means(NamedTuple):
    """Means over the updates of an epoch so far."""

    loss: float
    accuracy: float
    """On the images as they were trained on: shifted, mirrored, coloured."""


class Training:
    """A classifier on its way: its weights, the optimiser's state, and the images of the training classes.

    Update number u follows from (seed, u) and the state that `tensors` returns. A training that is
    interrupted and continued therefore ends in the same numbers.
    """

    def __init__(self, pool: Pool, recipe: Recipe, device: torch.device) -> None:
        """`pool` holds the training classes; all its images are kept on the device."""
        channels, height, width = pool.examples.shape[1:]
        side, smallest = min(height, width), NETWORKS[recipe.network].SMALLEST
        require(side >= smallest, "data", f"images of {smallest} pixels or more on each side", f"{height}×{width}")
        self._padding = side // 8 if recipe.padding is None else recipe.padding
        require(self._padding < side, "padding", f"less than the image's {side} pixels", self._padding)
        require(len(pool.classes) >= 2, "data", "at least 2 training classes", len(pool.classes))
        self.recipe, self._device = recipe, device
        rows, self._held_out = (part.to(device) for part in hold_out(pool, recipe.held_out, recipe.seed))
        self._rows = rows
        self.images_per_update = min(recipe.batch, len(rows))
        self.updates_per_epoch = len(rows) // self.images_per_update
        self.updates = recipe.epochs * self.updates_per_epoch
        self.update = 0
        """Updates made."""
        self.held_out_images = len(self._held_out)
        self._images = pool.examples.to(device)
        self._labels = torch.repeat_interleave(pool.counts).to(device)

        self.network = build_network(recipe, (channels, height, width))
        with torch.device("meta"):
            head = nn.Linear(self.network.outputs, len(pool.classes))
        classifier = nn.Sequential(self.network, head).to_empty(device="cpu")
        initialise(classifier, streams.generator(recipe.seed, "init"))
        if self.network.STANDARDISES:
            self.network.mean, self.network.std = channel_statistics(self._images, rows)
        self.classifier = classifier.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        """Images in [0, 1] (N, C, H, W) → logits (N, K) of the training classes."""
        self._optimiser = torch.optim.SGD(
            self.classifier.parameters(), recipe.lr, MOMENTUM, weight_decay=recipe.weight_decay, nesterov=True
        )
        self._generator = torch.Generator(device)
        self._order = rows
        self._ordered_epoch: int | None = None
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._best: dict[str, Tensor] = {}
        self.best_score = -math.inf
        """The best score that `keep_if_best` was given."""

    def step(self) -> None:
        """One update. It does not wait for the device."""
        recipe, (epoch, number) = self.recipe, divmod(self.update, self.updates_per_epoch)
        if number == 0:
            self._sums.zero_()
        if self._ordered_epoch != epoch:
            generator = streams.generator(recipe.seed, "order", epoch, device=self._device)
            shuffled = torch.randperm(len(self._rows), generator=generator, device=self._device)
            self._order, self._ordered_epoch = self._rows[shuffled], epoch
        first = number * self.images_per_update
        rows = self._order[first : first + self.images_per_update]
        self._generator.manual_seed(streams.number(recipe.seed, "augment", self.update))
        images = unit(crops(self._images, rows, padding=self._padding, flip=recipe.flip, generator=self._generator))
        if recipe.jitter:
            images = jittered(images, recipe.jitter, self._generator)
        labels = self._labels[rows]

        self.classifier.train()
        self._optimiser.param_groups[0]["lr"] = learning_rate(
            self.update, self.updates, peak=recipe.lr, schedule="cosine"
        )
        self._optimiser.zero_grad()
        with arithmetic(self._device, exact=False):
            with autocast(self._device):
                logits = self.classifier(images).float()
                loss = functional.cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing)
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        right = (logits.detach().argmax(1) == labels).double().mean()
        self._sums += torch.stack([loss.detach().double(), right])
        self.update += 1

    def means(self) -> Means:
        """Means over the epoch of the last update. Waits for the device."""
        made = (self.update - 1) % self.updates_per_epoch + 1
        return Means(*(self._sums / made).tolist())

    def held_out_accuracy(self) -> float | None:
        """Share of the held-out images of the training classes that are classified right, if there are any."""
        if not self.held_out_images:
            return None
        self.classifier.eval()
        right = torch.zeros((), dtype=torch.long, device=self._device)
        with torch.inference_mode(), arithmetic(self._device, exact=False), autocast(self._device):
            for rows in torch.split(self._held_out, EVALUATION_BATCH):
                right += (self.classifier(unit(self._images[rows])).argmax(1) == self._labels[rows]).sum()
        return int(right) / self.held_out_images

    def keep_if_best(self, score: float) -> None:
        """Keep the network as it is now, if no score before was as high."""
        if score > self.best_score:
            self.best_score = score
            self._best = {name: value.clone() for name, value in self.network.state_dict().items()}

    def take_best(self) -> None:
        """Make the network what it was when its score was highest; nothing if none was kept."""
        if self._best:
            self.network.load_state_dict(self._best)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that `load` needs to go on from here."""
        tensors = {"update": torch.tensor(self.update), "sums": self._sums}
        tensors |= {"best_score": torch.tensor(self.best_score, dtype=torch.float64)}
        tensors |= {f"best/{name}": value for name, value in self._best.items()}
        tensors |= {f"classifier/{name}": value for name, value in self.classifier.state_dict().items()}
        for name, weight in self.classifier.named_parameters():
            if weight in self._optimiser.state:
                tensors[f"momentum/{name}"] = self._optimiser.state[weight]["momentum_buffer"]
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on where another training's `tensors` stood; KeyError or RuntimeError if that was of another network."""
        state = self.classifier.state_dict()
        self.classifier.load_state_dict({name: tensors[f"classifier/{name}"] for name in state})
        self.update = int(tensors["update"])
        self._sums.copy_(tensors["sums"])
        self.best_score = float(tensors["best_score"])
        if self.best_score > -math.inf:
            names = self.network.state_dict()
            self._best = {name: tensors[f"best/{name}"].to(self._device) for name in names}
        for name, weight in self.classifier.named_parameters() if self.update else ():
            momentum = torch.empty_like(weight).copy_(tensors[f"momentum/{name}"])
            self._optimiser.state[weight]["momentum_buffer"] = momentum.detach()


def hold_out(pool: Pool, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of a pool to train on, and rows held out: a random `share` of each class, which keeps at least one image.

    >>> pool = Pool(torch.zeros(8, 1, 2, 2), torch.tensor([0, 2, 8]), ("a", "b"), ("", ""), "")
    >>> [sorted(rows.tolist()) for rows in hold_out(pool, 0.99, seed=0)]
    [[0, 2], [1, 3, 4, 5, 6, 7]]
    """
    labels = torch.repeat_interleave(pool.counts)
    keys = torch.rand(len(labels), generator=streams.generator(seed, "held-out"), dtype=torch.float64)
    shuffled = (labels + keys).argsort()  # each class stays where it is, in random order
    held = (share * pool.counts).round().long().minimum(pool.counts - 1)
    position = torch.arange(len(labels)) - pool.starts[labels]
    chosen = position < held[labels]
    return shuffled[~chosen], shuffled[chosen]


def channel_statistics(images: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (C,) of each channel of the uint8 images in these rows, in units of 255.

    They come from exact counts of the 256 levels, so they do not depend on the order or on the device.

    >>> mean, std = channel_statistics(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1), torch.arange(2))
    >>> mean.tolist(), std.tolist()
    ([0.5], [0.5])
    """
    counts = torch.zeros(images.shape[1], 256, dtype=torch.long)
    for part in torch.split(rows, EVALUATION_BATCH):
        channels = images[part].transpose(0, 1).flatten(1)
        counts += torch.stack([torch.bincount(channel, minlength=256) for channel in channels]).cpu()
    shares = counts.double() / counts.sum(1, keepdim=True)
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ levels
    variance = (shares * (levels - mean[:, None]).square()).sum(1)
    return mean.float(), variance.sqrt().clamp(min=1 / 255).float()  # a constant channel is not blown up


@contextmanager
def arithmetic(device: torch.device, *, exact: bool) -> Iterator[None]:
    """On a GPU, convolutions that give the same bits each time; unless `exact`, of inputs rounded to TF32."""
    if device.type != "cuda":
        yield
        return
    flags: Any = torch.backends.cudnn.flags
    with flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=not exact):
        yield


def autocast(device: torch.device) -> torch.autocast:
    """Convolutions and products in bfloat16 where the device has it; float32 elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision(device) == "bfloat16")


def precision(device: torch.device) -> str:
    """The arithmetic of a training on a device: `bfloat16` or `float32`."""
    if device.type == "cuda":
        fast = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        fast = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return "bfloat16" if fast else "float32"
