"""Runs of older versions load, and do what they did."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fewsure import FewsureError, load
from fewsure.algorithms import ALGORITHMS
from fewsure.cli.main import main
from fewsure.core.config import field_types, to_record
from fewsure.data import DATA
from fewsure.pipeline import evaluate_run, train_run
from fewsure.training.experiment import GROUPS, load_preset
from fewsure.training.migrations import ADDED, with_todays_options
from fewsure.training.runs import FORMAT, Run

from .reliability.faults import CPU, ROOT

FIRST: dict[str, Any] = {
    "format": 1,
    "version": "0.1.0",
    "algorithm": {
        "name": "simpa",
        "inner_lr": 0.001,
        "inner_steps": 2,
        "first_order": True,
        "clip": "none",
        "kl": "moment",
        "kl_samples": 4,
        "form": "paper",
        "epsilon": 0.1,
        "sigma_theta": 1.0,
        "sigma_w": 1.0,
        "sigma_0": 1e-6,
        "warm_up_tasks": 0,
        "train_samples": 1,
        "latent": 3,
        "latent_noise": "uniform",
        "generator_hidden": [6],
        "critic_hidden": [5],
        "critic_lr": 0.001,
        "critic_steps": 1,
    },
    "data": {
        "name": "sine-line",
        "shot": 5,
        "query": 7,
        "noise_std": 0.3,
        "x_range": [-5.0, 5.0],
        "amplitude": [0.1, 5.0],
        "phase": [0.0, 3.141592653589793],
        "slope": [-3.0, 3.0],
        "intercept": [-3.0, 3.0],
        "sine_share": 0.5,
    },
    "network": {"hidden": [6]},
    "training": {
        "updates": 3,
        "tasks": 2,
        "lr": 0.001,
        "schedule": "cosine",
        "lr_warm_up": 0,
        "clip_norm": 10.0,
        "seed": 0,
        "chunk_size": None,
    },
    "preset": "recommended",
}
"""A config.json as the first version wrote it. It never changes: an option that is added later goes to ADDED."""


GAUSSIAN = ("inner_lr", "inner_steps", "first_order", "temperature", "kl_weight", "train_samples", "initial_std")
FIRST_OPTIONS = {
    "simpa": tuple(FIRST["algorithm"])[1:],
    "maml": ("inner_lr", "inner_steps", "first_order"),
    "abml": (*GAUSSIAN, "gamma_shape", "gamma_rate", "hyper_prior_tasks"),
    "vampire": GAUSSIAN,
    "platipus": (
        *("inner_lr", "inner_steps", "first_order", "kl_weight"),
        *("prior_std", "inference_std", "prior_lr", "inference_lr"),
    ),
    "bmaml": (
        *("particles", "inner_lr", "inner_steps", "first_order"),
        *("likelihood_scale", "prior_std", "chaser", "leader_steps"),
    ),
}
"""The options of each method in the first version that had it."""


FIRST_RUNS = ROOT / "tests" / "reliability" / "first_runs"
"""Run folders of commit 775c913, the first whose command line works: 12 updates, evaluated on 40 tasks. They never
change."""


@pytest.mark.parametrize("name", ["simpa", "maml"])
def test_a_run_that_the_first_version_wrote_scores_as_it_did(name: str, tmp_path: Path) -> None:
    run = Run.open(Path(shutil.copytree(FIRST_RUNS / name, tmp_path / "run")))
    then = run.evaluation()
    assert then is not None
    now = evaluate_run(run, CPU, tasks=40, seed=0, quiet=True)
    for score in ("mse", "nll"):
        assert now[score]["mean"] == pytest.approx(then[score]["mean"], rel=1e-5)


@pytest.mark.parametrize("name", ["simpa", "maml"])
def test_what_the_first_version_would_have_trained_is_trained_today(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(FIRST_RUNS / name / "config.json", folder)
    train_run(Run.open(folder), CPU, quiet=True)
    then, now = Run.open(FIRST_RUNS / name).load(CPU), Run.open(folder).load(CPU)
    assert (then.update, now.update) == (12, 12)
    for part, params in then.meta.items():
        for weight, value in params.items():
            torch.testing.assert_close(now.meta[part][weight], value, atol=1e-5, rtol=1e-4)


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(FIRST))
    return folder


def test_a_run_of_the_first_version_loads_and_trains_on(old_run: Path) -> None:
    experiment = Run.open(old_run).experiment
    assert experiment.training.precision == "float32"
    assert experiment.algorithm.weight_noise == 0.0  # type: ignore[attr-defined]
    assert experiment.start == "random"
    assert main(["train", "simpa", "--out", str(old_run), "--resume", "--device", "cpu", "--json"]) == 0
    adapted = load(old_run, device="cpu").adapt([-2.0, -1.0, 0.0, 1.0, 2.0], [-2.0, -1.0, 0.0, 1.0, 2.0])
    assert adapted.predict([0.5]).mean.shape == (1,)


def test_what_was_there_stays_as_it_is(old_run: Path) -> None:
    record = Run.open(old_run).experiment.record()
    for group in GROUPS:
        assert {name: record[group][name] for name in FIRST[group]} == FIRST[group]


def test_an_option_that_is_gone_is_forgotten_where_it_did_nothing_and_else_refused(
    old_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late: dict[str, Any] = {"clip_from": 0.0, "clip_lower": True}
    (old_run / "config.json").write_text(json.dumps(FIRST | {"algorithm": FIRST["algorithm"] | late}))
    assert not set(late) & set(Run.open(old_run).experiment.record()["algorithm"])
    late["clip_from"] = 0.7
    (old_run / "config.json").write_text(json.dumps(FIRST | {"algorithm": FIRST["algorithm"] | late}))
    Run.open(old_run)  # nothing is clipped in it
    late["clip"] = "hard"
    (old_run / "config.json").write_text(json.dumps(FIRST | {"algorithm": FIRST["algorithm"] | late}))
    assert main(["evaluate", str(old_run), "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "trained with `clip_from` = 0.7, an option that this version does not have" in line


@pytest.mark.parametrize("name", FIRST_OPTIONS)
def test_a_run_of_each_methods_first_version_loads(name: str, old_run: Path) -> None:
    now = to_record(ALGORITHMS[name]())
    record = {"name": name} | {option: now[option] for option in FIRST_OPTIONS[name]}
    (old_run / "config.json").write_text(json.dumps(FIRST | {"algorithm": record}))
    assert Run.open(old_run).experiment.algorithm_name == name


def test_every_added_option_is_one(old_run: Path) -> None:
    experiment = Run.open(old_run).experiment
    for group, option, _, kinds in ADDED:
        of_data = [getattr(DATA[kind], group) for kind in kinds] if group in ("data", "network") else []
        for options in of_data or [type(getattr(experiment, group))]:
            assert option in field_types(options)
        assert option not in FIRST[group]


def test_a_head_on_features_that_could_not_be_centred_was_not() -> None:
    record = load_preset("recommended", "maml", "features").record()
    assert record["network"].pop("centred")
    assert with_todays_options(record)["network"]["centred"] is False
    conv4 = load_preset("recommended", "maml", "omniglot").record()
    assert with_todays_options(conv4)["network"] == conv4["network"]


@pytest.mark.parametrize("written", [0, FORMAT + 1])
def test_another_format_is_refused_with_what_to_do(old_run: Path, written: int) -> None:
    (old_run / "config.json").write_text(json.dumps(FIRST | {"format": written, "version": "7.8"}))
    with pytest.raises(FewsureError, match=r"use fewsure 7\.8, or train the run anew"):
        Run.open(old_run)


def test_an_option_that_never_was_optional_is_missed(old_run: Path) -> None:
    training = {name: value for name, value in FIRST["training"].items() if name != "lr"}
    (old_run / "config.json").write_text(json.dumps(FIRST | {"training": training}))
    with pytest.raises(FewsureError, match="option `lr` is missing; was it written by another version"):
        Run.open(old_run)
