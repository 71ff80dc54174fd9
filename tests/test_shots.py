"""Any number of examples: a range of shots in training, any one number afterwards."""

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import fewsure
from fewsure.algorithms import ALGORITHMS
from fewsure.cli.main import main
from fewsure.core import streams
from fewsure.data.episodes import Episodes, RowTasks
from fewsure.data.own.arrays import classification_tasks, regression_tasks
from fewsure.data.pools import SPLITS, pool_of_rows
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.evaluation.calibrate import fitted_shots, with_fits
from fewsure.evaluation.evaluate import evaluate
from fewsure.networks.mlp import MlpOptions
from fewsure.training.experiment import Experiment, Training
from fewsure.training.loop import train
from fewsure.training.runs import Run
from fewsure.training.update import drawn_shot
from fewsure.types import Algorithm

from .helpers import REGRESSION, small_simpa

CPU = torch.device("cpu")


def experiment(algorithm: Algorithm, shot: object = "2-6", **training: object) -> Experiment:
    options = {"updates": 12, "tasks": 3} | training
    data = SineLine(query=6, shot=shot)  # type: ignore[arg-type]
    return Experiment(algorithm, data, MlpOptions((5,)), Training(**options), "none")  # type: ignore[arg-type]


def small(name: str) -> Algorithm:
    return small_simpa() if name == "simpa" else ALGORITHMS[name]()


def sized_rows(sizes: list[int]) -> RowTasks:
    labels = np.repeat([f"task {number}" for number in range(len(sizes))], sizes)
    rows = np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2)
    return RowTasks(pool_of_rows(Path("here"), rows, labels, np.full(len(labels), "")), shot=1, query=2)


def test_the_share_of_forecasts_has_rows_that_follow_one_another_from_anywhere_in_their_task() -> None:
    sizes = [7, 12]
    pool, first = sized_rows(sizes).pool, {0: 0.0, 1: 14.0}
    task, facts = RowTasks(pool, shot=3, query=2, forecast=0.4).sample(2000, streams.generator(0, "forecast"))
    rows = torch.cat([task.support.x, task.query.x], 1).squeeze(-1)
    follow = (rows.diff(dim=1) == 2).all(1)  # the first of two numbers in each row
    by_chance = 3 / (7 * 6 * 5 * 4 * 3)
    assert float(follow.double().mean()) == pytest.approx(0.4 + 0.6 * by_chance, abs=0.03)
    for group, size in enumerate(sizes):
        starts = rows[follow & (facts["groups"].squeeze(-1) == group)][:, 0]
        assert set(starts.tolist()) == {first[group] + 2 * place for place in range(size - 5 + 1)}
    again, _ = RowTasks(pool, shot=3, query=2).sample(2000, streams.generator(0, "forecast"))
    assert not bool(((torch.cat([again.support.x, again.query.x], 1).squeeze(-1).diff(dim=1) == 2).all(1)).sum() > 20)


def test_small_numbers_are_drawn_more_often_and_depend_on_the_seed_and_the_update_alone() -> None:
    over = experiment(ALGORITHMS["maml"](), "1-10")
    drawn = [drawn_shot(over, update) for update in range(20_000)]
    shares = {shot: count / len(drawn) for shot, count in Counter(drawn).items()}
    for shot in range(1, 11):
        assert shares[shot] == pytest.approx(math.log(1 + 1 / shot) / math.log(11), abs=0.012)
    assert drawn[:50] == [drawn_shot(over, update) for update in range(50)]
    other = dataclasses.replace(over, training=dataclasses.replace(over.training, seed=1))
    assert drawn[:50] != [drawn_shot(other, update) for update in range(50)]
    assert {drawn_shot(experiment(ALGORITHMS["maml"](), 5), update) for update in range(50)} == {5}


