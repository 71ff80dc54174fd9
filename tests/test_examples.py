"""The examples run, with fewer updates than they ask for."""

import runpy
from pathlib import Path

import pytest

from fewsure.core.places import data_root
from fewsure.data.pools import SPLITS

from .data_files import WrittenAssays

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SAYS = {
    "sine_line.py": "200 unseen tasks: MSE",
    "own_images.py": "never seen in training, from 5 images each:",
    "own_csv.py": "from 5 years that are known:",
    "groups_dask.py": "200 rows of 50 shops, as without Dask.",
    "groups_spark.py": "200 rows of 50 shops, as without Spark.",
    "molecules.py": "the tenth to measure first:",
    "patients.py": "six hours ahead of 5 readings:",
    "schools.py": "schools, each predicted by a learner of others:",
}
ASKED = {"patients.py": ["--patients", "60", "--updates", "2"], "schools.py": []}
"""Options of an example, where it needs others."""
DATA = data_root()
READS = {"patients.py": "tables/physionet-2012.csv.gz", "schools.py": "tables/school.csv.gz"}
"""A file of the data root."""
NEEDS = {"groups_dask.py": "dask", "groups_spark.py": "pyspark"}


def test_every_example_is_tested() -> None:
    assert sorted(SAYS) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:pyspark")
@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(
    name: str, own_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    if name in READS:
        if not (DATA / READS[name]).is_file():
            pytest.skip(f"{READS[name]} is not below the data root ($FEWSURE_DATA)")
        monkeypatch.setenv("FEWSURE_DATA", str(DATA))
    out = str(tmp_path / "out")
    if name == "molecules.py":
        (own_data / "fs-mol").mkdir()
        for split in SPLITS:
            WrittenAssays(split).arrays(own_data / "fs-mol", split)
    monkeypatch.setattr("sys.argv", [name, *ASKED.get(name, ["--updates", "2"]), "--out", out])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    assert SAYS[name] in printed
    assert f"The run is in {out}" in printed
