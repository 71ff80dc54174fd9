"""What README and docs claim of the committed results holds in them, and the pages are what the JSON says."""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from fewsure.algorithms import ALGORITHMS
from fewsure.report.reference import SINE_LINE_5_SHOT, TABLE_1
from fewsure.report.styles import display_name
from fewsure.reproduce.page import results_page
from fewsure.reproduce.results import read_results
from fewsure.reproduce.targets import TARGETS
from fewsure.training.experiment import load_preset

ROOT = Path(__file__).resolve().parents[1]
ROWS = json.loads((ROOT / "results" / "regression.json").read_text())
ABLATION = json.loads((ROOT / "results" / "ablation.json").read_text())
EXACT = json.loads((ROOT / "results" / "exact_posterior.json").read_text())
TRIED = json.loads((ROOT / "results" / "exploration.json").read_text())["runs"]
METHODS = sorted({row["algorithm"] for row in ROWS})
PROBABILISTIC = [method for method in METHODS if method != "maml"]


def of(method: str) -> list[dict]:
    return [row for row in ROWS if row["algorithm"] == method]


def average(method: str, *keys: str) -> float:
    def value(row: dict) -> float:
        for key in keys:
            row = row[key]
        return float(row)  # type: ignore[arg-type]

    return mean(value(row) for row in of(method))


def ablated(variant: str, key: str) -> float:
    rows = [row for row in ABLATION if row["label"] == variant]
    return mean(row[key]["mean"] if isinstance(row[key], dict) else row[key] for row in rows)


@pytest.mark.parametrize("method", PROBABILISTIC)
def test_every_probabilistic_method_beats_mamls_ece_beyond_its_interval(method: str) -> None:
    assert max(row["ece_ci95"][1] for row in of(method)) < min(row["ece_ci95"][0] for row in of("maml"))


def test_simpa_has_the_lowest_error_and_better_calibration_than_the_paper_prints() -> None:
    best_seeds = [min(row["mse"]["mean"] for row in of(other)) for other in METHODS if other != "simpa"]
    assert average("simpa", "mse", "mean") < 0.6 * min(best_seeds)
    assert average("simpa", "ece") < min(printed.ece for printed in SINE_LINE_5_SHOT.values())
    assert average("simpa", "mce") < min(printed.mce for printed in SINE_LINE_5_SHOT.values())
    assert average("simpa", "mse", "mean") < SINE_LINE_5_SHOT["simpa"].mse


def test_bmaml_has_the_lowest_nll_and_simpa_follows() -> None:
    by_nll = sorted(METHODS, key=lambda method: average(method, "nll", "mean"))
    assert by_nll[:2] == ["bmaml", "simpa"]


def test_simpa_has_the_lowest_ece_and_mce_of_all_methods_by_far_on_every_seed() -> None:
    for score in ("ece", "mce"):
        others = [row[score] for row in ROWS if row["algorithm"] != "simpa"]
        assert max(row[score] for row in of("simpa")) < 0.5 * min(others)


def test_the_exact_posterior_scores_about_a_tenth_of_ece_and_a_sixth_of_simpas_error() -> None:
    assert 0.10 < EXACT["ece"] < 0.11
    assert 5 < average("simpa", "mse", "mean") / EXACT["mse"]["mean"] < 7


def test_no_seed_of_maml_has_a_runaway_task_since_inner_gradients_are_limited() -> None:
    assert len(of("maml")) == 3
    assert max(row["mse"]["ci95"] for row in of("maml")) < 0.3


def test_all_rows_come_from_one_budget_with_the_same_number_of_tasks() -> None:
    assert {(row["updates"], row["tasks"], row["device"]) for row in ROWS} == {(3000, 1000, "NVIDIA H200")}
    assert [len(of(method)) for method in ("simpa", "maml")] == [3, 3]
    assert max(row["train_seconds"] for row in of("simpa")) < 90
    assert all({"version", "seed", "seconds", "train_seconds", "preset", "train_seed"} <= set(row) for row in ROWS)


