"""An adapted task as a file for other programs: ONNX, or a program of `torch.export`.

The file maps examples as the user has them (a table's columns in their own units, the bytes of images) to

    regression:       mean (N,), std (N,) and samples (S, N), in the target's unit
    classification:   probabilities (N, C) and samples (S, N, C)

for any number N of examples. It holds the S networks that were sampled, and nothing that they were made from. A
description (`fewsure`, JSON) has the shape and columns of x, the classes in the order of their probabilities, and the
noise.
"""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from fewsure.core.files import write_atomically
from fewsure.errors import FewsureError
from fewsure.evaluation.temperature import temperature_of
from fewsure.learner.adapted import Adapted
from fewsure.learner.prediction import ClassPrediction, ValuePrediction
from fewsure.posteriors import outputs
from fewsure.types import Modulation, Network, Params
from fewsure.version import __version__

PACKAGES = ("onnx", "onnxscript")
"""Packages that torch needs to write ONNX."""
KEY = "fewsure"
"""The name of the description in either file."""
EXAMPLES = 2
"""N of the example that is traced; with one, torch would take N = 1 for granted."""


class Exported(NamedTuple):
    """A task's program, and its description."""

    program: ExportedProgram
    description: dict[str, Any]


def export(adapted: Adapted) -> Exported:
    """The program of an adapted task, in single precision; its outputs are those of `adapted.predict`, rounded."""
    if adapted.transductive:
        raise FewsureError(
            "the predictions of this run depend on the other queries, so that no program maps an example to its "
            "prediction; train with --norm instance, or --no-centred on features, and with --temperature-exponent 0"
        )
    adapted.predict(_example(adapted))  # refuses one that diverged
    task = _plain(adapted)
    module = AdaptedModule(task).eval()
    with torch.no_grad(), _quiet():
        program = torch.export.export(module, (_example(task),), dynamic_shapes=({0: Dim("N")},), strict=False)
    return Exported(program, _description(task, module))


def write_torch(exported: Exported, path: Path) -> None:
    """Write a `.pt2` file: `torch.export.load(path).module()(x)` gives the outputs."""
    content = io.BytesIO()
    with _quiet():
        torch.export.save(exported.program, content, extra_files={f"{KEY}.json": json.dumps(exported.description)})
    write_atomically(path, content.getvalue())


def write_onnx(exported: Exported, path: Path) -> None:
    """Write an ONNX file with the input `x` and the outputs by their names."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise FewsureError(
            f"expected the packages {' and '.join(PACKAGES)} to write ONNX, but {missing[0]} is not installed; run "
            "`pip install fewsure[export]`, or `pip install onnx onnxscript`"
        )
    with torch.no_grad(), _quiet():
        written = torch.onnx.export(
            exported.program,
            dynamo=True,
            verbose=False,
            input_names=["x"],
            output_names=list(exported.description["outputs"]),
        )
    assert written is not None
    model = written.model_proto
    for value in (*model.graph.input, *model.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:  # there is one such size, which torch gives a name of its own
                size.dim_param = "N"
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(exported.description)
    write_atomically(path, model.SerializeToString())


class AdaptedModule(torch.nn.Module):
    """An adapted task as a module: x (N, *shape), in the user's units → a tuple of outputs."""

    def __init__(self, adapted: Adapted) -> None:
        super().__init__()
        self._task = adapted
        self._scale = adapted.predictor.scale  # what it is may be read from files, which cannot be traced
        self._networks = sampled_networks(adapted)

    @property
    def samples(self) -> int:
        """S."""
        return 1 if self._networks is None else len(next(iter(self._networks.values())))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        predictor, labels = self._task.predictor, self._task.labels
        inputs = self._scale.inputs(x)
        found = self._outputs(inputs)
        if labels is None:
            task, own = self._task, predictor.experiment.own_density
            density = predictor.density(task.posterior, task.model, inputs, task.noise) if own else None
            noise_std = task.state.experiment.data.noise_std or 0.0
            values = ValuePrediction(*predictor.in_users_unit(found.squeeze(-1), density, noise_std))
            return values.mean, values.std, values.samples
        classes = ClassPrediction(found, temperature_of(self._task.state.experiment), labels)
        return classes.probabilities.to(found.dtype), classes.samples

    def _outputs(self, x: Tensor) -> Tensor:
        task = self._task
        if self._networks is None:
            return task.predictor.outputs(task.posterior, task.model, x, task.noise)
        return outputs(task.model.network, self._networks, x)


def sampled_networks(adapted: Adapted) -> Params | None:
    """The weights, stacked, of the networks that a task is predicted with; none where it is no network's output.

    Methods have one interface, `predict`. Whatever a method does to arrive at networks, it calls each of them at x.
    """
    predictor, model = adapted.predictor, adapted.model
    if predictor.experiment.own_density:
        return None
    x = predictor.scale.inputs(_example(adapted))
    network: Any = _Recorder(model.network, x)
    predictor.outputs(adapted.posterior, model._replace(network=network), x, adapted.noise)
    if not network.weights:
        return None
    return {name: torch.stack([weights[name] for weights in network.weights]) for name in network.weights[0]}


class _Recorder:
    """A network that keeps the weights with which it is called at x."""

    maps = (1, 1, 1)
    """Such networks are called one after the other on a CPU, never all at once."""

    def __init__(self, network: Network, x: Tensor) -> None:
        self._network, self._x = network, x
        self.weights: list[Params] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def given(self, support: Tensor) -> "_Recorder":
        self._network = self._network.given(support)
        return self

    def __call__(self, params: Params, x: Tensor, modulation: Modulation | None = None) -> Tensor:
        if x is self._x:
            self.weights.append(dict(params))
        return self._network(params, x, modulation)


def _example(adapted: Adapted) -> Tensor:
    scale = adapted.predictor.scale
    kind = torch.uint8 if len(scale.shape) == 3 else torch.float64 if scale.in_double else torch.float32
    return torch.zeros(EXAMPLES, *scale.shape, dtype=kind)


def _description(adapted: Adapted, module: AdaptedModule) -> dict[str, Any]:
    scale, labels = adapted.predictor.scale, adapted.labels
    names = ["mean", "std", "samples"] if labels is None else ["probabilities", "samples"]
    kind = str(_example(adapted).dtype).removeprefix("torch.")
    described: dict[str, Any] = {
        "version": __version__,
        "checkpoint": adapted.predictor.digest,
        "method": adapted.predictor.experiment.algorithm_name,
        "input": {"name": "x", "type": kind, "shape": ["N", *scale.shape], "columns": list(scale.columns)},
        "outputs": names,
        "samples": module.samples,
    }
    if labels is None:
        own = adapted.predictor.experiment.own_density
        return described | ({} if own else {"noise_std": adapted.state.experiment.data.noise_std or 0.0})
    return described | {"classes": [c if isinstance(c, (str, int, float)) else str(c) for c in labels.classes]}


def _plain(adapted: Adapted) -> Adapted:
    """The task on a CPU, without rounding to bf16."""
    posterior, noise = pytree.tree_map(lambda value: value.cpu(), (adapted.posterior, adapted.noise))
    predictor = replace(adapted.predictor, experiment=adapted.predictor.experiment.at_precision("float32"))
    return replace(adapted, predictor=predictor, posterior=posterior, noise=noise)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks about its own insides and about packages that have no part in this."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
