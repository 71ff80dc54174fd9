"""The folder a run lives in.

    config.json               the experiment, the format and the version that wrote it
    data.json                 ids of the classes or tasks that it is trained on, which never certify it
    metrics.jsonl             one line per logged window of updates
    checkpoint.safetensors    meta-parameters, the optimiser's state and the number of updates made, in one file
    checkpoints/              the last few of them, by their number of updates, if they are to be kept
    best.safetensors          the one with the best score on validation tasks, with that score, likewise; it predicts
    fitted.json               temperature or noise, fitted on validation tasks, by their number of examples
    evaluation.json           what `fewsure evaluate` printed; for another checkpoint than the chosen one,
                              evaluation-best.json, evaluation-1000.json …
    evaluation/RECORDS/       the records of its single tasks, in shards (`fewsure.core.shards`); evaluation.json says
                              which RECORDS are its own. Another folder is of an evaluation that was interrupted.
    certificate.json          what `fewsure certify` printed
    conformal-5.safetensors   the calibration of sets and intervals with coverage for 5 examples (by `fewsure certify`)

Files are replaced atomically and hold no code. The checkpoint holds no times or paths: the same experiment gives the
same bytes. Where several processes train together, rank zero alone writes.
"""

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fewsure.core import streams
from fewsure.core.config import from_json, read_record
from fewsure.core.distributed import is_rank_zero
from fewsure.core.files import append_line, make_folder, partial_files, sync, write_atomically
from fewsure.core.shards import EvaluatedTasks, ShardFolder, concat_shards
from fewsure.errors import FewsureError
from fewsure.training.experiment import Experiment, from_values
from fewsure.training.optimiser import optimiser_shapes
from fewsure.types import Parts, Records
from fewsure.version import __version__

FORMAT = 1
RESULT_FORMAT = 1
"""The format of evaluation.json and certificate.json."""
LAST, BEST = "last", "best"
"""Names of checkpoints; others go by their number of updates."""
CHECKPOINT, BEST_FILE, HISTORY, METRICS = "checkpoint.safetensors", "best.safetensors", "checkpoints", "metrics.jsonl"
FITTED = "fitted.json"
FITTED_LIMITS = {
    "noise_std": (1e-100, 1e100),
    "softmax_temperature": (1e-15, 1e15),
    "temperature_exponent": (-1.0, 1.0),
}
"""The options that are fitted on validation tasks, and their range; noise is in the target's own unit."""


Fits = Mapping[int, Mapping[str, float]]
"""Values of such options, by the number of support examples (of each class) of the validation tasks."""


class Checkpoint(NamedTuple):
    """The state from which training goes on."""

    update: int
    meta: Parts
    optimiser: dict[str, Tensor]