def test_the_ablation_gives_the_reasons_for_the_defaults() -> None:
    assert min(ablated(clip, "mse") for clip in ("clip-hard", "clip-bounded")) > 100 * ablated("base", "mse")
    assert ablated("kl-critic", "mse") > 3 * ablated("base", "mse")
    assert ablated("kl-none", "ece") > ablated("base", "ece") + 0.02
    assert ablated("first-order", "mse") > 1.3 * ablated("base", "mse")
    assert ablated("one-sample-of-w", "mse") > 10 * ablated("base", "mse")
    assert ablated("generator-of-the-paper", "mse") > ablated("base", "mse")
    assert ablated("ten-inner-steps", "ece") < ablated("base", "ece") - 0.01
    assert ablated("ten-inner-steps", "mse") < 0.9 * ablated("base", "mse")


def test_late_clipping_widens_the_posterior_of_a_trained_run() -> None:
    runs = [run for run in TRIED if run["stage"] == "from a trained run" and run["changed"].get("clip") is not None]
    plain = [run for run in TRIED if run["stage"] == "from a trained run" and run["changed"] == {}]
    assert max(run["ece"] for run in runs) < min(run["ece"] for run in plain) - 0.02


def test_noise_on_weights_lowers_ece_and_nll_at_no_cost_in_error() -> None:
    plain, *noisy = sorted(
        (run for run in TRIED if run["stage"] == "weight noise"), key=lambda run: run["changed"].get("weight_noise", 0)
    )
    assert plain["changed"] == {}
    assert max(run["ece"] for run in noisy) < 0.75 * plain["ece"]
    assert max(run["nll"] for run in noisy) < plain["nll"]
    assert max(run["mse"] for run in noisy) < 1.02 * plain["mse"]


def least(score: dict[str, float]) -> float:
    return score["mean"] - score["ci95"]


def most(score: dict[str, float]) -> float:
    return score["mean"] + score["ci95"]


def by_method(target: str) -> dict[str, dict[str, Any]]:
    return {row["algorithm"]: row for row in read_results(ROOT / "results" / f"{target}.json")}


def test_bmaml_with_one_shot_of_cifar_fs_is_ahead_of_simpa() -> None:
    rows = by_method("cifar-fs-1shot")
    bmaml, *others = (rows[name] for name in ("bmaml", "simpa", "maml", "protonet"))
    assert least(bmaml["accuracy"]) > max(most(row["accuracy"]) for row in others)
    assert most(bmaml["nll"]) < min(least(row["nll"]) for row in others)
    assert bmaml["ece_ci95"][1] < rows["simpa"]["ece_ci95"][0]


def test_bmaml_with_five_shots_is_half_a_point_to_a_point_ahead_of_simpa_and_its_ece_is_no_better() -> None:
    rows = by_method("cifar-fs-5shot")
    bmaml, simpa = rows["bmaml"], rows["simpa"]
    assert most(bmaml["nll"]) < min(least(row["nll"]) for name, row in rows.items() if name != "bmaml")
    assert 0.005 < bmaml["accuracy"]["mean"] - simpa["accuracy"]["mean"] < 0.01
    assert bmaml["ece"] > simpa["ece"]


def test_methods_of_one_gaussian_are_behind_maml_on_cifar_fs_with_the_largest_step_or_the_least_noise_tried() -> None:
    for shot, option, extreme in (("1shot", "inner_lr", max), ("5shot", "initial_std", min)):
        rows = by_method(f"cifar-fs-{shot}")
        for name in ("abml", "platipus", "vampire"):
            noise = "prior_std" if name == "platipus" and option == "initial_std" else option
            assert most(rows[name]["accuracy"]) < least(rows["maml"]["accuracy"])
            tried = {trial["trial"]: trial["options"]["algorithm"][noise] for trial in rows[name]["trials"]}
            assert tried[int(rows[name]["preset"].split()[-1])] == extreme(tried.values())
    assert rows["maml"]["accuracy"]["mean"] - rows["vampire"]["accuracy"]["mean"] < 0.01
    one_shot = by_method("cifar-fs-1shot")
    vampire = one_shot.pop("vampire")
    assert vampire["ece_ci95"][1] < min(row["ece_ci95"][0] for row in one_shot.values())


def simpa_and_maml(target: str) -> tuple[dict, dict]:
    rows = {row["algorithm"]: row for row in json.loads((ROOT / "results" / f"{target}.json").read_text())}
    assert rows["simpa"]["updates"] == rows["maml"]["updates"]
    return rows["simpa"], rows["maml"]


