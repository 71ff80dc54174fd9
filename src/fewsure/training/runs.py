"""The folder a run lives in.

    config.json               the experiment, the format and the version that wrote it
    metrics.jsonl             one line per logged window of updates
    checkpoint.safetensors    meta-parameters, Adam's state and the number of updates made, in one file
    noise.json                the noise on labels that was learned from validation tasks, for a user's own regression
    evaluation.json           what `fewsure evaluate` printed, with the single tasks in evaluation.safetensors
    certificate.json          what `fewsure certify` printed
    conformal.safetensors     what prediction sets and intervals with coverage are made from (by `fewsure certify`)

Files are replaced atomically and hold no code. The checkpoint holds no times or paths: the same experiment gives the
same bytes.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fewsure import streams
from fewsure.data import prepared
from fewsure.errors import FewsureError
from fewsure.experiment import Experiment, from_values
from fewsure.files import write_atomically
from fewsure.training.optimiser import optimiser_shapes
from fewsure.types import Parts
from fewsure.version import __version__

FORMAT = 1


class Checkpoint(NamedTuple):
    """What training needs to go on."""

    update: int
    meta: Parts
    optimiser: dict[str, Tensor]


class Run:
    """One run folder."""

    def __init__(self, folder: Path, experiment: Experiment, version: str) -> None:
        self.folder = folder
        self.experiment = experiment
        self.version = version
        """Of fewsure, that started the run."""

    @classmethod
    def create(cls, folder: Path, experiment: Experiment) -> "Run":
        """Start a run in a new or empty folder."""
        if (folder / "config.json").exists():
            raise FewsureError(f"{folder} already holds a run; continue it with --resume, or choose another --out")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FewsureError(f"expected --out to be a new or empty folder, but {folder} is not; choose another")
        experiment = replace(experiment, data=prepared(experiment.data))
        run = cls(folder, experiment, __version__)
        run.initial()  # what cannot be initialised leaves nothing behind
        folder.mkdir(parents=True, exist_ok=True)
        record = {"format": FORMAT, "version": __version__} | experiment.record()
        write_atomically(folder / "config.json", json.dumps(record, indent=1) + "\n")
        return run

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Read the run in a folder."""
        config = folder / "config.json"
        if not config.is_file():
            raise FewsureError(f"{folder} is not a run: it has no config.json; make one with `fewsure train`")
        try:
            record = json.loads(config.read_text(encoding="utf-8"))
            written = record["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise FewsureError(f"{config} cannot be read ({error}); train the run anew") from error
        if written != FORMAT:
            version = record.get("version")
            raise FewsureError(
                f"{folder} has run format {written!r} (version {version}), but this version reads {FORMAT}; "
                f"use fewsure {version}, or train the run anew"
            )
        return cls(folder, from_values(record, source=str(config)), str(record.get("version")))

    def initial(self) -> Checkpoint:
        """Where training starts, unless it starts at another run's checkpoint."""
        seed = self.experiment.training.seed
        meta = self.experiment.algorithm.init(self.experiment.model, streams.generator(seed, "init"))
        return Checkpoint(0, meta, {})

    def save(self, checkpoint: Checkpoint) -> None:
        tensors = {"update": torch.tensor(checkpoint.update)}
        for part, params in checkpoint.meta.items():
            tensors |= {f"meta/{part}/{name}": value for name, value in params.items()}
        tensors |= {f"optimiser/{name}": value for name, value in checkpoint.optimiser.items()}
        content = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
        write_atomically(self.folder / "checkpoint.safetensors", content)

    @property
    def has_checkpoint(self) -> bool:
        return (self.folder / "checkpoint.safetensors").is_file()

    def load(self, device: torch.device) -> Checkpoint:
        """The last checkpoint, on a device."""
        path = self.folder / "checkpoint.safetensors"
        if not path.is_file():
            raise FewsureError(f"{self.folder} has no checkpoint yet; continue it with `fewsure train … --resume`")
        try:
            tensors = load_file(path, device=str(device))
        except (SafetensorError, OSError) as error:
            raise FewsureError(f"{path} is damaged or cut short ({error}); train the run anew") from error
        expected = self.initial().meta
        meta: Parts = {part: {} for part in expected}
        for part, params in expected.items():
            for name, value in params.items():
                found = tensors.pop(f"meta/{part}/{name}", None)
                if found is None or found.shape != value.shape:
                    came = "nothing" if found is None else tuple(found.shape)
                    raise FewsureError(
                        f"{path}: expected {part}/{name} of shape {tuple(value.shape)}, but got {came}; "
                        "does it belong to this config.json?"
                    )
                if not (found.is_floating_point() and bool(found.isfinite().all())):
                    raise FewsureError(
                        f"{path}: {part}/{name} holds values that are no finite numbers; train the run anew"
                    )
                meta[part][name] = found
        update = tensors.pop("update", torch.tensor(-1))
        optimiser = {name.removeprefix("optimiser/"): value for name, value in tensors.items()}
        if (
            update.shape != ()
            or not 0 <= int(update) <= self.experiment.training.updates
            or (optimiser and {name: value.shape for name, value in optimiser.items()} != optimiser_shapes(meta))
        ):
            raise FewsureError(f"{path}: the number of updates or the optimiser's state is damaged; train the run anew")
        return Checkpoint(int(update), meta, optimiser)

    def append_metrics(self, line: dict[str, Any]) -> None:
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The logged windows, up to the first line that is not one, such as one that was cut short."""
        path = self.folder / "metrics.jsonl"
        lines: list[dict[str, Any]] = []
        if path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    record = json.loads(line)
                    update, seconds = int(record["update"]), float(record["seconds"])
                except (ValueError, TypeError, KeyError):
                    break
                lines.append(record | {"update": update, "seconds": seconds})
        return lines

    def forget_metrics_after(self, update: int) -> float:
        """Drop lines that a checkpoint does not cover; the seconds of training up to it."""
        kept = [line for line in self.metrics() if line["update"] <= update]
        write_atomically(self.folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
        return float(kept[-1]["seconds"]) if kept else 0.0

    def save_noise_std(self, noise_std: float) -> None:
        write_atomically(self.folder / "noise.json", json.dumps({"noise_std": noise_std}) + "\n")

    def noise_std(self) -> float | None:
        """The noise on labels that was learned, if it was."""
        path = self.folder / "noise.json"
        if not path.is_file():
            return None
        try:
            noise_std = float(json.loads(path.read_text(encoding="utf-8"))["noise_std"])
            if not 0 < noise_std < math.inf:
                raise ValueError(f"{noise_std} is no standard deviation")
        except (ValueError, TypeError, KeyError) as error:
            raise FewsureError(f"{path} is damaged ({error}); delete it, and it is made again") from error
        return noise_std

    def save_evaluation(self, summary: dict[str, Any], records: dict[str, Tensor]) -> None:
        write_atomically(self.folder / "evaluation.safetensors", save(records))
        write_atomically(self.folder / "evaluation.json", json.dumps(summary, indent=1) + "\n")

    def evaluation_records(self) -> dict[str, Tensor]:
        """What the last `fewsure evaluate` found of each task."""
        path = self.folder / "evaluation.safetensors"
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise FewsureError(f"{path} cannot be read ({error}); run `fewsure evaluate {self.folder}`") from error

    def forget_evaluation(self) -> None:
        """Remove what was found of earlier meta-parameters."""
        for name in ("noise.json", "evaluation.json", "evaluation.safetensors"):
            (self.folder / name).unlink(missing_ok=True)
        for name in ("certificate.json", "conformal.safetensors"):
            (self.folder / name).unlink(missing_ok=True)

    def evaluation(self) -> dict[str, Any] | None:
        """What the last `fewsure evaluate` found, if there was one."""
        path = self.folder / "evaluation.json"
        if not path.is_file():
            return None
        try:
            summary: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise FewsureError(f"{path} cannot be read ({error}); run `fewsure evaluate {self.folder}`") from error
        return summary
