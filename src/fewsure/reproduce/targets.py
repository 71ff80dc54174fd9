"""The experiments of the paper: which methods on which tasks.

Each method gets the same number of updates and the same number of tuning trials. A file of `trials/` lists the options
in which trials differ.
"""

import dataclasses
import tomllib
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
    """The seed of the final evaluation's tasks. A new round of results takes a new one, since the last tasks were
    seen."""

    @property
    def methods(self) -> list[str]:
        """The methods that solve its kind of task."""
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
    """The options of each method's trials in a file of `trials/`."""
    return tomllib.loads((resources.files("fewsure.reproduce") / "trials" / name).read_text(encoding="utf-8"))


def _shots(data: str, listed: str, seeds: tuple[int, int], **options: Any) -> dict[str, Target]:
    """1-shot and 5-shot, with the seeds of their test tasks."""
    presets = {"1shot": "recommended", "5shot": "recommended-5-shot"}
    return {
        shot: Target(data, listed.format(shot=shot), preset, test_seed=seed, **options)
        for (shot, preset), seed in zip(presets.items(), seeds, strict=True)
    }


_LEO: dict[str, Any] = {"listed": "features-{shot}.toml", "seeds": (1, 3), "trial_share": 1.0}
_PAIRS = {
    "cifar-fs": _shots("cifar-fs", "photographs.toml", (5, 4)),
    "mini-imagenet": _shots("mini-imagenet", "photographs.toml", (5, 4)),
    "tiered-imagenet": _shots("tiered-imagenet-leo", **_LEO),
    "mini-imagenet-features": _shots("mini-imagenet-leo", **_LEO),
    "features-cifar-fs": _shots("features", **_LEO | {"seeds": (5, 5)}, folder="features/cifar-fs"),
}
SEVERAL = {name: tuple(f"{name}-{shot}" for shot in pair) for name, pair in _PAIRS.items()}
"""Name on the command line → the names of the experiments that it stands for."""
TARGETS = {
    "regression": Target("sine-line", "sine-line.toml"),
    "omniglot": Target("omniglot", "omniglot.toml", joins_validation=True, trial_share=1.0, test_seed=7),
    "fs-mol": Target("fs-mol", "fs-mol.toml", trial_share=1.0),
    **{f"{name}-{shot}": target for name, pair in _PAIRS.items() for shot, target in pair.items()},
}
"""Name on the command line → the experiment."""
