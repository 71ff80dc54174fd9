"""From images to a folder of features: train the classifier, with progress and checkpoints; extract; publish at once.

    features.json                  what was done: the recipe, the data's checksums, device, seconds, accuracies
    {train,validation,test}.npz    features and labels, as `fewsure.data.io.feature_files` reads them
    network.safetensors            the weights and the statistics of the channels
    metrics.jsonl                  one line per epoch and per checkpoint of the training

All work is done in a folder beside it, `OUT.partial`, which also holds the checkpoint. It takes its name when it is
complete, so a folder of features is either whole or not there.
"""

import json
import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fewsure.core.config import checked, from_json, read_record, to_record
from fewsure.core.cores import keep_freed_memory
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.core.progress import ProgressLine
from fewsure.core.signals import Stopped, StopSignal
from fewsure.data.io.feature_files import load_features, write_features
from fewsure.data.pools import SPLITS, Pool, Split
from fewsure.errors import Diverged, FewsureError, require
from fewsure.features.backbone import Backbone
from fewsure.features.classifier import Recipe, Training, build_network, precision, recipe_of
from fewsure.features.extract import extract, nearest_mean_accuracy
from fewsure.version import __version__

FORMAT = 2
RECORD, CHECKPOINT, METRICS, NETWORK = "features.json", "checkpoint.safetensors", "metrics.jsonl", "network.safetensors"
LOOK_EVERY = 50
"""Updates between two looks at the loss, each of which waits for the device."""
CHECKPOINT_EVERY = 60.0
"""Seconds between two checkpoints. The result does not depend on it."""
SHOTS = (1, 5)
TASKS = 1000
"""Validation tasks behind the nearest-mean accuracies."""


def make_features(
    out: Path, data: str, pools: Mapping[Split, Pool], recipe: Recipe, device: torch.device, *, resume: bool = False
) -> dict[str, Any]:
    """Train on the training classes alone, and store the features of all splits in `out`; the content of features.json.

    `data` is the name of the data set whose splits are `pools`. With `resume`, an interrupted call goes on where it
    stopped, and a finished one is left as it is.
    """
    _check_pools(data, pools)
    if device.type == "cpu":
        keep_freed_memory()
    asked = {
        "format": FORMAT,
        "version": __version__,
        "data": data,
        "shape": list(pools["train"].examples.shape[1:]),
        "checksums": {split: pools[split].checksum for split in SPLITS},
        "recipe": to_record(recipe),
    }
    there = check_out(out, resume=resume)
    if there is not None:
        _check_same(out, there, asked)
    work = work_folder(out)
    if not _is_finished(there):
        training = Training(pools["train"], recipe, device)  # what cannot be trained leaves nothing behind
        if there is None:
            work.mkdir(parents=True, exist_ok=True)
            _write_record(work, asked)
        seconds = _train(training, work, device, pools["validation"])
        _extract(training, work, pools, asked, device, seconds)
    if work.exists():
        (work / CHECKPOINT).unlink(missing_ok=True)
        work.replace(out.resolve())
    return load_record(out)


def check_out(out: Path, *, resume: bool) -> dict[str, Any] | None:
    """The record of the features in `out`, finished or interrupted; refuses a folder that cannot be worked in."""
    there = _recorded(out)
    if there is not None and not resume:
        place = out if (out / RECORD).exists() else work_folder(out)
        raise FewsureError(f"{place} already holds features or their making; add --resume, or choose another --out")
    for folder in (out, work_folder(out)) if there is None else ():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FewsureError(f"expected --out to be a new or empty folder, but {folder} is not; choose another")
    return there


def work_folder(out: Path) -> Path:
    """Where `out` is made."""
    whole = out.resolve()
    return whole.with_name(f"{whole.name}.partial")


def recorded_recipe(out: Path) -> Recipe | None:
    """The recipe of the features in `out`, finished or interrupted, if there are any."""
    record = _recorded(out)
    return None if record is None else _recipe(record, out)


