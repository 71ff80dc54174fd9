"""The experiments of the paper: which methods on which tasks.

A file of `trials/` lists the entries of an experiment, and the options in which the tuning trials of each differ. An
entry is a method, or a method made in another way, which its table in `entries` tells. An entry with one list of
options is not tuned.
"""

import dataclasses
import tomllib
from importlib import resources
from typing import Any

from fewsure.core.config import from_record, to_record
from fewsure.training.experiment import GROUPS, Experiment, load_preset

ENTRIES = "entries"
"""The table of a file of `trials/` that tells the method of an entry, and whether it starts at the pretrained body."""


@dataclasses.dataclass(frozen=True)
class Target:
    """An experiment: all methods that solve a kind of task."""

    data: str
    listed: str
    """The file of `trials/` that lists its methods."""
    preset: str = "recommended"
    folder: str | None = None
    """For `--data features`: where the features are."""
    body: str | None = None
    """The network of `fewsure features`, trained on the training classes, at whose body trainings start."""
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
        """Its entries."""
        return list(read_trials(self.listed))

    def trials(self, method: str) -> list[Experiment]:
        """The settings among which an entry is tuned: its preset with the options of each trial on top."""
        listed = read_trials(self.listed)[method]
        names = [f"trial {number}" for number in range(len(listed))] if len(listed) > 1 else [None]
        return [changed(self._base(method), options, name) for options, name in zip(listed, names, strict=True)]

    def starts_at_body(self, method: str) -> bool:
        """Whether an entry starts at the pretrained body."""
        return self.body is not None and self._entry(method).get("pretrained", True)

    def _entry(self, method: str) -> dict[str, Any]:
        """What an entry has beside the options of its trials."""
        found: dict[str, Any] = _read(self.listed).get(ENTRIES, {}).get(method, {})
        return found

    def _base(self, method: str) -> Experiment:
        entry = self._entry(method)
        base = load_preset(self.preset, entry.get("method", method), self.data)
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
    """The options of each entry's trials in a file of `trials/`."""
    return {entry: trials for entry, trials in _read(name).items() if entry != ENTRIES}


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("fewsure.reproduce") / "trials" / name).read_text(encoding="utf-8"))


def _shots(
    data: str, listed: str, seeds: tuple[int, int], preset: str = "recommended", **options: Any
) -> dict[str, Target]:
    """1-shot and 5-shot, with the seeds of their test tasks."""
    presets = {"1shot": preset, "5shot": f"{preset}-5-shot"}
    return {
        shot: Target(data, listed.format(shot=shot), preset, test_seed=seed, **options)
        for (shot, preset), seed in zip(presets.items(), seeds, strict=True)
    }


_LEO: dict[str, Any] = {"listed": "features-{shot}.toml", "seeds": (1, 3), "trial_share": 1.0}
_PAIRS = {
    "cifar-fs": _shots("cifar-fs", "photographs.toml", (5, 4)),
    "mini-imagenet": _shots("mini-imagenet", "mini-imagenet.toml", (5, 4), preset="pretrained", body="conv4"),
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
