"""An experiment: which algorithm on which data with which network, and how it is trained. It is what a run records."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from fewsure.algorithms import ALGORITHMS
from fewsure.algorithms.parts.ensemble import Ensemble
from fewsure.core.config import ends, from_record, to_record
from fewsure.core.devices import Precision, fastest_precision
from fewsure.data import DATA, Data
from fewsure.errors import FewsureError, require, require_known
from fewsure.training.optimiser import OptimiserName
from fewsure.training.schedule import Schedule
from fewsure.types import Algorithm, Kind, Model

DEFAULT_PRESET = "recommended"
RANDOM_START = "random"
GROUPS = ("algorithm", "data", "network", "training")
"""The groups of options that make an experiment."""


@dataclass(frozen=True)
class Training:
    """How the meta-parameters are trained: a step of the optimiser on the mean of a meta-batch's losses."""

    updates: int = 10_000
    """Meta-updates; 0 for a method that has nothing to learn."""
    tasks: int = 20
    """T, tasks per meta-update."""
    optimiser: OptimiserName = "adam"
    """`adam`, `adamw` (with decoupled weight decay), `muon` (for matrices between hidden layers, `adamw` for the rest),
    or `sgd` with momentum."""
    lr: float = 1e-3
    """The learning rate (its peak)."""
    weight_decay: float = 0.0
    """The share of each meta-parameter, times the learning rate, that a step takes off; `adam` adds it to the gradient
    instead."""
    momentum: float = 0.9
    """The momentum of `sgd`."""
    schedule: Schedule = "cosine"
    """The learning rate after its warm-up: `cosine` and `linear` fall to 0, `constant` stays. `step` divides by 10
    after a half and three quarters of the updates."""
    lr_warm_up: int = 0
    """Updates over which the learning rate rises linearly."""
    clip_norm: float | None = 10.0
    """Largest norm of a meta-gradient; a larger one is scaled down. `none` for no limit."""
    keep_best: int = 0
    """Updates between two scores on validation tasks. The best checkpoint is kept, and predicts; 0 for the last."""
    patience: int = 0
    """Scores of --keep-best in a row without a better one, after which training stops; 0 for no stop."""
    seed: int = 0
    """Seed of initialisation, training tasks and noise."""
    chunk_size: int | None = None
    """Tasks held in memory at once; `none` for all. Results do not depend on it."""
    members: int = 1
    """M, trainings with seeds of their own, one after the other. Their predictions are averaged in probability."""
    precision: Precision = "auto"
    """On a GPU, `tf32` rounds the inputs of matrix products, which is several times faster; `float32` does not. `bf16`
    rounds SImPa's large matrices further, and large layers of bits, on any device. On a CPU it rounds convolutions,
    which are then twice as fast. `auto` is `bf16` for convolutions on a CPU that has it, else `tf32`; a run records
    which, and is evaluated so."""
    cuda_graph: bool = True
    """On a GPU, record an update, or a block of evaluated tasks, once and replay it (many times faster). Results do not
    depend on it."""

    def __post_init__(self) -> None:
        require(self.updates >= 0, "updates", "at least 0", self.updates)
        require(self.tasks >= 2, "tasks", "at least 2", self.tasks)
        require(0 < self.lr < float("inf"), "lr", "a number above 0", self.lr)
        require(self.weight_decay >= 0, "weight_decay", "at least 0", self.weight_decay)
        require(0 <= self.momentum < 1, "momentum", "a number in [0, 1)", self.momentum)
        require(self.keep_best >= 0, "keep_best", "at least 0", self.keep_best)
        require(self.patience >= 0, "patience", "at least 0", self.patience)
        require(self.lr_warm_up >= 0, "lr_warm_up", "at least 0", self.lr_warm_up)
        require(self.clip_norm is None or self.clip_norm > 0, "clip_norm", "a number above 0", self.clip_norm)
        require(self.members >= 1, "members", "at least 1", self.members)
        require(self.members == 1 or self.updates > 0, "members", "1 for a method without updates", self.members)
        require(self.chunk_size is None or self.chunk_size >= 1, "chunk_size", "at least 1", self.chunk_size)


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run's result."""

    algorithm: Algorithm
    data: Data
    network: Any
    """The options of the base network, of the type that the data's tasks are solved with."""
    training: Training
    preset: str
    """The preset it started from; single options may have been set on top."""
    start: str = RANDOM_START
    """Where the meta-parameters start: drawn from the seed, or the checkpoint of another run."""

    def __post_init__(self) -> None:
        name, algorithm, data = self.algorithm_name, self.algorithm, self.data
        least, most = ends(data.shot)
        if data.kind == "regression" and least < min(algorithm.min_support, most):  # of a range, the method needs more
            data = data.with_shot((min(algorithm.min_support, most), most))
            object.__setattr__(self, "data", data)
        sizes = (
            ("shot", algorithm.min_support, data.support_size),
            ("query", algorithm.min_query, data.query_size),
        )
        for option, least, size in sizes:
            require(size >= least, option, f"at least {least} for {name}", size)
        _require_kind(name, algorithm.kinds, self.data_name, data.kind)
        if self.training.members > 1 and self.start != RANDOM_START:
            raise FewsureError(
                "expected members to start anew, each from a seed of its own, but got --from; leave it or --members out"
            )
        if not algorithm.any_way and data.training_outputs != self.data.outputs:
            raise FewsureError(
                f"{self.algorithm_name} ends in one output per class, so expected `train_way` to equal `way`, but got "
                f"{self.data.training_outputs} and {self.data.outputs}; {takes_any_way()} can train with another way"
            )

    @property
    def method(self) -> Algorithm:
        """The method that predicts: the algorithm, or an ensemble of members of it."""
        members = self.training.members
        return self.algorithm if members == 1 else Ensemble(self.algorithm, members)

    def member(self, number: int) -> "Experiment":
        """The experiment of a member of an ensemble, numbered from 0."""
        return replace(self, training=replace(self.training, members=1, seed=self.training.seed + number))

    @property
    def algorithm_name(self) -> str:
        kind = type(self.algorithm)
        return next((name for name, known in ALGORITHMS.items() if kind is known), kind.__name__)

    @property
    def data_name(self) -> str:
        return next((name for name, kind in DATA.items() if type(self.data) is kind.data), type(self.data).__name__)

    @cached_property
    def model(self) -> Model:
        return self.data.model(self.network)

    @cached_property
    def training_model(self) -> Model:
        """The model of training tasks, which may have another number of classes."""
        return self.data.model(self.network, training=True)

    def with_shot(self, shot: int | None = None) -> "Experiment":
        """The experiment whose tasks all have so many support examples, or so many of each class.

        By default as many as its data test with.
        """
        return replace(self, data=self.data.with_shot(self.data.test_shot if shot is None else shot))

    def at_known_precision(self, known: Precision | None = None) -> "Experiment":
        """The experiment with the precision that `auto` stands for on this machine, or stood for elsewhere."""
        if self.training.precision != "auto":
            return self
        return self.at_precision(known or fastest_precision(convolves=self.model.network.maps is not None))

    def at_precision(self, precision: Precision) -> "Experiment":
        """The experiment whose networks compute with this precision."""
        return replace(self, training=replace(self.training, precision=precision))

    def at_kl_weight(self, kl_weight: float) -> "Experiment":
        """The experiment whose method has posteriors of another weight of the KL."""
        return replace(self, algorithm=self.algorithm.at_kl_weight(kl_weight))

    @property
    def own_density(self) -> bool:
        """Whether the method gives the density of a label itself."""
        return self.algorithm.own_density and self.data.kind == "regression"

    @property
    def transductive(self) -> bool:
        """Whether a prediction depends on the other query points."""
        depends = self.algorithm.transductive or self.model.network.transductive
        return depends or self.data.temperature_exponent != 0.0

    def record(self) -> dict[str, Any]:
        """The experiment as JSON values, which `from_values` reads back."""
        return {
            "algorithm": {"name": self.algorithm_name} | to_record(self.algorithm),
            "data": {"name": self.data_name} | to_record(self.data),
            "network": to_record(self.network),
            "training": to_record(self.training),
            "preset": self.preset,
            "start": self.start,
        }


