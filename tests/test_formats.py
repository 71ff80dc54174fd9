"""Results and caches carry the number of their format: older ones are read or made again, others are refused."""

import json
from pathlib import Path

import pytest
import torch

from fewsure.algorithms.maml import Maml
from fewsure.certification.certify import Request, certify_run
from fewsure.data import cache
from fewsure.data.pools import Pool
from fewsure.data.sine_line import SineLine
from fewsure.errors import FewsureError
from fewsure.experiment import Experiment, Training
from fewsure.networks import MlpOptions
from fewsure.training.runs import RESULT_FORMAT, Run
from fewsure.workflow import evaluate_run, start_run, train_run

from .reliability.fuzz import DATA_SET, cache_files

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    training = Training(updates=2, tasks=2)
    experiment = Experiment(Maml(inner_steps=1), SineLine(query=3), MlpOptions((2,)), training, "none")
    run = start_run(tmp_path_factory.mktemp("runs") / "run", experiment, resume=False)
    train_run(run, CPU, quiet=True)
    evaluate_run(run, CPU, tasks=4, seed=0, quiet=True)
    certify_run(run, CPU, Request(tasks=4), quiet=True)
    return run


def test_results_say_which_format_they_have(run: Run) -> None:
    for name in ("evaluation.json", "certificate.json"):
        assert json.loads((run.folder / name).read_text())["format"] == RESULT_FORMAT


def test_the_first_results_had_no_format_and_are_read(run: Run) -> None:
    path = run.folder / "evaluation.json"
    written = path.read_text()
    first = {name: value for name, value in json.loads(written).items() if name != "format"}
    path.write_text(json.dumps(first))
    assert run.evaluation() == first
    path.write_text(json.dumps(first | {"format": 99}))
    with pytest.raises(FewsureError, match=r"has format 99, but this version reads 1; run `fewsure evaluate"):
        run.evaluation()
    path.write_text(written)


@pytest.mark.parametrize(("written", "is_read"), [(cache.FORMAT, True), (cache.FORMAT + 1, False), (None, False)])
def test_a_cache_of_another_format_is_not_taken(tmp_path: Path, written: int | None, is_read: bool) -> None:
    index, array = cache_files()
    (tmp_path / cache.ARRAY).write_bytes(array)
    (tmp_path / cache.INDEX).write_text(json.dumps(json.loads(index) | {"format": written}))
    assert isinstance(cache._open(tmp_path, DATA_SET), Pool) == is_read