def test_simpa_on_omniglot_is_the_most_accurate_of_all_methods_and_bmaml_follows() -> None:
    rows = by_method("omniglot")
    assert set(rows) == set(ALGORITHMS)
    facts = ("tasks", "updates", "train_on_validation", "transductive")
    assert {tuple(row[name] for name in facts) for row in rows.values()} == {(100_000, 8000, True, True)}
    simpa, bmaml, protonet, *_ = ranked = sorted(rows.values(), key=lambda row: -row["accuracy"]["mean"])
    assert [row["algorithm"] for row in ranked[:3]] == ["simpa", "bmaml", "protonet"]
    for ahead, behind in ((simpa, bmaml), (bmaml, protonet)):
        assert least(ahead["accuracy"]) > most(behind["accuracy"])
        assert most(ahead["nll"]) < least(behind["nll"])
    assert simpa["accuracy"]["mean"] - bmaml["accuracy"]["mean"] < 0.001
    assert bmaml["accuracy"]["mean"] - protonet["accuracy"]["mean"] > 0.005
    assert least(simpa["accuracy"]) > 0.984
    assert least(simpa["accuracy"]) > max(printed.accuracy for printed in TABLE_1["omniglot", 1].values())
    tuned = [min(trial["nll"]["mean"] for trial in row["trials"]) for row in (simpa, bmaml)]
    assert tuned[0] == pytest.approx(tuned[1], abs=1e-4)  # on validation classes they are equals
    assert simpa["components"] == bmaml["samples"] == 5
    assert simpa["train_seconds"] < 95
    assert simpa["seconds"] < 70  # 100,000 tasks with 32 samples each