def from_values(values: Mapping[str, Any], *, source: str, partial: bool = False) -> Experiment:
    """Build an experiment from JSON values; `source` names them in errors."""
    for group in GROUPS:
        if not isinstance(values.get(group, {}), Mapping):
            raise FewsureError(f"{source}: expected `{group}` to be a table of options, but got {values[group]!r}")
    groups = {group: dict(values.get(group, {})) for group in GROUPS}
    algorithm, data = str(groups["algorithm"].pop("name", "")), str(groups["data"].pop("name", ""))
    require_known("algorithm", algorithm, list(ALGORITHMS))
    require_known("data", data, list(DATA))
    kinds = {
        "algorithm": ALGORITHMS[algorithm],
        "data": DATA[data].data,
        "network": DATA[data].network,
        "training": Training,
    }
    built: dict[str, Any] = {
        group: from_record(kind, groups[group], source=f"{source}, {group}", partial=partial)
        for group, kind in kinds.items()
    }
    preset, start = values.get("preset", DEFAULT_PRESET), values.get("start", RANDOM_START)
    return Experiment(**built, preset=str(preset), start=str(start))


def load_preset(name: str, algorithm: str, data: str) -> Experiment:
    """The named preset of an algorithm on a data set. Options that its file does not set keep their defaults.

    A file holds tables that all methods share (`[data]`, `[network]`, `[training]`) and one table per method, whose
    own `[METHOD.algorithm]`, `[METHOD.training]` … come on top. A file that `extends` another preset of the data set,
    or FOLDER/NAME, lies on top of it.
    """
    require_known("algorithm", algorithm, list(ALGORITHMS))
    require_known("data", data, list(DATA))
    _require_kind(algorithm, ALGORITHMS[algorithm].kinds, data, DATA[data].data.kind)
    require_known("preset", name, preset_names(data))
    layers = _preset_layers(name, data)
    methods = [method for layer in layers for method in layer if method in ALGORITHMS]
    if algorithm not in methods:
        raise FewsureError(f"preset `{name}` of {data} has no settings for {algorithm}; it has {', '.join(methods)}")
    values: dict[str, Any] = {group: {} for group in GROUPS}
    for table in (*layers, *(layer.get(algorithm, {}) for layer in layers)):
        for group in GROUPS:
            values[group] |= table.get(group, {})
    values["algorithm"]["name"], values["data"]["name"] = algorithm, data
    return from_values(values | {"preset": name}, source=f"preset {data}/{name}", partial=True)