@pytest.mark.parametrize("form", ["2-6", (2, 6), [2, 6]])
def test_a_range_is_given_in_any_form_and_recorded(form: object, tmp_path: Path) -> None:
    chosen = experiment(ALGORITHMS["maml"](), form)
    assert (chosen.data.shot, chosen.data.training_shots, chosen.data.test_shot) == ((2, 6), (2, 6), 4)
    Run.create(tmp_path / "run", chosen)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["shot"] == [2, 6]
    assert Run.open(tmp_path / "run").experiment == chosen
    assert SineLine(shot="3-3") == SineLine(shot=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["6-2", "a-b", "1-2-3", 1.5, True, (1, 2, 3), "0-3"])
def test_a_wrong_range_is_refused(wrong: object) -> None:
    with pytest.raises(FewsureError, match="expected `shot` to be"):
        SineLine(shot=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", REGRESSION)
def test_every_method_trains_over_a_range_and_is_evaluated_at_any_number(name: str, tmp_path: Path) -> None:
    algorithm = small(name)
    updates = 2 if algorithm.init(experiment(algorithm).model, streams.generator(0, "init")) else 0
    run = Run.create(tmp_path / "run", experiment(algorithm, (2, 5), updates=updates))
    meta = train(run, CPU)
    for shot in (1, 3, 9):
        found = run.experiment.with_shot(max(shot, algorithm.min_support))
        summary, records = evaluate(found, meta, tasks=20, seed=0)
        assert summary["shot"] == found.data.shot
        assert bool(records["nll"].isfinite().all())


def test_a_resumed_run_over_a_range_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = Run.create(tmp_path / "whole", experiment(small_simpa()))
    train(whole, CPU)
    parts = Run.create(tmp_path / "parts", experiment(small_simpa()))
    calls = iter(range(100))
    train(parts, CPU, stop=lambda: next(calls) == 4)
    train(parts, CPU)
    first, second = ((run.folder / "checkpoint.safetensors").read_bytes() for run in (whole, parts))
    assert first == second


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")
def test_recorded_updates_of_several_sizes_equal_eager_ones(tmp_path: Path) -> None:
    results = []
    for recorded in (True, False):
        chosen = experiment(ALGORITHMS["maml"](), updates=80, cuda_graph=recorded)
        results.append(train(Run.create(tmp_path / str(recorded), chosen), torch.device("cuda")))
    for name, value in results[0]["weights"].items():
        torch.testing.assert_close(value, results[1]["weights"][name])


def test_a_task_with_more_examples_is_drawn_from_what_is_large_enough() -> None:
    tasks = sized_rows([3, 5, 9])
    for shot, large in ((1, {0, 1, 2}), (3, {1, 2}), (7, {2})):
        task, facts = tasks.with_shot(shot).sample(60, streams.generator(0, "test"))
        assert task.support.x.shape == (60, shot, 1)
        assert set(facts["groups"].flatten().tolist()) == large
    with pytest.raises(FewsureError, match=r"takes 10 rows .* but the largest has 9; lower --shot"):
        tasks.with_shot(8)
    pool = tasks.pool
    classes = Episodes(pool, way=2, shot=1, query=2)
    _, facts = classes.with_shot(3).sample(60, streams.generator(0, "test"))
    assert set(facts["classes"].flatten().tolist()) == {1, 2}
    with pytest.raises(FewsureError, match=r"takes 2 classes with 9 examples .* but there are 1"):
        classes.with_shot(7)
    one, two = (each.sample(9, streams.generator(3, "test"))[0] for each in (classes, classes.with_shot(1)))
    assert torch.equal(one.support.x, two.support.x)


def test_what_is_held_out_does_not_depend_on_the_number_of_examples() -> None:
    random = np.random.default_rng(0)
    tasks = [(random.normal(size=(n, 1)), random.normal(size=n)) for n in random.integers(4, 30, size=40)]
    data = regression_tasks(tasks, shot=(1, 10), query=3).prepared()
    all_of = {split: set(data.with_shot(1).pool(split).classes) for split in SPLITS}
    for shot in (3, 10, 20):
        for split in SPLITS:
            assert set(data.with_shot(shot).pool(split).classes) <= all_of[split]


def test_a_learner_over_a_range_adapts_to_any_number_and_says_where_it_has_not_trained() -> None:
    random = np.random.default_rng(0)
    tasks = [(random.normal(size=(24, 2)), random.normal(size=24)) for _ in range(20)]
    learner = fewsure.Learner("maml", data=tasks, shot="1-6", query=4, hidden=(4,)).train(updates=3, quiet=True)
    for count in (1, 4, 6):
        assert learner.adapt(*(part[:count] for part in tasks[0])).predict(tasks[0][0]).mean.shape == (24,)
    with pytest.warns(UserWarning, match="trained with 1 to 6 examples, but got 9; .* --shot 9"):
        learner.adapt(*(part[:9] for part in tasks[0]))
    assert learner.evaluate(tasks=20, shot=8, quiet=True)["shot"] == 8
    assert learner.evaluate(tasks=20, quiet=True)["shot"] == 3
    with pytest.raises(FewsureError, match="takes 34 rows"):
        learner.evaluate(tasks=20, shot=30, quiet=True)


def test_classes_are_learned_over_a_range_of_examples_of_each() -> None:
    random = np.random.default_rng(0)
    tasks = [(random.normal(size=(24, 2)), np.arange(24) % 2) for _ in range(20)]
    data = classification_tasks(tasks, shot=2, train_shot="1-4", query=4)
    assert (data.training_shots, data.test_shot, data.with_shot(3).training_shots) == ((1, 4), 2, (3, 3))
    ranged = classification_tasks(tasks, shot="1-4", query=4)
    learner = fewsure.Learner("protonet", data=ranged, hidden=(4,)).train(updates=3, quiet=True)
    assert learner.evaluate(tasks=20, shot=6, quiet=True)["shot"] == 6


def test_sets_are_those_of_a_certified_number_of_examples_or_of_the_nearest_smaller_one(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    slopes = random.normal(size=(60, 2))
    inputs = random.normal(size=(60, 20, 2))
    tasks = [(x, x @ slope + random.normal(size=20)) for x, slope in zip(inputs, slopes, strict=True)]
    learner = fewsure.Learner("maml", data=tasks, shot="1-6", query=4, hidden=(4,)).train(updates=3, quiet=True)
    with pytest.raises(FewsureError, match="lower --shot or --query"):
        learner.certify(shot=(2, 400), alpha=0.2, quiet=True)
    assert not list(learner.folder.glob("conformal-*"))
    record = learner.certify(shot=(2, 5), alpha=0.2, quiet=True)
    assert [one["shot"] for one in (record, *record["also"])] == [2, 5]
    assert json.loads((learner.folder / "certificate.json").read_text()) == record
    x, y = tasks[0]
    exact, more = learner.adapt(x[:5], y[:5]), learner.adapt(x[:6], y[:6])
    found = more.predict(x, coverage=0.8)
    assert (exact.predict(x, coverage=0.8).certified_examples, found.certified_examples) == (5, 5)
    fewer, calibration = more.certified()
    assert (calibration.shot, fewer.counts) == (5, (5,))
    assert np.array_equal(fewer.predict(x, coverage=0.8).lower, found.lower)
    assert not np.array_equal(found.mean, fewer.predict(x).mean)  # the prediction is that of all examples
    more.save(tmp_path / "task.safetensors")
    read = learner.load_adapted(tmp_path / "task.safetensors").predict(x, coverage=0.8)
    assert np.array_equal(read.lower, found.lower)
    assert learner.adapt(x[:3], y[:3]).predict(x, coverage=0.8).certified_examples == 2
    with pytest.raises(FewsureError, match=r"certified for 2 and 5 examples, but got 1; run `fewsure certify .* 1`"):
        learner.adapt(x[:1], y[:1]).predict(x, coverage=0.8)


def test_sets_of_classes_with_different_numbers_of_examples_take_as_many_of_each() -> None:
    random = np.random.default_rng(0)
    tasks = [(random.normal(size=(24, 2)) + 3 * (np.arange(24) % 2)[:, None], np.arange(24) % 2) for _ in range(60)]
    data = classification_tasks(tasks, shot="1-4", query=4)
    learner = fewsure.Learner("protonet", data=data, hidden=(4,)).train(updates=3, quiet=True)
    learner.certify(shot=2, alpha=0.2, quiet=True)
    x, y = tasks[0]
    adapted = learner.adapt(x[:7], y[:7])
    assert adapted.counts == (4, 3)
    assert adapted.certified()[0].counts == (2, 2)
    assert len(adapted.predict(x, coverage=0.8).sets) == 24


def test_data_of_your_own_are_learned_over_1_to_10_examples_or_what_they_allow() -> None:
    def tasks(sizes: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(np.arange(float(size)), np.arange(float(size))) for size in sizes]

    assert regression_tasks(tasks([30] * 9)).prepared().shot == (1, 10)
    assert regression_tasks(tasks([30] * 9), query=25).prepared().shot == (1, 5)
    assert regression_tasks(tasks([12] * 20), shot="1-10", query=4).prepared().shot == (1, 8)
    assert regression_tasks(tasks([12] * 20), shot=5, query=4).prepared().shot == 5
    with pytest.raises(FewsureError, match=r"takes 13 rows .* has 12; lower --shot or --query"):
        regression_tasks(tasks([12] * 20), shot=9, query=4).prepared()
    learner = fewsure.Learner("simpa", data=tasks([30] * 9), hidden=(4,))  # which needs two examples
    assert learner.experiment.data.shot == (2, 10)
    training = learner.experiment.training
    assert (training.keep_best, training.patience) == (100, 10)
    assert fewsure.Learner("simpa", hidden=(4,)).experiment.training.keep_best == 0


def test_noise_and_temperature_depend_on_the_number_of_examples() -> None:
    over = experiment(ALGORITHMS["maml"](), "1-16")
    assert fitted_shots(over) == [1, 2, 4, 8, 16]
    assert fitted_shots(over.with_shot(5)) == [5]
    over = dataclasses.replace(over, data=regression_tasks([(np.arange(9.0), np.arange(9.0))] * 9, shot="1-3"))
    fits = {1: {"noise_std": 0.8}, 4: {"noise_std": 0.2}, 16: {"noise_std": 0.1}}
    for shot, noise_std in {1: 0.8, 2: 0.4, 4: 0.2, 8: math.sqrt(0.02), 16: 0.1, 40: 0.1}.items():
        found = with_fits(over, fits, shot).data
        assert (found.shot, found.noise_std) == (shot, pytest.approx(noise_std))


def test_the_noise_of_a_learner_is_wider_for_fewer_examples(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    offsets = 5 * random.normal(size=80)
    tasks = [(random.normal(size=20), offset + 0.1 * random.normal(size=20)) for offset in offsets]
    options = {"hidden": (), "inner_lr": 0.1, "inner_steps": 5, "shot": "1-10", "query": 5}
    learner = fewsure.Learner("maml", data=tasks, updates=30, **options).train(quiet=True)
    fits = json.loads((learner.folder / "fitted.json").read_text())
    assert list(fits) == ["1", "2", "3", "6", "10"]
    x, y = tasks[0]
    few, many = (learner.adapt(x[:count], y[:count]).predict(x[10:]).noise_std[0] for count in (1, 10))
    assert (few, many) == (pytest.approx(fits["1"]["noise_std"]), pytest.approx(fits["10"]["noise_std"]))
    assert learner.evaluate(tasks=20, shot=2, quiet=True)["noise_std"] == pytest.approx(fits["2"]["noise_std"])


def test_ranges_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    options = ["--updates", "3", "--tasks", "2", "--query", "4", "--hidden", "4", "--out", run, "--json"]
    assert main(["train", "maml", "--shot", "4-110", *options]) == 0
    assert main(["evaluate", run, "--tasks", "20", "--shot", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["shot"] == 7
    assert main(["evaluate", run, "--tasks", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["shot"] == 57
    assert main(["certify", run, "--tasks", "20", "--shot", "3", "9", "--json"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["shot"] for one in (record, *record["also"])] == [3, 9]
    assert main(["certify", run, "--tasks", "20", "--shot", "3", "9"]) == 0
    assert capsys.readouterr().out.count("held-out certificate") == 2
    assert main(["train", "maml", "--shot", "9-4", *options]) == 2
    assert "invalid number or range value: '9-4'" in capsys.readouterr().err