@pytest.mark.parametrize(("target", "score"), [("omniglot", "nll"), ("cifar-fs-5shot", "nll"), ("ablation", "ece")])
def test_entries_of_a_page_are_in_the_order_of_what_it_says(target: str, score: str) -> None:
    rows = read_results(ROOT / "results" / f"{target}.json")
    page = results_page(rows, [], target)
    assert f"\nIn the order of {score.upper()}" in page

    def average(name: str) -> float:
        of_entry = [row[score] for row in rows if name in (row["label"], display_name(row["label"]))]
        return mean(value["mean"] if isinstance(value, dict) else value for value in of_entry)

    table = page.split("| --- |", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    averages = [average(line.split(" | ")[0].removeprefix("| ")) for line in table]
    assert averages == sorted(averages)
    assert len(averages) == len({row["label"] for row in rows})


@pytest.mark.parametrize("method", ALGORITHMS)
def test_the_recommended_preset_of_omniglot_is_the_best_trial_of_each_method(method: str) -> None:
    best = min(by_method("omniglot")[method]["trials"], key=lambda trial: trial["nll"]["mean"])
    preset, tried = load_preset("recommended", method, "omniglot"), TARGETS["omniglot"].trials(method)
    assert dataclasses.replace(tried[best["trial"]], preset="recommended") == preset


def test_every_method_on_omniglot_is_calibrated_but_for_rare_predictions() -> None:
    rows = by_method("omniglot")
    assert max(row["ece_ci95"][1] for row in rows.values()) < 0.004
    assert min(rows, key=lambda name: rows[name]["ece"]) == "maml"
    simpa = rows.pop("simpa")
    assert simpa["ece_ci95"][0] > max(row["ece_ci95"][1] for row in rows.values())
    for row, off in ((simpa, 0.06), (rows["bmaml"], 0.05)):
        bins = zip(*(row["reliability"][key] for key in ("confidence", "accuracy", "weight")), strict=True)
        rare = [(seen - said, weight) for said, seen, weight in bins if said and 0.6 < said < 0.9]
        assert 0 < min(rare)[0] < max(rare)[0] == pytest.approx(off, abs=0.002)
        assert row["mce"] == pytest.approx(max(rare)[0])
        assert 0.04 < sum(weight for _, weight in rare) < 0.05


@pytest.mark.parametrize("shot", ["1shot", "5shot"])
def test_a_mixture_on_cifar_fs_is_two_points_ahead_of_maml_with_a_lower_nll_and_a_larger_ece(shot: str) -> None:
    simpa, maml = simpa_and_maml(f"cifar-fs-{shot}")
    assert simpa["components"] == 3
    assert simpa["accuracy"]["mean"] > maml["accuracy"]["mean"] + 0.02
    assert simpa["nll"]["mean"] + simpa["nll"]["ci95"] < maml["nll"]["mean"] - maml["nll"]["ci95"]
    assert 0.02 > simpa["ece"] > maml["ece"]
    assert simpa["mce"] < 0.06
    assert simpa["train_seconds"] < 300


@pytest.mark.parametrize("shot", ["1shot", "5shot"])
def test_several_networks_are_the_most_accurate_on_cifar_fs_and_simpa_not_quite_sure_enough_of_test_classes(
    shot: str,
) -> None:
    rows = read_results(ROOT / "results" / f"cifar-fs-{shot}.json")
    assert {row["algorithm"] for row in rows} == set(ALGORITHMS)
    ranked = sorted(rows, key=lambda row: -row["accuracy"]["mean"])
    assert [row["algorithm"] for row in ranked[:2]] == ["bmaml", "simpa"]
    for ahead, behind in pairwise(ranked[:3]):
        assert least(ahead["accuracy"]) > most(behind["accuracy"])
    assert all(row["temperature_exponent"] > 0 for row in rows)
    simpa = next(row for row in rows if row["algorithm"] == "simpa")
    bins = zip(*(simpa["reliability"][name] for name in ("weight", "accuracy", "confidence")), strict=True)
    assert sum(weight * (seen - said) for weight, seen, said in bins if said) > 0.5 * simpa["ece"]


def test_a_temperature_that_depends_on_the_task_suits_easy_and_hard_classes_better_than_one_for_all() -> None:
    rows = json.loads((ROOT / "results" / "task-temperature.json").read_text())
    assert {row["algorithm"] for row in rows} == {"simpa", "maml", "protonet"}
    for scores in (row["scores"] for row in rows):
        for half in ("easier", "harder"):
            assert scores[half]["by task"]["ece"] < 0.65 * scores[half]["one"]["ece"]
        assert scores["easier"]["one"]["confidence"] < scores["easier"]["one"]["accuracy"] - 0.04
        assert scores["harder"]["one"]["confidence"] > scores["harder"]["one"]["accuracy"] + 0.04
        assert scores["all"]["by task"]["nll"] < scores["all"]["one"]["nll"] < scores["all"]["1"]["nll"]


def test_with_a_temperature_that_depends_on_the_task_simpas_ece_on_cifar_fs_is_a_third_lower_and_more() -> None:
    for shot in (1, 5):
        before = next(
            run
            for run in TRIED
            if "third round" in str(run["changed"].get("tasks"))
            and run["method"] == "simpa"
            and run["changed"].get("shot", 1) == shot
        )
        assert simpa_and_maml(f"cifar-fs-{shot}shot")[0]["ece"] < 0.65 * before["ece"]


def test_what_changed_on_cifar_fs_gained_two_points_and_more() -> None:
    rounds = [
        run for run in TRIED if run["stage"] == "photographs" and "first round" in str(run["changed"].get("tasks"))
    ]
    for run in (run for run in rounds if run["method"] != "protonet"):
        of = dict(zip(("simpa", "maml"), simpa_and_maml(f"cifar-fs-{run['changed'].get('shot', 1)}shot"), strict=True))
        assert 0.015 < of[run["method"]]["accuracy"]["mean"] - run["accuracy"] < 0.06
    assert len(rounds) == 5


def test_without_a_kl_a_generator_around_the_networks_weights_makes_one_network() -> None:
    tried = [run for run in TRIED if run["stage"] == "photographs" and "spread" in run]
    around = [run for run in tried if "initial_weights" in run["changed"] and "weight_noise" not in run["changed"]]
    noisy = [run for run in tried if "weight_noise" in run["changed"]]
    assert len(around) >= 4
    assert all(run["spread"] < 1e-3 and abs(run["accuracy"] - run["one"]) < 1e-3 for run in around)
    assert all(run["accuracy"] > run["one"] for run in noisy)
    long = {str(run["changed"].get("weight_noise", 0)): run["nll"] for run in tried if run["updates"] == 12_000}
    assert long["0"] < long["0.005"] < long["0.01"] < long["0.02"]


def on_features(target: str) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """The rows of each method, best first, and what the nearest class mean reaches alone and with sets centred."""
    rows = json.loads((ROOT / "results" / f"features-{target}.json").read_text())
    of: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: -row["accuracy"]["mean"]):
        assert row["transductive"]
        of.setdefault(row["algorithm"], []).append(row)
    assert len(of["simpa"]) == len(of["maml"]) == len(of["protonet"]) == 3
    return of, {name: rows[0][name]["accuracy"] for name in ("nearest_mean", "nearest_mean_centred")}


