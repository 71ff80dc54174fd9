"""Is a run calibrated on easy and on hard classes? One temperature for all tasks beside one that depends on the task.

Both are learned from validation tasks, as when training ends. They are scored on other validation tasks: of all
validation classes, and of the half that the run tells apart better or worse. Test classes are not looked at.

    python notebook/task_temperature.py runs/cifar-fs-1shot/*/seed-0 > notebook/task-temperature.json
    python notebook/task_temperature.py --page
"""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewsure.core import streams
from fewsure.core.devices import device_name, find_device
from fewsure.core.files import write_atomically
from fewsure.data.classification import Classification
from fewsure.data.episodes import Episodes
from fewsure.data.pools import Pool, restrict
from fewsure.evaluation.calibrate import calibrate
from fewsure.evaluation.evaluate import BLOCK, UnseenBlock, score_blocks, shared_noise, with_noise
from fewsure.evaluation.metrics.calibration import binned, binned_errors
from fewsure.evaluation.metrics.scores import class_probabilities, negative_log_likelihood
from fewsure.evaluation.scoring import Predict
from fewsure.evaluation.temperature import Temperature
from fewsure.report.styles import display_name
from fewsure.training.experiment import Experiment
from fewsure.training.runs import Run
from fewsure.types import Facts, Noise, Parts, Task
from fewsure.version import __version__

HERE = Path(__file__).resolve().parent
TASKS = 200
SEED = 0
PARTS = {"all": "all", "easier": "easier half", "harder": "harder half"}
HOW = {"1": "none", "one": "one for all tasks", "by task": "by task"}


def main() -> None:
    """Print the figures as JSON, or write the page of those that are there."""
    if sys.argv[1:] == ["--page"]:
        write_atomically(HERE / "task-temperature.md", _page())
        return
    device = find_device("auto")
    print(json.dumps([_measured(Run.open(Path(folder)), device) for folder in sys.argv[1:]], indent=1))


def _measured(run: Run, device: torch.device) -> dict[str, Any]:
    began = time.perf_counter()
    experiment, meta = run.experiment, run.load(device).meta
    temperatures = {
        "1": Temperature(),
        "one": _learned(experiment, meta, device, exponent=0.0),
        "by task": _learned(experiment, meta, device, exponent=None),
    }
    pool = _data(experiment).tasks("validation", device).pool
    every = _recorded(experiment, meta, device, "all", pool)
    order = [pool.classes[number] for number in _accuracies(every, len(pool.classes)).argsort()]
    half = len(order) // 2
    halves = {"easier": order[half:], "harder": order[:half]}
    parts = {"all": every} | {
        part: _recorded(experiment, meta, device, part, restrict(pool, names)) for part, names in halves.items()
    }
    return {
        "algorithm": experiment.algorithm_name,
        "data": experiment.data_name,
        "shot": experiment.data.shot,
        "tasks": TASKS,
        "seed": SEED,
        "version": __version__,
        "device": device_name(device),
        "temperatures": {how: dataclasses.asdict(temperature) for how, temperature in temperatures.items()},
        "scores": {
            part: {how: _scores(records, temperature) for how, temperature in temperatures.items()}
            for part, records in parts.items()
        },
        "seconds": round(time.perf_counter() - began, 1),
    }


def _learned(experiment: Experiment, meta: Parts, device: torch.device, exponent: float | None) -> Temperature:
    data = dataclasses.replace(_data(experiment), softmax_temperature=None, temperature_exponent=exponent)
    found = calibrate(dataclasses.replace(experiment, data=data), meta, device)
    return Temperature(found["softmax_temperature"], found.get("temperature_exponent", 0.0))


def _data(experiment: Experiment) -> Classification:
    assert isinstance(experiment.data, Classification)
    return experiment.data


def _recorded(experiment: Experiment, meta: Parts, device: torch.device, part: str, pool: Pool) -> dict[str, Tensor]:
    """Outputs, labels and classes of tasks from a pool of validation classes."""
    data = _data(experiment)
    plain = dataclasses.replace(experiment, data=data.at_temperature_1)
    tasks = Episodes(pool, way=data.way, shot=data.shot, query=data.query)

    def blocks() -> Iterator[UnseenBlock]:
        for number in range(TASKS // BLOCK):
            generator = streams.generator(SEED, "task-temperature", part, number, device=device)
            yield with_noise(plain, tasks.sample(BLOCK, generator), {}, generator)

    shared = shared_noise(plain, SEED, "validation", device)
    return score_blocks(plain, meta, shared, blocks(), _record, lambda done: None)


def _record(predict: Predict, task: Task, facts: Facts, noise: Noise) -> dict[str, Tensor]:
    return {"outputs": predict(task.query.x), "y": task.query.y, "classes": facts["classes"]}


def _accuracies(records: dict[str, Tensor], classes: int) -> Tensor:
    """Of each class, over the tasks that have it."""
    right = torch.stack([class_probabilities(outputs).argmax(-1) for outputs in records["outputs"]]) == records["y"]
    of = records["classes"].long().gather(1, records["y"]).flatten()
    return torch.bincount(of, right.flatten().double(), minlength=classes) / torch.bincount(of, minlength=classes)


def _scores(records: dict[str, Tensor], temperature: Temperature) -> dict[str, float]:
    y = records["y"].flatten()
    probabilities = torch.cat([class_probabilities(temperature.divide(outputs)) for outputs in records["outputs"]])
    confidence, label = probabilities.max(-1)
    correct = label == y
    ece, mce = binned_errors(binned(confidence, correct))
    return {
        "accuracy": float(correct.double().mean()),
        "confidence": float(confidence.mean()),
        "ece": float(ece),
        "mce": float(mce),
        "nll": float(negative_log_likelihood(probabilities, y)),
    }


def _page() -> str:
    found = json.loads((HERE / "task-temperature.json").read_text(encoding="utf-8"))
    first = found[0]
    lines = [
        "# A temperature for each task",
        "",
        "Made by `python notebook/task_temperature.py` from `task-temperature.json`; edit neither by hand.",
        "",
        f"Runs on {first['data']}, {first['shot']}-shot, each with temperatures learned from its validation tasks.",
        f"Scores are of {first['tasks']} other tasks of all validation classes, and as many of the half that the",
        "run tells apart better or worse. One temperature is right for all classes together. On the easier half",
        "predictions are then not sure enough, on the harder half too sure. A temperature that falls with how sure the",
        "predictions of a task are together takes away a part of both errors; the rest cannot be seen from them.",
        "",
        "| method | classes | temperature | accuracy | mean confidence | ECE | NLL |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        for part, words in PARTS.items():
            for how, named in HOW.items():
                score = row["scores"][part][how]
                figures = (
                    f"{score['accuracy']:.3f} | {score['confidence']:.3f} | {score['ece']:.4f} | {score['nll']:.4f}"
                )
                lines.append(f"| {display_name(row['algorithm'])} | {words} | {named} | {figures} |")
    made = "; ".join(f"{display_name(row['algorithm'])}: {row['seconds']:.0f} s on {row['device']}" for row in found)
    return "\n".join([*lines, "", f"Seed {first['seed']}, version {first['version']}. {made}.", ""])


if __name__ == "__main__":
    main()