class Run:
    """One run folder."""

    def __init__(self, folder: Path, experiment: Experiment, version: str) -> None:
        self.folder = folder
        self.experiment = experiment
        self.version = version
        """The version of fewsure that started the run."""

    @classmethod
    def create(cls, folder: Path, experiment: Experiment) -> "Run":
        """Start a run in a new or empty folder."""
        if (folder / "config.json").exists():
            raise FewsureError(f"{folder} already holds a run; continue it with --resume, or choose another --out")
        if folder.exists() and (not folder.is_dir() or set(folder.iterdir()) - partial_files(folder)):
            raise FewsureError(f"expected --out to be a new or empty folder, but {folder} is not; choose another")
        experiment = replace(experiment, data=experiment.data.prepared())
        run = cls(folder, experiment, __version__)
        run.initial()  # what cannot be initialised leaves nothing behind
        make_folder(folder)
        record = {"format": FORMAT, "version": __version__} | experiment.record()
        write_atomically(folder / "config.json", json.dumps(record, indent=1) + "\n")
        return run

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Read the run in a folder."""
        config = folder / "config.json"
        if not config.is_file():
            raise FewsureError(f"{folder} is not a run: it has no config.json; make one with `fewsure train`")
        record = read_record(config, FORMAT, "train the run anew")
        return cls(folder, from_values(record, source=str(config)), str(record.get("version")))

    def initial(self) -> Checkpoint:
        """Where training starts, unless it starts at another run's checkpoint."""
        seed = self.experiment.training.seed
        meta = self.experiment.method.init(self.experiment.model, streams.generator(seed, "init"))
        return Checkpoint(0, meta, {})

    def save(self, checkpoint: Checkpoint, *, keep_last: int = 1) -> None:
        """Make it the last checkpoint; with `keep_last` above 1, keep so many of the last ones beside it."""
        if not is_rank_zero():
            return
        content = _to_bytes(checkpoint)
        if keep_last > 1:  # first, so that none is missing after a kill in between
            make_folder(self.folder / HISTORY)
            write_atomically(self._history_file(checkpoint.update), content)
        if (self.folder / METRICS).exists():  # what was logged before a checkpoint lasts as long as it does
            sync(self.folder / METRICS)
        write_atomically(self.folder / CHECKPOINT, content)
        self.forget_older(keep_last)

    def forget_older(self, keep_last: int) -> None:
        """Delete all but the last few checkpoints of the history; nothing unless more than one is to be kept."""
        if is_rank_zero() and keep_last > 1:
            for update in self.kept()[:-keep_last]:
                self._history_file(update).unlink(missing_ok=True)

    def kept(self) -> list[int]:
        """The numbers of updates of the checkpoints in the history."""
        found = (self.folder / HISTORY).glob("*.safetensors")
        return sorted(int(path.stem) for path in found if path.stem.isascii() and path.stem.isdecimal())

    def _history_file(self, update: int) -> Path:
        return self.folder / HISTORY / f"{update:08}.safetensors"

    def save_best(self, checkpoint: Checkpoint, score: float) -> None:
        """Keep a checkpoint with its score on validation tasks, if that is the lowest so far."""
        if is_rank_zero() and score < self.best_score():
            content = _to_bytes(checkpoint, score=torch.tensor(score, dtype=torch.float64))
            write_atomically(self.folder / BEST_FILE, content)

    def best_score(self) -> float:
        """The lowest score on validation tasks so far; infinity if there is none."""
        path = self.folder / BEST_FILE
        if not path.is_file():
            return math.inf
        score = self._tensors(path, torch.device("cpu")).get("score", torch.tensor(math.nan))
        if score.shape != () or not bool(score.isfinite()):
            raise FewsureError(f"{path} is damaged: its score is no number; delete it, and the next best is kept")
        return float(score)

    @property
    def chosen(self) -> str:
        """The checkpoint that predicts: the best one where the training keeps it, else the last."""
        return BEST if self.experiment.training.keep_best and (self.folder / BEST_FILE).is_file() else LAST

    @property
    def has_checkpoint(self) -> bool:
        return (self.folder / CHECKPOINT).is_file()

    def checkpoint_file(self, which: str = LAST) -> Path:
        """The file of a checkpoint: `last`, `best`, or the number of updates of one that was kept."""
        if which == LAST and not self.has_checkpoint:
            raise FewsureError(f"{self.folder} has no checkpoint yet; continue it with `fewsure train … --resume`")
        files = {LAST: self.folder / CHECKPOINT, BEST: self.folder / BEST_FILE}
        files |= {str(update): self._history_file(update) for update in self.kept()}
        if which not in files or not files[which].is_file():
            there = ", ".join(name for name, file in files.items() if file.is_file())
            raise FewsureError(
                f"expected `checkpoint` to be one that {self.folder} has ({there}), but got {which!r}; "
                "`fewsure train` keeps others with --keep-best and --keep-last"
            )
        return files[which]

    def load(self, device: torch.device, which: str = LAST) -> Checkpoint:
        """A checkpoint, on a device: the last one, or another that `checkpoint_file` knows."""
        path = self.checkpoint_file(which)
        tensors = self._tensors(path, device)
        meta: Parts = {}
        for part, params in self.initial().meta.items():
            meta[part] = {}
            for name, value in params.items():
                found = tensors.get(f"meta/{part}/{name}")
                if found is None or found.shape != value.shape:
                    came = "nothing" if found is None else tuple(found.shape)
                    raise FewsureError(
                        f"{path}: expected {part}/{name} of shape {tuple(value.shape)}, but got {came}; "
                        "does it belong to this config.json?"
                    )
                if not (found.is_floating_point() and bool(found.isfinite().all())):
                    raise FewsureError(f"{path}: {part}/{name} holds numbers that are not finite; train the run anew")
                meta[part][name] = found
        update = tensors.get("update", torch.tensor(-1))
        prefix = "optimiser/"
        optimiser = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        if (
            update.shape != ()
            or not 0 <= int(update) <= self.experiment.training.updates
            or (optimiser and {name: value.shape for name, value in optimiser.items()} != self._optimiser_shapes(meta))
        ):
            raise FewsureError(f"{path}: the number of updates or the optimiser's state is damaged; train the run anew")
        return Checkpoint(int(update), meta, optimiser)

    def _optimiser_shapes(self, meta: Parts) -> dict[str, torch.Size]:
        options = self.experiment.training
        return optimiser_shapes(meta, options.optimiser, options.momentum)

    def _tensors(self, path: Path, device: torch.device) -> dict[str, Tensor]:
        try:
            return load_file(path, device=str(device))
        except (SafetensorError, OSError) as error:
            older = f", or put one of {self.folder / HISTORY} in its place" if self.kept() else ""
            raise FewsureError(f"{path} is damaged or cut short ({error}); train the run anew{older}") from error

    def append_metrics(self, line: dict[str, Any]) -> None:
        if is_rank_zero():
            append_line(self.folder / METRICS, json.dumps(line))

    def metrics(self) -> list[dict[str, Any]]:
        """The logged windows, up to the first line that is not one, such as one that was cut short."""
        path = self.folder / METRICS
        lines: list[dict[str, Any]] = []
        if path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    record = from_json(line)
                    update, seconds = int(record["update"]), float(record["seconds"])
                except (ValueError, TypeError, KeyError, OverflowError):
                    break
                lines.append(record | {"update": update, "seconds": seconds})
        return lines

    def forget_metrics_after(self, update: int) -> float:
        """Drop lines that a checkpoint does not cover; the seconds of training up to it."""
        kept = [line for line in self.metrics() if line["update"] <= update]
        if is_rank_zero():
            write_atomically(self.folder / METRICS, "".join(json.dumps(line) + "\n" for line in kept))
        return float(kept[-1]["seconds"]) if kept else 0.0

    def save_fitted(self, fits: Fits) -> None:
        """Keep the options that were fitted on validation tasks."""
        if is_rank_zero():
            record = {str(shot): dict(values) for shot, values in fits.items()}
            write_atomically(self.folder / FITTED, json.dumps(record) + "\n")

    def fitted(self, names: Sequence[str]) -> Fits | None:
        """The options of these names that were fitted on validation tasks, if they were."""
        path = self.folder / FITTED
        if not path.is_file():
            return None
        try:
            found = from_json(path.read_text(encoding="utf-8"))
            fits = {int(shot): {name: float(values[name]) for name in names} for shot, values in found.items()}
            if not fits or min(fits) < 1:
                raise ValueError("no number of examples")
            for name, value in (item for values in fits.values() for item in values.items()):
                low, high = FITTED_LIMITS[name]
                if not low <= value <= high:
                    raise ValueError(f"`{name}` is {value}")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise FewsureError(f"{path} is damaged ({error}); delete it, and it is made again") from error
        return fits

    def evaluation_shards(self, records: str, which: str | None = None) -> ShardFolder:
        """Where the records of an evaluation of a checkpoint are kept, by what identifies them."""
        return ShardFolder(self.folder / self._evaluation_name(which) / records)

    def save_evaluation(self, summary: dict[str, Any], which: str | None = None) -> None:
        """Keep the result for a checkpoint; `evaluation` and `evaluated_tasks` are those of the chosen one.

        Its records have been kept before; those of evaluations that it replaces are removed.
        """
        if is_rank_zero():
            name = self._evaluation_name(which)
            write_atomically(self.folder / f"{name}.json", json.dumps(summary, indent=1) + "\n")
            for path in (self.folder / name).iterdir():
                if path.name != summary["records"]:
                    _remove(path)
            self.evaluation_shards(summary["records"], which).forget_other_ends(summary["tasks"])

    def _evaluation_name(self, which: str | None) -> str:
        return "evaluation" if which in (None, self.chosen) else f"evaluation-{which}"

    def evaluated_tasks(self) -> Iterable[Records]:
        """The records of the last `fewsure evaluate`, shard by shard; they can be iterated more than once."""
        summary = self.evaluation() or {}
        folder, tasks = self.folder / self._evaluation_name(None), summary.get("tasks")
        for path in folder.iterdir() if folder.is_dir() else ():  # a name from a file is looked up, never made a path
            if path.name == summary.get("records") and isinstance(tasks, int) and tasks >= 1:
                return EvaluatedTasks(ShardFolder(path), tasks)
        raise FewsureError(f"{folder} has no records of evaluation.json; run `fewsure evaluate {self.folder}`")

    def evaluation_records(self) -> dict[str, Tensor]:
        """The records of the last `fewsure evaluate`, all of them in memory."""
        return concat_shards(self.evaluated_tasks())

    def evaluation(self) -> dict[str, Any] | None:
        """The result of the last `fewsure evaluate`, if there was one."""
        path = self.folder / "evaluation.json"
        return read_record(path, RESULT_FORMAT, f"run `fewsure evaluate {self.folder}`") if path.is_file() else None

    def forget_evaluation(self) -> None:
        """Remove all that belongs to other meta-parameters."""
        if is_rank_zero():
            for name in (FITTED, "certificate.json", "evaluation*", "conformal-*.safetensors"):
                for path in self.folder.glob(name):
                    _remove(path)


def _to_bytes(checkpoint: Checkpoint, **more: Tensor) -> bytes:
    tensors = {"update": torch.tensor(checkpoint.update), **more}
    for part, params in checkpoint.meta.items():
        tensors |= {f"meta/{part}/{name}": value for name, value in params.items()}
    tensors |= {f"optimiser/{name}": value for name, value in checkpoint.optimiser.items()}
    return save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})


def _remove(path: Path) -> None:
    """A file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