@pytest.mark.parametrize("target", ["cifar-fs-1shot", "cifar-fs-5shot", "tiny-tiered-1shot", "tiny-tiered-5shot"])
def test_every_seed_of_simpa_on_features_reaches_the_nearest_class_mean_and_is_calibrated(target: str) -> None:
    of, nearest = on_features(target)
    assert all(row["components"] == 4 and row["ece_ci95"][1] < 0.03 for row in of["simpa"])
    alone, centred = nearest["nearest_mean"], nearest["nearest_mean_centred"]
    least, most = of["simpa"][-1]["accuracy"]["mean"], of["simpa"][0]["accuracy"]["mean"]
    assert least > alone["mean"] + (-alone["ci95"] if target == "tiny-tiered-5shot" else alone["ci95"])
    if target.endswith("1shot"):
        assert least > centred["mean"] + centred["ci95"]
    else:
        assert most < centred["mean"] - centred["ci95"]
    assert of["simpa"][-1]["accuracy"]["mean"] > of["protonet"][0]["accuracy"]["mean"] + 0.03


def test_on_features_of_cifar_fs_with_one_shot_simpa_is_the_most_accurate_and_best_calibrated() -> None:
    of, _ = on_features("cifar-fs-1shot")
    averages = {
        name: (mean(row["accuracy"]["mean"] for row in rows), -mean(row["ece"] for row in rows))
        for name, rows in of.items()
    }
    for number in range(2):
        assert max(averages, key=lambda name: averages[name][number]) == "simpa"
    assert of["simpa"][-1]["accuracy"]["mean"] > of["maml"][0]["accuracy"]["mean"]
    assert max(row["nll"]["mean"] for row in of["simpa"]) < min(row["nll"]["mean"] for row in of["maml"])
    assert averages["simpa"][0] - averages["bmaml"][0] < 0.002


@pytest.mark.parametrize("target", ["cifar-fs-5shot", "tiny-tiered-1shot", "tiny-tiered-5shot"])
def test_on_other_features_simpa_is_mamls_equal_and_bmaml_a_little_ahead(target: str) -> None:
    of, _ = on_features(target)
    simpa, maml = (mean(row["accuracy"]["mean"] for row in of[name]) for name in ("simpa", "maml"))
    assert abs(simpa - maml) < 0.002
    assert 0.001 < of["bmaml"][0]["accuracy"]["mean"] - simpa < 0.006
    if target == "cifar-fs-5shot":
        assert max(row["nll"]["mean"] for row in of["simpa"]) < min(row["nll"]["mean"] for row in of["maml"]) - 0.003


def test_simpa_is_about_one_to_two_points_more_accurate_where_its_head_sees_each_set_without_its_mean() -> None:
    scored = {"centred", "softmax_temperature", "temperature_exponent"}
    of: dict[str, dict[str, float]] = {}
    for run in TRIED:
        if run["method"] == "simpa" and "tasks" not in run["changed"] and run["stage"].startswith("features, "):
            options = {name: value for name, value in run["changed"].items() if name not in scored}
            of.setdefault(run["stage"], {})[str(sorted(options.items())) + str(run["updates"])] = run["accuracy"]
    plain, centred = of["features, tempered"], of["features, centred"]
    gains = [centred[options] - plain[options] for options in plain if options in centred]
    assert len(gains) >= 4
    assert 0.007 < min(gains) < max(gains) < 0.022


def test_smaller_steps_on_cifar_fs_helped_maml_and_not_simpa_at_the_same_training_loss() -> None:
    smaller = {run["method"]: run for run in TRIED if run["stage"] == "CIFAR-FS" and "tasks" in run["changed"]}
    first = {
        run["method"]: run
        for run in TRIED
        if "first round" in str(run["changed"].get("tasks")) and "shot" not in run["changed"]
    }
    assert smaller["maml"]["accuracy"] > first["maml"]["accuracy"] + 0.01
    assert smaller["simpa"]["accuracy"] < first["simpa"]["accuracy"] - 0.03
    assert abs(smaller["simpa"]["loss"] - smaller["maml"]["loss"]) < 0.01


