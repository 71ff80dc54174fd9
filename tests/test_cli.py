"""The command line as a user meets it: results on standard output, one line and exit code 2 for what is wrong."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from fewsure.bench.cases import headline_cases
from fewsure.cli.main import COMMANDS, main
from fewsure.data import DATA
from fewsure.training.experiment import preset_names

from .helpers import CLASSIFICATION

TINY = ["--updates", "6", "--tasks", "3", "--device", "cpu"]
TINY_SIMPA = ["simpa", "--latent", "3", "--generator-hidden", "4", "--kl-samples", "6", *TINY]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "simpa"
    assert main(["train", *TINY_SIMPA, "--out", str(folder)]) == 0
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_train_evaluate_report(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {path.name for path in run.iterdir()} >= {"config.json", "metrics.jsonl", "checkpoint.safetensors"}
    capsys.readouterr()
    assert main(["evaluate", str(run), "--tasks", "30", "--json"]) == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert printed.err == ""
    assert summary["algorithm"] == "simpa"
    assert summary["data"] == "sine-line"
    assert (summary["shot"], summary["tasks"], summary["samples"], summary["device"]) == (5, 30, 32, "cpu")
    assert set(summary["mse"]) == set(summary["nll"]) == {"mean", "ci95"}
    assert json.loads((run / "evaluation.json").read_text()) == summary
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").is_file()
    assert list((tmp_path / "report_files").glob("*.png"))


def test_the_same_seed_evaluates_to_the_same_numbers(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    results = []
    for seed in ("0", "0", "1"):
        assert main(["evaluate", str(run), "--tasks", "20", "--seed", seed, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out)["mse"]["mean"])
    assert results[0] == results[1] != results[2]


def test_resume_of_a_finished_run_changes_nothing(run: Path) -> None:
    before = (run / "checkpoint.safetensors").read_bytes()
    assert main(["train", "simpa", "--out", str(run), "--resume", "--device", "cpu"]) == 0
    assert (run / "checkpoint.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "did you mean 'train'?"),
        (["train"], "one of simpa, simpa-latent"),
        (["train", "mamml"], "did you mean 'maml'?"),
        (["train", "maml", "--lr", "-0.1"], "expected `lr` to be a number above 0, but got -0.1"),
        (["train", "maml", "--lr", "nan"], "expected `lr` to be a number above 0"),
        (["train", "maml", "--lr", "fast"], "invalid float value: 'fast'"),
        (["train", "maml", "--inner-lr", "-1"], "expected `inner_lr` to be a number above 0"),
        (["train", "maml", "--shot", "0"], "expected `shot` to be at least 1"),
        (["train", "simpa", "--shot", "1"], "expected `shot` to be at least 2 for simpa"),
        (["train", "simpa", "--epsilon", "0"], "expected `epsilon` to be a probability in (0, 1]"),
        (["train", "simpa", "--epsilon", "1.5"], "expected `epsilon` to be a probability in (0, 1]"),
        (["train", "simpa", "--kl", "exact"], "invalid choice: 'exact'"),
        (["train", "simpa", "--kl-sample", "3"], "did you mean --kl-samples?"),
        (["train", "simpa", "--learning-rate=1e-3"], "unknown argument '--learning-rate=1e-3', did you mean --lr?"),
        (["train", "simpa", "--inner-learning-rate", "1e-3"], "did you mean --inner-lr?"),
        (["train", "simpa", "--data", "sines"], "expected `data` to be one of sine-line"),
        (["train", "simpa", "--preset", "papers"], "did you mean 'paper'?"),
        (["train", "maml", "--device", "abacus"], "'abacus' cannot be used here"),
        (["train", "maml", "--checkpoint-every", "0"], "expected `checkpoint_every`"),
        (["evaluate"], "the following arguments are required: RUN"),
        (["evaluate", "nowhere"], "nowhere is not a run"),
        (["evaluate", "nowhere", "--tasks", "1"], "expected `tasks` to be at least 2"),
        (["report", "nowhere"], "nowhere is not a run"),
        (["reproduce", "reproduction"], "one of regression, omniglot"),
        (["reproduce", "regression", "--only", "mammal"], "did you mean 'maml'?"),
        (["reproduce", "regression", "--budget", "0"], "expected `budget` to be a number above 0"),
        (["reproduce", "regression", "--seeds", "0"], "expected `seeds` to be at least 1"),
        (["reproduce", "regression", "--collect"], "holds no finished run"),
    ],
)
def test_bad_input_ends_in_one_line_and_writes_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert message in printed.err
    assert not list(tmp_path.iterdir())


def test_an_output_folder_that_holds_something_is_left_as_it_is(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    capsys.readouterr()
    for folder, message in ((run, "already holds a run"), (tmp_path, "a new or empty folder")):
        before = snapshot(folder)
        assert main(["train", *TINY_SIMPA, "--out", str(folder)]) == 2
        assert message in capsys.readouterr().err
        assert snapshot(folder) == before


def test_a_resumed_run_refuses_other_options(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(run)
    capsys.readouterr()
    assert main(["train", "simpa", "--out", str(run), "--resume", "--lr", "0.5"]) == 2
    assert "a resumed run keeps its options: `lr` is" in capsys.readouterr().err
    assert main(["train", "maml", "--out", str(run), "--resume"]) == 2
    assert "is a run of simpa" in capsys.readouterr().err
    assert snapshot(run) == before


def test_a_checkpoint_cut_short_is_one_line_and_left_as_it_is(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (path for path in run.iterdir() if path.is_file()):
        (copy / path.name).write_bytes(path.read_bytes()[: 200 if path.suffix == ".safetensors" else None])
    before = snapshot(copy)
    capsys.readouterr()
    for arguments in (["evaluate", str(copy)], ["train", "simpa", "--out", str(copy), "--resume"]):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert "damaged or cut short" in error
        assert len(error.splitlines()) == 1
        assert snapshot(copy) == before


@pytest.mark.parametrize("command", ["train maml --updates 2", "quickstart", "reproduce regression"])
def test_an_output_below_a_file_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert main([*command.split(), "--device", "cpu", "--out", str(tmp_path / "file" / "run")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("device", ["meta", "cuda:99", "mps"])
def test_a_device_that_cannot_train_leaves_nothing_behind(device: str, tmp_path: Path) -> None:
    assert main(["train", "maml", "--device", device, "--out", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()


def test_a_network_that_does_not_fit_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    huge = ["--hidden", "10000000", "10000000"]
    assert main(["train", "maml", *huge, "--device", "cpu", "--out", str(tmp_path / "run")]) == 2
    assert "memory" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_may_change_what_no_result_depends_on(run: Path) -> None:
    assert main(["train", "simpa", "--out", str(run), "--resume", "--device", "cpu", "--chunk-size", "2"]) == 0


def test_platipus_starts_at_a_maml_run_and_resumes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from fewsure.training.runs import Run

    maml, platipus = tmp_path / "maml", tmp_path / "platipus"
    assert main(["train", "maml", *TINY, "--out", str(maml)]) == 0
    for wrong in (["maml", "--from", str(maml)], ["platipus", "--from", str(run)]):
        capsys.readouterr()
        assert main(["train", *wrong, *TINY, "--out", str(platipus)]) == 2
        assert "expected --from" in capsys.readouterr().err
        assert not platipus.exists()
    start = ["train", "platipus", "--from", str(maml), "--out", str(platipus), *TINY, "--lr", "1e-12"]
    assert main(start) == 0
    cpu = torch.device("cpu")
    learned, started = (Run.open(folder).load(cpu).meta["weights"] for folder in (maml, platipus))
    for name, value in learned.items():
        torch.testing.assert_close(started[name], value, rtol=0, atol=1e-6)
    assert Run.open(platipus).experiment.start.startswith("maml ")
    assert main([*start, "--resume"]) == 0


def test_debug_shows_where_an_error_came_from() -> None:
    from fewsure.errors import FewsureError

    with pytest.raises(FewsureError):
        main(["evaluate", "nowhere", "--debug"])


@pytest.mark.parametrize("command", [*COMMANDS, "--help", "--version"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    if command.startswith("--"):
        assert main([command]) == 0
        assert ("exit codes: 0 done" in capsys.readouterr().out) == (command == "--help")
    else:
        with pytest.raises(SystemExit) as exit_code:
            main([command, "--help"])
        assert exit_code.value.code == 0
        assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], [], ["trian"]])
def test_what_runs_no_command_imports_neither_torch_nor_numpy_nor_matplotlib(arguments: list[str]) -> None:
    program = f"""
