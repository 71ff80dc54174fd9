"""The page on architecture: its picture is drawn, its names exist, and its method can be added as it says."""

import inspect
import re
import shutil
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from types import FunctionType

import pytest

from fewsure.algorithms import ALGORITHMS
from fewsure.algorithms.maml import Maml
from fewsure.cli.main import main
from fewsure.training.engine import Engine
from fewsure.training.experiment import DEFAULT_PRESET, Experiment, load_preset

from . import test_protocol
from .helpers import MODEL, assert_close, meta_batch
from .rooms import picture

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PROTOCOL = [
    check
    for name, check in vars(test_protocol).items()
    if name.startswith("test_") and "experiment" in inspect.signature(check).parameters
]


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return found


def test_the_picture_is_what_its_command_draws() -> None:
    assert (ROOT / "docs" / "figures" / "rooms.svg").read_text(encoding="utf-8") == picture()


def test_every_name_on_the_page_exists_and_links_to_its_file() -> None:
    names = re.findall(r"`(fewsure\.[\w.]+)`", PAGE)
    assert len(names) > 15
    for name in names:
        resolve_name(name)
    links = re.findall(r"\[`(fewsure\.[\w.]+)`\]\(\.\./(src/[\w/.]+)\)", PAGE)
    assert len(links) > 10
    for name, file in links:
        module = file.removeprefix("src/").removesuffix(".py").replace("/", ".")
        assert name == module or hasattr(import_module(module), name.removeprefix(module + ".").split(".")[0]), name


def test_the_method_has_six_steps() -> None:
    steps = re.findall(r"^\*\*(\d)\. ", PAGE, re.MULTILINE)
    assert steps == ["1", "2", "3", "4", "5", "6"]


@pytest.fixture
def method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's method, added as the page says."""
    file = tmp_path / "small_maml.py"
    file.write_text(block("python"), encoding="utf-8")
    spec = spec_from_file_location("small_maml", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "small_maml", module)
    spec.loader.exec_module(module)

    (registered,) = re.findall(r'^"([\w-]+)": (\w+),$', block("text"), re.MULTILINE)
    monkeypatch.setitem(ALGORITHMS, registered[0], getattr(module, registered[1]))

    presets = tmp_path / "presets"
    shutil.copytree(ROOT / "src" / "fewsure" / "training" / "presets", presets)
    (preset,) = re.findall(r"`src/fewsure/training/presets/(.*?\.toml)`", PAGE)
    (presets / preset).write_text((presets / preset).read_text(encoding="utf-8") + "\n" + block("toml"))
    monkeypatch.setattr("fewsure.training.experiment._presets", lambda: presets)
    return registered[0]


@pytest.fixture
def experiment(method: str) -> Experiment:
    return test_protocol.small(method, "sine-line")


@pytest.mark.parametrize("check", PROTOCOL, ids=lambda check: check.__name__)
def test_the_method_keeps_the_protocol(check: FunctionType, request: pytest.FixtureRequest) -> None:
    for mark in getattr(check, "pytestmark", []):
        if mark.name == "usefixtures":
            request.getfixturevalue(*mark.args)
    arguments = {name: 8 if name == "samples" else request.getfixturevalue(name) for name in parameters(check)}
    check(**arguments)


def parameters(check: FunctionType) -> list[str]:
    return list(inspect.signature(check).parameters)


@pytest.mark.usefixtures("float64")
def test_its_meta_gradient_is_that_of_maml(method: str) -> None:
    small, maml = ALGORITHMS[method](), Maml(first_order=True)
    gradients = [Engine(one, MODEL).gradient(*meta_batch(one))[0] for one in (small, maml)]
    assert_close(*gradients, 1e-12)


def test_it_has_its_preset_trains_and_is_evaluated(method: str, tmp_path: Path) -> None:
    assert load_preset(DEFAULT_PRESET, method, "sine-line").algorithm.inner_lr == 5e-3
    run, small = str(tmp_path / "run"), ["--tasks", "4", "--device", "cpu"]
    assert main(["train", method, "--updates", "2", "--out", run, *small]) == 0
    assert main(["evaluate", run, *small]) == 0
