"""Shapes and types in signatures are checked while the tests run; facts are checked in double precision."""

import os

import torch
from jaxtyping import install_import_hook

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, where torch comes with it

install_import_hook(
    [
        "fewsure.theory.pac_bayes",
        "fewsure.theory.held_out",
        "fewsure.theory.concentration",
        "fewsure.theory.conformal",
        "fewsure.theory.divergences",
        "fewsure.evaluation.metrics",
        "fewsure.posteriors",
    ],
    "beartype.beartype",
)

from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402

from fewsure.evaluation import calibrate  # noqa: E402
from fewsure.report import drawing  # noqa: E402
from fewsure.report import own_data as own_data_report  # noqa: E402

from .data_fixtures import own_data, real_data  # noqa: E402, F401 (fixtures for all tests)

torch.set_num_threads(1)  # the tensors of a test are small, and threads that wait for each other are slow

# Fits and drawings take most of the time of a small training, and tests need none of their precision.
calibrate.TASKS, calibrate.OWN_TASKS, own_data_report.TASKS, drawing.DOTS_PER_INCH = 200, 100, 40, 40

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def float64() -> Iterator[None]:
    """Double precision, for facts that hold to 1e-10."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def paper() -> dict:
    """Every figure that the paper prints."""
    import json

    file = SHARED / "paper" / "reference.json"
    if not file.is_file():
        pytest.skip(f"the paper's printed figures are not beside the project ({file.name} of shared/paper)")
    return json.loads(file.read_text())


@pytest.fixture(scope="session")
def sine_line_runs(tmp_path_factory: pytest.TempPathFactory) -> list:
    """Short trainings of SImPa and MAML, evaluated on the same tasks."""
    from .report_runs import sine_line_runs

    return sine_line_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def image_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list]:
    """Short trainings of ProtoNet and BMAML on pictures, and their cache."""
    from .report_runs import image_runs

    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWSURE_CACHE", str(folder / "cache"))
        yield image_runs(folder)