import sys
from fewsure.cli.main import main
main({arguments})
print(*sorted({{"torch", "numpy", "matplotlib"}} & set(sys.modules)), file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == ""


def test_the_list_of_commands_shows_the_first_line_of_the_help_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    for name in COMMANDS:
        document = import_module(f"fewsure.cli.{name}").__doc__
        assert f"  {name:<12}{document.splitlines()[0]}\n" in listed


def test_the_help_of_train_names_every_data_set_and_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = "".join(capsys.readouterr().out.split())  # names may be broken at a hyphen
    for data in DATA:
        if not data.startswith("given-"):  # those are given in Python
            assert f"`{data}`" in text
            assert all(f"`{preset}`" in text for preset in preset_names(data))


def test_bench_times_every_method_and_takes_a_plain_x(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewsure.bench.measure.matrix_rate", lambda device: 1.0)
    row = lambda case, *rest: {"method": case.method, "tasks": case.tasks}  # noqa: E731
    monkeypatch.setattr("fewsure.bench.measure._measured", row)
    assert main(["bench", "--kinds", "conv4 28x28", "conv4 84×84", "--device", "cpu", "--json"]) == 0
    methods, kinds = zip(
        *((case["method"], case["tasks"]) for case in json.loads(capsys.readouterr().out)["cases"]), strict=True
    )
    assert {method.split(",")[0] for method in methods} <= set(CLASSIFICATION)
    assert set(kinds) == {"conv4 28×28", "conv4 84×84"}


def test_bench_measures_each_number_of_tasks_and_writes_a_record_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_case = headline_cases(("sine-line",))[:1]
    monkeypatch.setattr("fewsure.bench.measure.headline_cases", lambda kinds: one_case)
    results, page = tmp_path / "bench.json", tmp_path / "docs" / "speed.md"
    options = ["--tasks", "2", "4", "--seconds", "0.01", "--results", str(results), "--page", str(page)]
    assert main(["bench", "--device", "cpu", "--precisions", "tf32", "bf16", *options]) == 0
    record = json.loads(results.read_text())
    assert [(case["T"], case["precision"]) for case in record["cases"]] == [(2, "tf32"), (4, "tf32")]
    assert record["cases"][1]["operations"] == 2 * record["cases"][0]["operations"]
    assert "| maml, T = 4 |" in page.read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--kinds", "conv5"], "kinds"),
        (["--tasks", "20", "1"], "tasks"),
        (["--seconds", "0"], "seconds"),
        (["--precisions", "tf32", "fp8"], "precisions"),
    ],
)
def test_bench_refuses_before_it_measures(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewsure.bench.measure.matrix_rate", lambda device: pytest.fail("it has measured"))
    assert main(["bench", "--device", "cpu", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"`{says}`" in line