def test_with_less_noise_on_their_first_weights_methods_of_one_gaussian_learn_like_maml() -> None:
    tried = [run for run in TRIED if run["stage"] == "photographs, small"]
    (maml,) = (run for run in tried if run["method"] == "maml")
    quiet = [run for run in tried if {"initial_std", "prior_std"} & {*run["changed"]}]
    (noisy,) = (run for run in tried if run is not maml and run not in quiet)
    assert {run["method"] for run in quiet} == {"abml", "platipus", "vampire"}
    assert all(abs(run["accuracy"] - maml["accuracy"]) < 0.01 for run in quiet)
    assert noisy["method"] == "vampire"
    assert noisy["accuracy"] < maml["accuracy"] - 0.05


def tried_with(stage: str, **options: Any) -> dict[str, Any]:
    """The run of SImPa with these options and no others of a mixture or its temperature."""
    several = ("components", "softmax_temperature", "temperature_of")
    (found,) = (
        run
        for run in TRIED
        if (run["stage"], run["method"]) == (stage, "simpa")
        and run["changed"].get("initial_weights") == "network"
        and {name: run["changed"][name] for name in several if name in run["changed"]} == options
    )
    return found


def tried_in(stage: str) -> dict[str, dict[str, Any]]:
    """The runs of a stage that has one of each method."""
    runs = [run for run in TRIED if run["stage"] == stage]
    found = {run["method"]: run for run in runs}
    assert len(found) == len(runs) > 0
    return found


def test_a_generator_around_the_networks_weights_suits_classes_of_ones_own() -> None:
    for stage, gained in (("own images", 0.03), ("own rows", 0.14)):
        (before,) = (
            run for run in TRIED if run["stage"] == stage and run["changed"].get("initial_weights") == "generator"
        )
        around = tried_with(stage)
        assert gained < around["accuracy"] - before["accuracy"] < gained + 0.01
        assert around["nll"] < before["nll"] - 0.05


def test_several_generators_gain_on_images_and_not_on_rows_and_need_a_temperature() -> None:
    for stage, least_gain, most_gain in (
        ("Omniglot, mixtures", 0.019, 0.02),
        ("own images", 0.05, 0.06),
        ("own rows", -0.01, 0),
    ):
        one, three = tried_with(stage), tried_with(stage, components=3)
        assert least_gain < three["accuracy"] - one["accuracy"] < most_gain
        assert three["ece"] > one["ece"] + 0.03
    three = tried_with("own images", components=3)
    tempered = tried_with("own images", components=3, softmax_temperature=None)
    assert 0.3 * three["ece"] < tempered["ece"] < 0.5 * three["ece"]
    assert tempered["nll"] < three["nll"] - 0.05
    for stage in ("own images", "Omniglot, mixtures"):
        three = tried_with(stage, components=3)
        of_mixture = tried_with(stage, components=3, softmax_temperature=None, temperature_of="mixture")
        assert of_mixture["ece"] < 0.15 * three["ece"]
        assert of_mixture["nll"] < three["nll"] - 0.03
    assert of_mixture["loss"] == three["loss"]  # the same training
    of_networks = tried_with("Omniglot, mixtures", components=3, softmax_temperature=None, temperature_of="networks")
    assert 3 * of_mixture["ece"] < of_networks["ece"] < 0.4 * three["ece"]
    assert of_mixture["nll"] < of_networks["nll"] - 0.005