def load_network(folder: Path, device: torch.device | str = "cpu") -> Backbone:
    """The trained network of a folder of features, in evaluation mode; it takes images in [0, 1]."""
    record, path = load_record(folder), folder / NETWORK
    recipe = _recipe(record, folder)
    shape = checked(tuple[int, int, int], record.get("shape"), f"{folder}: shape")
    require(min(shape) >= 1, f"{folder}: shape", "sizes of at least 1", shape)
    try:
        network = build_network(recipe, shape).to_empty(device=device)
        network.load_state_dict(load_file(path, device=str(device)))
    except (SafetensorError, OSError, RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise FewsureError(f"{path} is damaged or of another network ({error}); make the features anew") from error
    return network.eval()


def command_line(data: str, recipe: Recipe) -> str:
    """The command that makes these features, with the options that differ from their defaults.

    >>> command_line("cifar-fs", Recipe(epochs=30, flip=False))
    'fewsure features --data cifar-fs --epochs 30 --no-flip'
    >>> command_line("mini-imagenet", recipe_of("conv4"))
    'fewsure features --data mini-imagenet --network conv4'
    """
    words, recommended = ["fewsure", "features", "--data", data], recipe_of(recipe.network)
    for field in fields(recipe):
        value, name = getattr(recipe, field.name), field.name.replace("_", "-")
        if value != (field.default if field.name == "network" else getattr(recommended, field.name)):
            words += [f"--no-{name}"] if value is False else [f"--{name}", str(value)]
    return shlex.join(words)


def describe(record: dict[str, Any], out: Path) -> str:
    """The content of features.json, for a person."""
    held, images = record["held_out"], sum(record["images"].values())
    lines = [
        f"{record['features']} features of {images:,} images in {out}, after {record['seconds']:.0f} s on "
        f"{record['device']}"
    ]
    if held["images"]:
        lines.append(f"accuracy on {held['images']:,} held-out images of the training classes: {held['accuracy']:.3f}")
    for found in filter(None, record["nearest_mean"]):
        mean, interval = found["accuracy"]["mean"], found["accuracy"]["ci95"]
        name = f"{found['way']}-way {found['shot']}-shot"
        lines.append(f"nearest class mean on validation classes, {name}: {mean:.3f} ± {interval:.3f}")
    starts = record["recipe"]["network"] == "conv4"
    next_step = f"protonet --data {record['data']} --from {out}" if starts else f"maml --data features --folder {out}"
    return "\n".join([*lines, f"next: fewsure train {next_step}"])


def _check_pools(data: str, pools: Mapping[Split, Pool]) -> None:
    for split in SPLITS:
        examples = pools[split].examples
        if examples.ndim != 4 or examples.dtype != torch.uint8:
            raise FewsureError(
                f"expected `data` to hold images, but {data} ({split}) holds {examples.dtype} of shape "
                f"{tuple(examples.shape)}; choose a data set of images"
            )
        if examples.shape[1:] != pools["train"].examples.shape[1:]:
            raise FewsureError(
                f"expected all images of {data} to have one shape, but got {tuple(pools['train'].examples.shape[1:])} "
                f"(train) and {tuple(examples.shape[1:])} ({split})"
            )
        shared = set(pools["train"].classes) & set(pools[split].classes)
        if split != "train" and shared:
            raise FewsureError(f"expected no class of {data} in two splits, but {min(shared)} is in train and {split}")


def _check_same(out: Path, there: dict[str, Any], asked: dict[str, Any]) -> None:
    pairs = [(name, value, asked["recipe"].get(name)) for name, value in there["recipe"].items()]
    pairs += [(name, there[name], asked[name]) for name in ("data", "checksums")]
    for name, value, given in pairs:
        if given != value:
            raise FewsureError(
                f"a resumed training keeps its options: `{name}` is {value!r} in {out}, but got {given!r}; "
                "leave the option out, or choose another --out"
            )


def _train(training: Training, folder: Path, device: torch.device, validation: Pool) -> float:
    """Train to the end, from the last checkpoint if there is one; the seconds, with those before an interruption."""
    lines = _resume(training, folder)
    saved = time.perf_counter()
    began = saved - (lines[-1]["seconds"] if lines else 0.0)
    stopping = False
    with ProgressLine("training the classifier") as line, StopSignal() as stop:
        while training.update < training.updates and not stopping:
            training.step()
            stopping = stop()
            epoch_ends = training.update % training.updates_per_epoch == 0
            late = _since(saved) >= CHECKPOINT_EVERY
            checkpoint = stopping or late or training.update == training.updates
            if not (epoch_ends or checkpoint or training.update % LOOK_EVERY == 0):
                continue
            means = training.means()
            if not math.isfinite(means.loss):
                raise Diverged(
                    f"training diverged before update {training.update}: the loss is not finite; remove {folder} and "
                    "try a lower --lr"
                )
            shown = f"loss {means.loss:.3f}  accuracy {means.accuracy:.3f}"
            line.show(training.update, training.updates, shown)
            if epoch_ends or checkpoint:
                entry = {
                    "update": training.update,
                    "epoch": training.update / training.updates_per_epoch,
                    "device": device_name(device),
                    "seconds": round(_since(began), 3),
                    "loss": means.loss,
                    "accuracy": means.accuracy,
                }
                seen = {"held_out_accuracy": training.held_out_accuracy()} if epoch_ends else {}
                if epoch_ends and _looks(training):
                    score = _nearest_means(training, validation)
                    training.keep_if_best(score)
                    seen["validation_accuracy"] = score
                lines.append(entry | seen)
            if checkpoint:
                write_atomically(folder / METRICS, "".join(json.dumps(entry) + "\n" for entry in lines))
                write_atomically(folder / CHECKPOINT, _to_bytes(training.tensors()))
                saved = time.perf_counter()
    if training.update < training.updates:
        raise Stopped(folder, stop.received)
    return _since(began)


def _looks(training: Training) -> bool:
    """Whether the epoch that has ended is one whose weights may be kept."""
    every, epoch = training.recipe.keep_best, training.update // training.updates_per_epoch
    return every > 0 and (epoch % every == 0 or training.update == training.updates)


def _nearest_means(training: Training, pool: Pool) -> float:
    """Mean accuracy of the nearest class mean over the numbers of shots that the pool is large enough for."""
    features = pool._replace(examples=extract(training.network, pool.examples, exact=False))
    found = [nearest_mean_accuracy(features, shot=shot, tasks=TASKS) for shot in SHOTS]
    means = [float(one["accuracy"]["mean"]) for one in found if one]
    return sum(means) / max(1, len(means))


def _resume(training: Training, folder: Path) -> list[dict[str, Any]]:
    """Load the checkpoint, if there is one; the logged lines up to it."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return []
    try:
        training.load(load_file(path))
        lines = [from_json(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line["update"] <= training.update]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FewsureError(f"{path} or {METRICS} is damaged ({error}); remove {folder} and begin anew") from error


def _extract(
    training: Training,
    folder: Path,
    pools: Mapping[Split, Pool],
    asked: dict[str, Any],
    device: torch.device,
    seconds: float,
) -> None:
    """Write features, weights and, last of all, the record that says that everything is there."""
    began = time.perf_counter() - seconds
    training.take_best()
    network = training.network
    images = {split: len(pools[split].examples) for split in SPLITS}
    done_before = 0
    with ProgressLine("extracting features") as line:

        def show(done: int) -> None:
            line.show(done_before + done, sum(images.values()), "images")

        for split in SPLITS:
            write_features(folder, split, extract(network, pools[split].examples, progress=show), pools[split])
            done_before += images[split]
    write_atomically(folder / NETWORK, _to_bytes(network.state_dict()))
    validation = load_features(folder, "validation")
    results = {
        "command": command_line(asked["data"], training.recipe),
        "device": device_name(device),
        "precision": precision(device),
        "seconds": round(_since(began), 1),
        "features": network.outputs,
        "weights": sum(weight.numel() for weight in network.parameters()),
        "classes": {split: len(pools[split].classes) for split in SPLITS},
        "images": images,
        "held_out": {"images": training.held_out_images, "accuracy": training.held_out_accuracy()},
        "nearest_mean": [nearest_mean_accuracy(validation, shot=shot, tasks=TASKS) for shot in SHOTS],
    }
    _write_record(folder, asked | results)


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    write_atomically(folder / RECORD, json.dumps(record, indent=1) + "\n")


def _is_finished(record: dict[str, Any] | None) -> bool:
    """Whether a record says more than what was asked for."""
    return record is not None and "features" in record


def _recorded(out: Path) -> dict[str, Any] | None:
    """The record of the features in `out`, whether finished or being made."""
    places = (out / RECORD, work_folder(out) / RECORD)
    return next((_read(path) for path in places if path.is_file()), None)


def load_record(folder: Path) -> dict[str, Any]:
    """The content of features.json."""
    return _read(folder / RECORD)


def _read(path: Path) -> dict[str, Any]:
    return read_record(path, FORMAT, "make the features anew with `fewsure features`")


def _recipe(record: dict[str, Any], source: Path) -> Recipe:
    recipe: Recipe = checked(Recipe, record.get("recipe"), f"{source}: recipe")
    return recipe


def _to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})


def _since(moment: float) -> float:
    return time.perf_counter() - moment
