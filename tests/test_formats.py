"""Results and caches carry the number of their format: caches of another one are made again, results refused.

Nothing that is read is executed.
"""

import ast
import json
import re
from pathlib import Path

import pytest
import torch

from fewsure.algorithms.maml import Maml
from fewsure.certification.certify import Request, certify_run
from fewsure.data.io import cache
from fewsure.data.pools import Pool
from fewsure.data.sets.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.networks.mlp import MlpOptions
from fewsure.pipeline import evaluate_run, start_run, train_run
from fewsure.training.experiment import Experiment, Training
from fewsure.training.runs import RESULT_FORMAT, Run

from .reliability.faults import ROOT
from .reliability.fuzz import DATA_SET, cache_files

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    training = Training(updates=2, tasks=2)
    experiment = Experiment(Maml(inner_steps=1), SineLine(query=3), MlpOptions((2,)), training, "none")
    run = start_run(tmp_path_factory.mktemp("runs") / "run", experiment, resume=False)
    train_run(run, CPU)
    evaluate_run(run, CPU, tasks=4, seed=0)
    certify_run(run, CPU, Request(tasks=4))
    return run


def test_results_say_which_format_they_have(run: Run) -> None:
    for name in ("evaluation.json", "certificate.json"):
        assert json.loads((run.folder / name).read_text())["format"] == RESULT_FORMAT


def test_a_result_of_another_format_or_of_none_is_refused(run: Run) -> None:
    path = run.folder / "evaluation.json"
    whole = path.read_text()
    for other in ({"format": 99}, {"format": None}):
        path.write_text(json.dumps(json.loads(whole) | other))
        with pytest.raises(FewsureError, match=r"has format (99|None) .*, but this version reads 1; run `fewsure eval"):
            run.evaluation()
    path.write_text(whole)


@pytest.mark.parametrize(("written", "is_read"), [(cache.FORMAT, True), (cache.FORMAT + 1, False), (None, False)])
def test_a_cache_of_another_format_is_not_taken(tmp_path: Path, written: int | None, is_read: bool) -> None:
    index, array = cache_files()
    (tmp_path / cache.ARRAY).write_bytes(array)
    (tmp_path / cache.INDEX).write_text(json.dumps(json.loads(index) | {"format": written}))
    assert isinstance(cache._open(tmp_path, DATA_SET), Pool) == is_read


RUNS_CODE = {
    *("eval", "exec", "compile", "__import__", "torch.jit.load", "joblib.load", "yaml.load"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open", "os.system"),
}
EXTRACTS = ("extractall", "unpack_archive")


def calls() -> list[tuple[str, ast.Call, str]]:
    """(name as it is written, call, file) of every call in the package."""
    return [
        (ast.unparse(node.func), node, path.name)
        for path in sorted((ROOT / "src" / "fewsure").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]


def test_nothing_that_is_read_is_executed_or_extracted() -> None:
    found = calls()
    assert len(found) > 1000
    assert [(name, file) for name, _, file in found if name in RUNS_CODE or name.split(".")[-1] in EXTRACTS] == []
    assert [file for name, _, file in found if re.fullmatch(r"(tar|archive|zip\w*)\.extract", name)] == []
    loads = [call for name, call, _ in found if name in ("np.load", "numpy.load")]
    assert loads
    for call in loads:
        assert "allow_pickle=False" in [ast.unparse(option) for option in call.keywords]
    for call in [call for name, call, _ in found if name == "torch.load"]:
        assert "weights_only=True" in [ast.unparse(option) for option in call.keywords]


def test_pickle_is_used_by_the_restricted_reader_alone() -> None:
    users = [
        path.name
        for path in (ROOT / "src" / "fewsure").rglob("*.py")
        if re.search(r"^\s*(import|from) (pickle|cloudpickle|dill|joblib|marshal|shelve)\b", path.read_text(), re.M)
    ]
    assert users == ["unpickle.py"]


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-docs.lock"])
def test_every_dependency_is_pinned(lock: str) -> None:
    lines = [line for line in (ROOT / lock).read_text().splitlines() if not line.startswith(("#", "--"))]
    assert len(lines) > 20
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.!+]+", line)] == []