def has_preset(name: str, algorithm: str, data: str) -> bool:
    """Whether a preset of a data set has settings for a method."""
    names = preset_names(data)
    return name in names and any(algorithm in layer for layer in _preset_layers(name, data))


def default_data(data: str) -> Any:
    """The options of a data set in its recommended preset, whatever the method."""
    values: dict[str, Any] = {}
    for layer in _preset_layers(DEFAULT_PRESET, data):
        values |= layer.get("data", {})
    return from_record(DATA[data].data, values, source=f"preset {data}/{DEFAULT_PRESET}", partial=True)


def preset_names(data: str) -> list[str]:
    """The presets of a data set.

    >>> preset_names("sine-line")
    ['bounds', 'paper', 'quickstart', 'recommended']
    """
    return sorted(_preset_files(data))


def takes_any_way() -> str:
    """The methods whose number of classes may differ between training and testing, in words."""
    return ", ".join(name for name, kind in ALGORITHMS.items() if kind.any_way)


def _require_kind(algorithm: str, kinds: frozenset[Kind], data: str, kind: Kind) -> None:
    if kind not in kinds:
        raise FewsureError(
            f"{algorithm} solves {' and '.join(sorted(kinds))} alone, but {data} is {kind}; choose another method, or "
            "another --data"
        )


def _preset_layers(name: str, data: str) -> list[dict[str, Any]]:
    """The tables of a preset's file, behind those of the file it extends."""
    file = _presets() / f"{name}.toml" if "/" in name else _preset_files(data)[name]
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    return [*(_preset_layers(table["extends"], data) if "extends" in table else []), table]


def _preset_files(data: str) -> dict[str, Traversable]:
    folders = (_presets() / folder for folder in DATA[data].presets)
    return {file.name.removesuffix(".toml"): file for folder in folders for file in folder.iterdir()}


def _presets() -> Traversable:
    return resources.files("fewsure.training") / "presets"
