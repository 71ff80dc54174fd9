"""At home in Python: the eight lines of the page run, folds are scikit-learn's, and each extra stands alone."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GroupKFold, cross_validate

import fewsure
from fewsure import Learner, load
from fewsure.sklearn import FewShotRegressor

pd = pytest.importorskip("pandas")
ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: needs for name, needs in PROJECT["optional-dependencies"].items() if name != "dev"}
OPTIONAL = {"pandas", "triton"}
"""Modules that are imported if they are there, and that nothing needs."""
MODULES = {"pillow": "PIL", "scikit-learn": "sklearn", "open-clip-torch": "open_clip"}
"""Distribution → its module, where they differ."""


def countries(number: int = 60, each: int = 12) -> Any:
    random = np.random.default_rng(0)
    country = np.repeat([f"c{one}" for one in range(number)], each)
    year = np.tile(np.linspace(-1, 1, each), number)
    own = np.repeat(random.normal(size=(number, 2)), each, axis=0)
    return pd.DataFrame(
        {
            "country": country,
            "year": year,
            "fertility": own[:, 0] + own[:, 1] * year + 0.1 * random.normal(size=len(year)),
        }
    )


def test_a_data_frame_goes_in_and_intervals_come_out_in_eight_lines() -> None:
    page = (ROOT / "docs/how-to/own-tables.md").read_text()
    (block,) = [found for found in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "data=df" in found]
    assert len(block.splitlines()) <= 8
    frame = countries()
    new = frame[frame.country == "c7"]
    names = {"fewsure": fewsure, "df": frame[frame.country != "c7"], "known": new[:5], "unknown": new[5:]}
    exec(block, names)
    p: Any = names["p"]
    assert list(p.mean.index) == list(new[5:].index)
    assert ((p.lower < new[5:].fertility) & (new[5:].fertility < p.upper)).mean() > 0.7


def test_the_learners_of_cross_validate_are_those_of_crossval(tmp_path: Path) -> None:
    frame = countries(15)
    x, y, groups = frame[["year"]], frame["fertility"], frame["country"]
    Learner("ridge", data=frame, task_column="country", target="fertility", device="cpu").crossval(
        folds=5, tasks=20, baselines=False, out=tmp_path / "cv", quiet=True
    )
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = FewShotRegressor("ridge").set_fit_request(groups=True).set_score_request(groups=True)
        folds = {"cv": GroupKFold(5), "return_estimator": True, "return_indices": True}
        found = cross_validate(estimator, x, y, params={"groups": groups}, **folds)
    for number, (fitted, tested) in enumerate(zip(found["estimator"], found["indices"]["test"], strict=True)):
        learner = load(tmp_path / "cv" / f"fold-{number + 1}", data=frame, device="cpu")
        for group in groups.iloc[tested].unique():
            rows = frame[groups == group]
            ours = learner.adapt(rows[:4]).predict(rows[4:])
            theirs = fitted.adapt(rows[["year"]][:4], rows["fertility"][:4])
            np.testing.assert_allclose(theirs.predict(rows[["year"]][4:]), ours.mean, rtol=1e-5, atol=1e-6)


def distribution(requirement: str) -> str:
    return re.split(r"[\[<>=~ ]", requirement)[0].lower()


def modules_of(requirements: list[str]) -> set[str]:
    return {MODULES.get(name, name.replace("-", "_")) for name in map(distribution, requirements)}


IMPORT = re.compile(r"^( *)(?:from|import) (\w+)", re.MULTILINE)


def imports() -> tuple[set[str], set[str]]:
    """The third-party modules that the package imports as it is loaded, and those that only a function imports."""
    top, late = set[str](), set[str]()
    peers = ROOT / "src/fewsure/bench/peers.py"  # the libraries that a benchmark compares with
    for path in {*(ROOT / "src" / "fewsure").rglob("*.py")} - {peers}:
        for indent, name in IMPORT.findall(re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)):
            if name not in sys.stdlib_module_names and name != "fewsure":
                (late if indent else top).add(name)
    return top, late


def test_the_package_needs_its_core_alone() -> None:
    core = modules_of(PROJECT["dependencies"]) | {"markupsafe"}  # which is Jinja's
    top, late = imports()
    assert top - {"triton"} <= core  # kernels, which are imported where Triton is
    assert core <= top | late  # nothing that is pulled in is unused
    extras = {module for needs in EXTRAS.values() for module in modules_of(needs)}
    assert late <= core | extras | OPTIONAL


def test_each_extra_has_what_its_modules_import() -> None:
    needed = {
        "chem": {"rdkit"},
        "export": {"onnx", "onnxscript"},
        "ray": {"ray", "pyarrow"},
        "track": {"tensorboard"},
        "vision": {"timm", "torchvision", "open_clip", "onnxruntime"},
    }
    for extra, modules in needed.items():
        assert modules <= modules_of(EXTRAS[extra]), extra
    assert set(EXTRAS) == set(needed)
    known = packages_distributions()
    for requirement in PROJECT["dependencies"]:
        assert modules_of([requirement]) & set(known), requirement
