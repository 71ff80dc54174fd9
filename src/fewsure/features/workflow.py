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

from fewsure.core.config import checked, from_json, from_record, to_record
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.core.progress import ProgressLine
from fewsure.core.signals import Stopped, StopSignal
from fewsure.data.io.feature_files import load_features, write_features
from fewsure.data.pools import SPLITS, Pool, Split
from fewsure.errors import Diverged, FewsureError, require
from fewsure.features.classifier import FeatureNetwork, Recipe, Training, build_network, precision
from fewsure.features.extract import extract, nearest_mean_accuracy
from fewsure.version import __version__

FORMAT = 1
LOOK_EVERY = 50
"""Updates between two looks at the loss, each of which waits for the device."""
CHECKPOINT_EVERY = 60.0
"""Seconds between two checkpoints. What is learned does not depend on it."""
SHOTS = (1, 5)
TASKS = 1000
"""Validation tasks behind the nearest-mean accuracies."""


def make_features(
    out: Path,
    data: str,
    pools: Mapping[Split, Pool],
    recipe: Recipe,
    device: torch.device,
    *,
    resume: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train on the training classes alone, and store the features of all splits in `out`; what features.json says.

    `data` is the name of the data set whose splits are `pools`. With `resume`, an interrupted call goes on where it
    stopped, and a finished one is left as it is.
    """
    _check_pools(data, pools)
    config = {
        "format": FORMAT,
        "version": __version__,
        "data": data,
        "shape": list(pools["train"].examples.shape[1:]),
        "checksums": {split: pools[split].checksum for split in SPLITS},
        "recipe": to_record(recipe),
    }
    work, there = work_folder(out), check_out(out, resume=resume)
    if there is not None:
        _check_same(out, there, config)
        if (out / "features.json").exists():
            return there
    if not (work / "features.json").exists():
        training = Training(pools["train"], recipe, device)  # what cannot be trained leaves nothing behind
        if there is None:
            work.mkdir(parents=True, exist_ok=True)
            write_atomically(work / "config.json", json.dumps(config, indent=1) + "\n")
        seconds = _train(training, work, device, quiet=quiet)
        _finish(training, work, pools, config, device, seconds, quiet=quiet)
    for name in ("config.json", "checkpoint.safetensors"):
        (work / name).unlink(missing_ok=True)
    work.replace(out.resolve())
    return _read(out / "features.json")


def check_out(out: Path, *, resume: bool) -> dict[str, Any] | None:
    """What is recorded of the features in `out`, finished or interrupted; refuses a folder that cannot be worked in."""
    there = _recorded(out)
    if there is not None and not resume:
        place = out if (out / "features.json").exists() else work_folder(out)
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


def load_network(folder: Path, device: torch.device | str = "cpu") -> FeatureNetwork:
    """The trained network of a folder of features, in evaluation mode; it takes images in [0, 1]."""
    record = _read(folder / "features.json")
    path = folder / "network.safetensors"
    recipe = _recipe(record, folder)
    channels, *_ = checked(tuple[int, int, int], record.get("shape"), f"{folder}: shape")
    require(channels >= 1, f"{folder}: channels", "at least 1", channels)
    try:
        network = build_network(recipe, channels).to_empty(device=device)
        network.load_state_dict(load_file(path, device=str(device)))
    except (SafetensorError, OSError, RuntimeError, OverflowError) as error:
        raise FewsureError(f"{path} is damaged or of another network ({error}); make the features anew") from error
    return network.eval()


def command_line(data: str, recipe: Recipe) -> str:
    """The command that makes these features, with the options that differ from their defaults.

    >>> command_line("cifar-fs", Recipe(epochs=30, flip=False))
    'fewsure features --data cifar-fs --epochs 30 --no-flip'
    """
    words = ["fewsure", "features", "--data", data]
    for field in fields(recipe):
        value, flag = getattr(recipe, field.name), field.name.replace("_", "-")
        if value != field.default:
            words += (
                [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
            )
    return shlex.join(words)


def describe(record: dict[str, Any], out: Path) -> str:
    """What features.json says, for a person."""
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
    return "\n".join([*lines, f"next: fewsure train maml --data features --folder {out}"])


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


def _train(training: Training, folder: Path, device: torch.device, *, quiet: bool) -> float:
    """Train to the end, from the last checkpoint if there is one; the seconds, with those before an interruption."""
    lines = _resume(training, folder)
    saved = looked = time.perf_counter()
    began = saved - (lines[-1]["seconds"] if lines else 0.0)
    last_look = training.update
    stopping = False
    with ProgressLine("training the classifier", quiet=quiet) as line, StopSignal() as stop:
        while training.update < training.updates and not stopping:
            training.step()
            stopping = stop()
            epoch_ends = training.update % training.updates_per_epoch == 0
            checkpoint = stopping or training.update == training.updates or _since(saved) >= CHECKPOINT_EVERY
            if not (epoch_ends or checkpoint or training.update % LOOK_EVERY == 0):
                continue
            means = training.means()
            rate = training.images_per_update * (training.update - last_look) / max(_since(looked), 1e-9)
            if not math.isfinite(means.loss):
                raise Diverged(
                    f"training diverged before update {training.update}: the loss is not finite; remove {folder} and "
                    "try a lower --lr"
                )
            shown = f"loss {means.loss:.3f}  accuracy {means.accuracy:.3f}  {rate:,.0f} images/s"
            line.show(training.update, training.updates, shown)
            if epoch_ends or checkpoint:
                lines.append(
                    {
                        "update": training.update,
                        "epoch": training.update / training.updates_per_epoch,
                        "device": device_name(device),
                        "seconds": round(_since(began), 3),
                        "images_per_second": round(rate, 1),
                        "loss": means.loss,
                        "accuracy": means.accuracy,
                    }
                )
            if epoch_ends:
                lines[-1]["held_out_accuracy"] = training.held_out_accuracy()
            if checkpoint:
                write_atomically(folder / "metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in lines))
                write_atomically(folder / "checkpoint.safetensors", _bytes(training.tensors()))
                saved = time.perf_counter()
            looked, last_look = time.perf_counter(), training.update
    if training.update < training.updates:
        raise Stopped(folder, stop.received)
    return _since(began)


def _resume(training: Training, folder: Path) -> list[dict[str, Any]]:
    """Load the checkpoint, if there is one; the logged lines up to it."""
    path = folder / "checkpoint.safetensors"
    if not path.is_file():
        return []
    try:
        training.load(load_file(path))
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
        lines = [from_json(line) for line in text.splitlines()]
        return [line for line in lines if line["update"] <= training.update]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FewsureError(
            f"{path} or its metrics.jsonl is damaged ({error}); remove {folder} and begin anew"
        ) from error


def _finish(
    training: Training,
    folder: Path,
    pools: Mapping[Split, Pool],
    config: dict[str, Any],
    device: torch.device,
    seconds: float,
    *,
    quiet: bool,
) -> None:
    """Write features, weights and, last of all, the record that says that everything is there."""
    began = time.perf_counter() - seconds
    network = training.classifier.network
    total, before = sum(len(pools[split].examples) for split in SPLITS), 0
    with ProgressLine("extracting features", quiet=quiet) as line:

        def show(done: int) -> None:
            line.show(before + done, total, "images")

        for split in SPLITS:
            write_features(folder, split, extract(network, pools[split].examples, progress=show), pools[split])
            before += len(pools[split].examples)
    write_atomically(folder / "network.safetensors", _bytes(network.state_dict()))
    validation = load_features(folder, "validation")
    record = config | {
        "command": command_line(config["data"], training.recipe),
        "device": device_name(device),
        "precision": precision(device),
        "seconds": round(_since(began), 1),
        "features": network.body.outputs,
        "weights": sum(weight.numel() for weight in network.parameters()),
        "classes": {split: len(pools[split].classes) for split in SPLITS},
        "images": {split: len(pools[split].examples) for split in SPLITS},
        "held_out": {"images": training.held_out_images, "accuracy": training.held_out_accuracy()},
        "nearest_mean": [nearest_mean_accuracy(validation, shot=shot, tasks=TASKS) for shot in SHOTS],
    }
    write_atomically(folder / "features.json", json.dumps(record, indent=1) + "\n")


def _recorded(out: Path) -> dict[str, Any] | None:
    """What is known of the features in `out`: finished ones, or those that are being made."""
    work = work_folder(out)
    places = (out / "features.json", work / "features.json", work / "config.json")
    return next((_read(path) for path in places if path.is_file()), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = dict(from_json(path.read_text(encoding="utf-8")))
        written = record["format"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FewsureError(
            f"{path} cannot be read ({error}); make the features anew with `fewsure features`"
        ) from error
    if written != FORMAT:
        raise FewsureError(
            f"{path} has format {written!r} (version {record.get('version')}), but this version reads {FORMAT}; "
            "make the features anew with `fewsure features`"
        )
    return record


def _recipe(record: dict[str, Any], source: Path) -> Recipe:
    recipe = record.get("recipe")
    if not isinstance(recipe, dict):
        raise FewsureError(f"{source}: expected `recipe` to be an object, but got {recipe!r}; make the features anew")
    return from_record(Recipe, recipe, source=str(source))


def _bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})


def _since(moment: float) -> float:
    return time.perf_counter() - moment
