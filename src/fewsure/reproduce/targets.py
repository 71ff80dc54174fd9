"""The experiments of the paper: which methods on which tasks.

Each method gets the same number of updates and the same number of tuning trials, which differ in the options that a
file of `trials/` lists.
"""

import dataclasses
import tomllib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from fewsure.core.config import from_record, to_record
from fewsure.training.experiment import GROUPS, Experiment, load_preset


@dataclasses.dataclass(frozen=True)
class Target:
    """An experiment: all methods that solve a kind of task."""

    data: str
    listed: str
    """The file of `trials/` that lists its methods."""
    preset: str = "recommended"
    folder: str | None = None
    """For `--data features`: where the features are."""
    joins_validation: bool = False
    """Whether the validation classes join the training classes once the options are chosen, as in the paper's split. A
    temperature is then that of the best trial, which should have been trained as long (`trial_share`)."""
    trial_share: float = 0.2
    """Updates of a tuning trial, as a share of the full training's."""
    test_seed: int = 1
    """Of the final evaluation's tasks. A new round of results has its own: the last have been looked at."""

    @property
    def entries(self) -> list[str]:
        """The methods."""
        return list(read_trials(self.listed))

    def trials(self, method: str) -> list[Experiment]:
        """The settings among which a method is tuned: its preset with the options of each trial on top."""
        listed = read_trials(self.listed)[method]
        return [changed(self._base(method), options, f"trial {number}") for number, options in enumerate(listed)]

    def _base(self, method: str) -> Experiment:
        base = load_preset(self.preset, method, self.data)
        if self.folder is None:
            return base
        return dataclasses.replace(base, data=dataclasses.replace(base.data, folder=self.folder))  # type: ignore[type-var]


def changed(base: Experiment, options: dict[str, dict[str, Any]], name: str | None) -> Experiment:
    """The experiment with other options, and their name behind that of its preset."""
    groups: dict[str, Any] = {}
    for group in GROUPS:
        before = getattr(base, group)
        groups[group] = from_record(type(before), to_record(before) | options.get(group, {}), source=f"{name}, {group}")
    return Experiment(**groups, preset=base.preset if name is None else f"{base.preset}, {name}")


def read_trials(name: str) -> dict[str, Any]:
    """The options of each entry in a file of `trials/`."""
    return tomllib.loads((resources.files("fewsure.reproduce") / "trials" / name).read_text(encoding="utf-8"))


def _shots(data: str) -> tuple[Target, Target]:
    """1-shot and 5-shot on photographs."""
    presets = ("recommended", "recommended-5-shot")
    one, five = (
        Target(data, "photographs.toml", preset, test_seed=seed) for preset, seed in zip(presets, (5, 4), strict=True)
    )
    return one, five


def _feature_shots(data: str, folder: str | None = None, test_seeds: Sequence[int] = (1, 3)) -> tuple[Target, Target]:
    """1-shot and 5-shot on features, where trainings are short enough to be tried in full."""
    one, five = (
        Target(data, f"features{shot}.toml", f"recommended{shot}", folder, trial_share=1.0, test_seed=seed)
        for shot, seed in zip(("", "-5-shot"), test_seeds, strict=True)
    )
    return one, five


TARGETS: dict[str, Target] = {
    "regression": Target("sine-line", "sine-line.toml"),
    "omniglot": Target("omniglot", "omniglot.toml", joins_validation=True, trial_share=1.0, test_seed=7),
}
"""Name on the command line → the experiment."""
SEVERAL: dict[str, tuple[str, ...]] = {}
"""Name on the command line → the names of the experiments that it stands for."""
for _name, _both in {
    "cifar-fs": _shots("cifar-fs"),
    "mini-imagenet": _shots("mini-imagenet"),
    "tiered-imagenet": _feature_shots("tiered-imagenet-leo"),
    "mini-imagenet-features": _feature_shots("mini-imagenet-leo"),
    "features-cifar-fs": _feature_shots("features", "features/cifar-fs", test_seeds=(5, 5)),
}.items():
    SEVERAL[_name] = (f"{_name}-1shot", f"{_name}-5shot")
    TARGETS |= dict(zip(SEVERAL[_name], _both, strict=True))
