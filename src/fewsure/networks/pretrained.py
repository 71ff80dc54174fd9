"""Networks that other libraries have trained, as frozen extractors of features: each with its own preprocessing.

| name | network, preprocessing |
|---|---|
| `timm:NAME` | a model of timm without its classifier, with the model's own data configuration |
| `torchvision:NAME` | a model of torchvision without its last layer, with the transforms of its default weights |
| `open-clip:NAME` | the image tower of a model of OpenCLIP, with its own transform; `NAME/TAG` names the weights |
| `onnx:FILE` | the first output of a file; images of its input's size, standardised as ImageNet's |
| `python:MODULE:FUNCTION` | what a function of yours returns: a network, or a network and its preprocessing |

The preprocessing takes an image of Pillow and returns a tensor (3, H, W). The network takes such tensors (N, 3, H, W)
and returns features (N, D), or maps (N, D, h, w), whose means are the features. Weights come from the library's own
download, or from a file.
"""

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from fewsure.core.devices import fastest_precision
from fewsure.errors import FewsureError

FORMS = "timm:NAME, torchvision:NAME, open-clip:NAME, onnx:FILE or python:MODULE:FUNCTION"
TRUST = "FEWSURE_TRUST"
"""The environment variable that names `python:` backbones which runs may import, separated by commas."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGE_COPIES = 64
"""How many times the bytes of an image a network may need for it."""
FREE_SHARE = 1 / 8
"""The share of free memory for one batch."""
LARGEST_BATCH = 256
_trusted: set[str] = set()

Preprocess = Callable[[Image.Image], Tensor]


@dataclass(frozen=True)
class Standardise:
    """Scale the shorter side, cut out the middle, and standardise the channels of numbers in [0, 1]."""

    size: int = 224
    """Pixels of each side."""
    crop: float = 0.875
    """The share of the shorter side that is kept."""
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __call__(self, image: Image.Image) -> Tensor:
        """A tensor (3, size, size)."""
        scale = round(self.size / self.crop) / min(image.size)
        wide, high = (max(self.size, round(side * scale)) for side in image.size)
        left, top = (wide - self.size) // 2, (high - self.size) // 2
        resized = image.resize((wide, high), Image.Resampling.BICUBIC)
        middle = resized.crop((left, top, left + self.size, top + self.size))
        pixels = torch.from_numpy(np.array(middle, dtype=np.float32) / 255).permute(2, 0, 1)
        return (pixels - torch.tensor(self.mean).view(3, 1, 1)) / torch.tensor(self.std).view(3, 1, 1)


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A frozen network with its preprocessing."""

    name: str
    network: Callable[[Tensor], Tensor]
    preprocess: Preprocess
    digest: str = field(repr=False)
    """SHA-256 of the weights and the preprocessing: two with the same one give the same features."""
    rounds: bool = False
    """Whether it computes in bf16, which a CPU that has it does in half the time."""

    def __call__(self, images: Sequence[Image.Image], device: torch.device | str = "cpu") -> Tensor:
        """Features (N, D) of RGB images, on the CPU; those of one do not depend on the others."""
        inputs = torch.stack([self.preprocess(image) for image in images])
        place = torch.device(device)
        rounded = torch.autocast(place.type, torch.bfloat16) if self.rounds else nullcontext()
        if isinstance(self.network, nn.Module):
            self.network.to(place)
        with torch.inference_mode(), rounded:
            found = torch.cat([self.network(part.to(place)).float().cpu() for part in self._batches(inputs, place)])
        if found.ndim == 4:
            found = found.mean((2, 3))
        if found.ndim != 2:
            raise FewsureError(
                f"expected {self.name} to return features (N, D) or maps (N, D, h, w), but got {tuple(found.shape)}"
            )
        return found

    def batch_size(self, image: Tensor, device: torch.device) -> int:
        """Images that are passed through the network at once."""
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_memory()
        return int(max(1, min(LARGEST_BATCH, free * FREE_SHARE // (image.nbytes * IMAGE_COPIES))))

    def _batches(self, inputs: Tensor, device: torch.device) -> Iterator[Tensor]:
        return iter(torch.split(inputs, self.batch_size(inputs[0], device)))


def trust(name: str) -> None:
    """Allow this process to import a `python:` backbone, since its user has named it."""
    _trusted.add(name)


def load_pretrained(name: str, weights: str | None = None, *, exact: bool = False) -> Pretrained:
    """The backbone of that name, with weights from a file where one is named.

    A `python:` backbone that a run names is imported if `trust` or the environment says so. An `exact` one computes in
    single precision on every machine.
    """
    kind, _, rest = name.partition(":")
    if kind not in LOADERS or not rest:
        raise FewsureError(f"expected --backbone to be {FORMS}, but got {name!r}")
    if weights is not None and not Path(weights).is_file():
        raise FewsureError(f"expected --weights to be a file, but {weights} is not there")
    network, preprocess = LOADERS[kind](rest, weights)
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(preprocess)).encode())  # without addresses
    rounds = not exact and isinstance(network, nn.Module) and fastest_precision(convolves=True) == "bf16"
    if isinstance(network, nn.Module):
        network.eval().requires_grad_(False)
        for part, value in sorted(network.state_dict().items()):
            digest.update(part.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    else:
        digest.update(Path(rest).read_bytes() if kind == "onnx" else name.encode())
    return Pretrained(name, network, preprocess, hashlib.sha256(digest.digest() + bytes([rounds])).hexdigest(), rounds)


def _timm(name: str, weights: str | None) -> tuple[nn.Module, Preprocess]:
    timm = _library("timm", "timm")
    if not timm.is_model(name):
        raise FewsureError(f"expected a model of timm, but it has no {name!r}; timm.list_models() names them")
    model = timm.create_model(name, pretrained=weights is None, checkpoint_path=weights or "")
    model.reset_classifier(0)
    options = timm.data.resolve_model_data_config(model)
    return model, timm.data.create_transform(**options, is_training=False)


def _torchvision(name: str, weights: str | None) -> tuple[nn.Module, Preprocess]:
    models = _library("torchvision.models", "torchvision")
    if name not in models.list_models():
        raise FewsureError(f"expected a model of torchvision, but it has no {name!r}")
    default = models.get_model_weights(name).DEFAULT
    model = models.get_model(name, weights=default if weights is None else None)
    if weights is not None:
        model.load_state_dict(torch.load(weights, weights_only=True))
    return without_last_layer(model), default.transforms()


def _open_clip(name: str, weights: str | None) -> tuple[nn.Module, Preprocess]:
    library = _library("open_clip", "open-clip")
    name, _, tag = name.partition("/")
    known = library.list_pretrained_tags_by_model(name)
    if not known:
        raise FewsureError(f"expected a model of OpenCLIP, but it has no weights of {name!r}")
    model, _, preprocess = library.create_model_and_transforms(name, pretrained=weights or tag or known[0])
    return model.visual, preprocess


def _onnx(file: str, weights: str | None) -> tuple[Callable[[Tensor], Tensor], Preprocess]:
    if weights is not None:
        raise FewsureError("expected no --weights with an onnx backbone, whose file holds them; leave them out")
    if not Path(file).is_file():
        raise FewsureError(f"expected the backbone to be an ONNX file, but {file} is not there")
    runtime = _library("onnxruntime", "onnx")
    try:
        session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has no one exception for a damaged file
        raise FewsureError(f"{file} cannot be read as ONNX ({error})") from error
    (given, *others), shape = session.get_inputs(), session.get_inputs()[0].shape
    if others or len(shape) != 4 or shape[1] != 3:
        raise FewsureError(f"expected {file} to take images (N, 3, H, W) alone, but it takes {shape}")
    size = shape[2] if isinstance(shape[2], int) else Standardise.size

    def network(images: Tensor) -> Tensor:
        parts = torch.split(images, shape[0]) if isinstance(shape[0], int) else [images]
        found = [session.run(None, {given.name: part.cpu().numpy()})[0] for part in parts]
        return torch.from_numpy(np.concatenate(found))

    return network, Standardise(size=size)


def _python(name: str, weights: str | None) -> tuple[Callable[[Tensor], Tensor], Preprocess]:
    module_name, _, function_name = name.partition(":")
    spec = f"python:{name}"
    if spec not in _trusted and spec not in os.environ.get(TRUST, "").split(","):
        raise FewsureError(
            f"this run asks to import {name}, and a run never executes code by itself; if you trust it, name the "
            f"backbone in Python, or set {TRUST}={spec}"
        )
    sys.path.insert(0, os.getcwd())  # a module beside the user, as `python -m` finds it
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise FewsureError(
            f"expected {spec} to be python:MODULE:FUNCTION, but it cannot be imported ({error})"
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    found = function() if weights is None else function(weights)
    network, preprocess = found if isinstance(found, tuple) else (found, Standardise())
    if not callable(network) or not callable(preprocess):
        raise FewsureError(f"expected {spec} to return a network, or a network and its preprocessing")
    return network, preprocess


LOADERS: dict[str, Callable[[str, str | None], tuple[Callable[[Tensor], Tensor], Preprocess]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "open-clip": _open_clip,
    "onnx": _onnx,
    "python": _python,
}
"""The first part of a name → how such a network is loaded, from the rest of the name and a file with weights."""


def without_last_layer(network: nn.Module) -> nn.Module:
    """The network with its last linear layer taken out: its output is that layer's input."""
    linear = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise FewsureError(
            "expected a network that ends in a linear layer, but it has none; use python:MODULE:FUNCTION"
        )
    parent, _, name = linear[-1].rpartition(".")
    setattr(network.get_submodule(parent), name, nn.Identity())
    return network


def _library(module: str, extra: str) -> Any:
    """A library that is installed and works, or one line that says which extra has it."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # torchvision raises a RuntimeError beside a torch that it was not built for
        raise FewsureError(
            f"{extra} backbones need {module.partition('.')[0]}, which cannot be imported ({error}); run `pip install "
            '"fewsure[vision]"`, or take an onnx: or python: backbone'
        ) from error


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