def test_a_round_with_five_generators_on_omniglot_was_accurate_and_not_sure_enough() -> None:
    tried = [run for run in TRIED if run["stage"] == "Omniglot, tempered"]
    round_of, trials = (
        {run["method"]: run for run in tried if ("tasks" in run["changed"]) == of_test} for of_test in (True, False)
    )
    assert set(round_of) == set(trials) == set(ALGORITHMS)
    simpa, first = round_of["simpa"], tried_in("Omniglot, first")
    assert 0 < round_of["bmaml"]["accuracy"] - simpa["accuracy"] < 0.001
    assert simpa["ece"] > 0.017 > first["bmaml"]["ece"] > first["simpa"]["ece"]
    assert simpa["loss"] > trials["simpa"]["loss"]
    for name in ("bmaml", "maml", "platipus", "vampire", "protonet"):
        assert round_of[name]["loss"] < 0.51 * trials[name]["loss"]
        assert round_of[name]["ece"] < 0.01
    assert round_of["abml"]["loss"] > 2 * trials["abml"]["loss"]
    assert 0.17 < round_of["abml"]["std"] < 0.18
    assert round_of["abml"]["changed"]["initial_std"] == 0.003
    assert 2 < simpa["loss"] / round_of["maml"]["loss"] < 2.3
    narrow, wide = (
        run
        for run in sorted(TRIED, key=lambda run: run["changed"].get("sigma_theta", 1))
        if run["stage"] == "Omniglot, longer"
    )
    assert 0.15 < 1 - wide["loss"] / narrow["loss"] < 0.25
    assert abs(wide["accuracy"] - narrow["accuracy"]) < 0.005


def test_a_short_round_on_omniglot_was_behind_the_long_one_and_its_simpa_trained_badly() -> None:
    tried = [run for run in TRIED if run["stage"] == "Omniglot, short"]
    long = {run["method"]: run for run in TRIED if run["stage"] == "Omniglot, tempered" and "tasks" in run["changed"]}
    short, trials = (
        {run["method"]: run for run in reversed(tried) if "nll" in run and ("tasks" in run["changed"]) == of_test}
        for of_test in (True, False)
    )
    assert set(short) == set(trials) == set(long) == set(ALGORITHMS)
    for runs, score in ((trials, "nll"), (trials, "accuracy"), (short, "accuracy")):
        assert (min if score == "nll" else max)(runs, key=lambda name: runs[name][score]) == "simpa"
    for name, run in short.items():
        assert (run["accuracy"] < long[name]["accuracy"]) == (name != "abml")
        assert (run["ece"] < 0.005) == (run["ece"] < 0.01) == (name != "simpa")
        assert 1 < run["loss"] / trials[name]["loss"] < (2 if name == "simpa" else 1.2)
    assert short["simpa"]["loss"] > 1.8 * trials["simpa"]["loss"]
    again, other = (run["loss"] for run in sorted(tried, key=lambda run: int(run["seed"])) if "nll" not in run)
    assert again == pytest.approx(short["simpa"]["loss"], rel=0.01)
    assert other < 1.15 * trials["simpa"]["loss"]
    (fast,) = (run for run in tried if run["method"] == "simpa" and run["changed"]["lr"] == 0.004)
    assert fast["loss"] > 1.4 * trials["simpa"]["loss"]
    (linear,) = (run for run in tried if run["changed"].get("generator_hidden") == [])
    assert linear["loss"] > 2 * trials["simpa"]["loss"]
    assert linear["nll"] > trials["simpa"]["nll"]
    assert short["abml"]["std"] == pytest.approx(0.003, rel=0.2)
    first = tried_in("Omniglot, first")
    assert all(short[name]["accuracy"] < first[name]["accuracy"] for name in first if name != "simpa")
    assert round(short["simpa"]["ece"], 3) == 0.011


def test_the_first_results_on_omniglot_had_bmaml_ahead_and_it_gains_more_by_training_for_longer() -> None:
    first, here = tried_in("Omniglot, first"), by_method("omniglot")
    longer = {run["method"]: run for run in TRIED if run["stage"] == "Omniglot, tempered" and "tasks" in run["changed"]}
    assert abs(first["simpa"]["accuracy"] - first["maml"]["accuracy"]) < 0.001
    assert 0.0075 < first["bmaml"]["accuracy"] - first["protonet"]["accuracy"] < 0.008
    reached = {name: here[name]["accuracy"]["mean"] for name in here}
    for round_of in (first, longer):
        assert round(round_of["bmaml"]["accuracy"], 4) == 0.9865 > most(here["simpa"]["accuracy"])
    assert [round(accuracy, 4) for accuracy in (reached["simpa"], longer["simpa"]["accuracy"])] == [0.9855, 0.9858]
    gained = {name: longer[name]["accuracy"] - reached[name] for name in ("maml", "vampire", "platipus")}
    assert 0.001 < min(gained.values()) < max(gained.values()) < 0.0041


