"""The scripts of benchmarks/ fit the library they measure."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).resolve().parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_a_script_asks_for_is_there(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # a script may add to it
    assert callable(runpy.run_path(str(script), run_name="benchmark")["main"])


ROOT = SCRIPTS[0].parents[1]


def test_the_page_on_speed_is_what_the_measurements_say(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "benchmarks" / "speed_page.py"), run_name="benchmark")["main"](tmp_path / "speed.md")
    assert (tmp_path / "speed.md").read_text() == (ROOT / "docs" / "speed.md").read_text()


def test_an_update_of_simpa_costs_what_the_documentation_says() -> None:
    record = json.loads((ROOT / "results" / "bench-h200.json").read_text())
    assert record["device"] == "NVIDIA H200"
    rate = {(row["tasks"], row["method"], row["precision"]): row["updates_per_second"] for row in record["cases"]}
    sine, images = "sine-line", "conv4 28×28"
    assert rate[sine, "simpa, critic KL, 512 samples", "bf16"] > 120
    assert rate[sine, "simpa, moment KL, 128 samples", "tf32"] > 300
    maml = rate[images, "maml", "tf32"]
    assert maml > 400
    assert maml / rate[images, "simpa, no KL", "tf32"] < 1.5
    assert maml / rate[images, "simpa, moment KL, 64 samples", "bf16"] < 2.5
    memory = {(row["tasks"], row["method"], row["precision"]): row["memory_gib"] for row in record["cases"]}
    assert memory[images, "simpa, no KL", "tf32"] < 1
    assert max(memory["conv4 84×84", method, "tf32"] for method in ("simpa, no KL", "simpa, moment KL, 64 samples")) < 8
    for flat in record["curves"] + record["evaluations"]:
        assert flat["memory_gib"][-1] == flat["memory_gib"][0]


def test_on_a_cpu_the_faster_way_is_taken() -> None:
    for row in json.loads((ROOT / "results" / "bench-cpu.json").read_text())["cases"]:
        other = "vectorised" if row["chosen"] == "loop" else "loop"
        assert row[row["chosen"]] < 1.1 * row[other]


def test_the_page_on_samples_of_the_kl_is_what_the_command_writes(tmp_path: Path) -> None:
    script, root = runpy.run_path(str(SCRIPTS[0].parent / "kl_samples.py"), run_name="benchmark"), ROOT
    record = json.loads((root / "results" / "kl-samples.json").read_text())
    script["write_page"](record, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == (root / "docs" / "kl-samples.md").read_text()
    last = record["rows"][-1]
    assert abs(last["bias"]) < 0.01  # the corrected estimate is right on average
    errors = [row["gradient_error"] for row in record["rows"]]
    assert errors == sorted(errors, reverse=True)  # and only more samples make its gradient less noisy


def test_results_are_added_to_what_was_tried_with_the_options_of_their_trials() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "explore.py"), run_name="benchmark")
    results = json.loads((ROOT / "results" / "omniglot.json").read_text())
    for result, row in zip(results, script["added"](ROOT / "results" / "omniglot.json", (), "a round"), strict=True):
        assert row["method"] == result["algorithm"]
        assert [row["accuracy"], row["nll"]] == [result[score]["mean"] for score in ("accuracy", "nll")]
        assert row["changed"].pop("tasks") == "100,000 of the test classes, a round"
        assert row["changed"].pop("softmax_temperature") == round(result["softmax_temperature"], 2)
        best = min(result["trials"], key=lambda trial: trial["nll"]["mean"])["options"]
        assert row["changed"] == {name: value for group in best.values() for name, value in group.items()}
    (row,) = script["added"](ROOT / "results" / "regression.json", ("bmaml",), "a round")
    assert row["method"] == "bmaml"
    assert "mse" in row
    with pytest.raises(SystemExit, match="expected results of methods with tuning trials, but"):
        list(script["added"](ROOT / "results" / "ablation.json", (), "a round"))
