"""Where tests find data: the real sets beside the project, or a place of their own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="module")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The real data sets, with one cache for all processes of a session, so that a split is decoded once."""
    if not REAL_DATA.is_dir():
        pytest.skip("the real data sets are not beside the project (shared/data)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWSURE_DATA", str(REAL_DATA))
        own = tmp_path_factory.getbasetemp()  # of a process, where pytest-xdist has started several
        session = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
        patch.setenv("FEWSURE_CACHE", str(session / "decoded"))
        yield REAL_DATA


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root, with a cache of its own in `cache` beside it."""
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("FEWSURE_DATA", str(root))
    monkeypatch.setenv("FEWSURE_CACHE", str(tmp_path / "cache"))
    return root