def test_with_a_small_step_four_of_five_generators_learn_worse_than_the_fifth() -> None:
    small, middle, large = sorted(
        (run for run in TRIED if run["stage"] == "Omniglot, steps"), key=lambda run: run["changed"]["inner_lr"]
    )
    assert small["most"] > 2 * small["least"]
    assert small["loss"] > 0.8 * small["most"]  # the mean of five
    for run in (middle, large):
        assert run["most"] < 1.25 * run["least"] < 1.25 * small["least"]
    assert middle["nll"] < min(small["nll"], large["nll"])


def test_five_generators_on_a_small_omniglot_are_ahead_of_five_particles() -> None:
    tried = [run for run in TRIED if run["stage"] == "Omniglot, five"]
    simpa, bmaml = ([run for run in tried if run["method"] == method] for method in ("simpa", "bmaml"))
    hidden, none = sorted(simpa, key=lambda run: -len(run["changed"]["generator_hidden"]))
    for particles in bmaml:
        assert hidden["accuracy"] > particles["accuracy"] + 0.005
        assert hidden["nll"] < particles["nll"] - 0.02
        assert hidden["ece"] < particles["ece"]
    assert none["spread"] > 5 * hidden["spread"]
    assert none["nll"] > hidden["nll"]
    assert none["accuracy"] < hidden["accuracy"]


def test_with_less_noise_methods_of_one_gaussian_are_four_to_seventeen_points_better() -> None:
    def gained(shot: int) -> dict[str, int]:
        rows = by_method(f"cifar-fs-{shot}shot")
        before = [run for run in TRIED if "more noise" in str(run["changed"].get("tasks"))]
        return {
            run["method"]: round(100 * (rows[run["method"]]["accuracy"]["mean"] - run["accuracy"]))
            for run in before
            if run["changed"].get("shot", 1) == shot
        }

    assert gained(5) == {"abml": 17, "platipus": 8, "vampire": 8}
    assert gained(1) == {"abml": 11, "platipus": 4}


def test_the_page_of_what_was_tried_shows_every_run() -> None:
    text = (ROOT / "docs" / "exploration.md").read_text()
    for run in TRIED:
        scores = [run[score] for score in ("mse", "accuracy") if score in run]
        first = f"{scores[0]:.3f} | {run['ece']:.4f}" if scores else "– | –"
        assert f"| {run['updates']:,} | {first}" in text


@pytest.mark.parametrize("stage", ["Omniglot, small", "Omniglot"])
def test_a_scaled_generator_takes_simpa_past_maml_and_does_not_saturate(stage: str) -> None:
    tried = [run for run in TRIED if run["stage"] == stage]
    maml = min(run["nll"] for run in tried if run["method"] == "maml")
    of_simpa = [run for run in tried if run["method"] == "simpa"]
    scaled, plain = (
        [run for run in of_simpa if run["changed"].get("scaled_generator", False) is on] for on in (True, False)
    )
    assert max(run["nll"] for run in scaled) < maml < min(run["nll"] for run in plain)
    looked_at = [run["saturated"] for run in scaled if "saturated" in run]
    assert looked_at or stage == "Omniglot"  # where the scaled one is a trial of the results
    assert all(share < 0.001 for share in looked_at)
    assert max(run.get("saturated", 0) for run in plain) > 0.1


MEASURED = [name for name in TARGETS if (ROOT / "results" / f"{name}.json").is_file()]


@pytest.mark.parametrize("target", MEASURED)
def test_the_page_is_what_the_json_says_and_its_trainings_are_of_the_best_trials(target: str) -> None:
    rows = read_results(ROOT / "results" / f"{target}.json")
    page = "results" if target == "regression" else target
    assert (ROOT / "docs" / f"{page}.md").read_text() == results_page(rows, [], target)
    for row in rows if TARGETS[target].tunes else []:
        best = min(row["trials"], key=lambda trial: trial["nll"]["mean"])
        assert row["preset"].endswith(f", trial {best['trial']}")
        assert len(row["trials"]) == len(TARGETS[target].trials(row["label"]))


@pytest.mark.parametrize("target", MEASURED)
def test_committed_results_are_of_the_test_tasks_that_the_command_draws(target: str) -> None:
    rows = json.loads((ROOT / "results" / f"{target}.json").read_text())
    assert {row["seed"] for row in rows} == {TARGETS[target].test_seed}
