"""Write docs/speed.md and its figures from results/bench-h200.json and results/bench-cpu.json.

python benchmarks/speed_page.py
"""

import json
from pathlib import Path
from typing import Any

from fewsure.bench.page import bench_page
from fewsure.core.files import write_atomically
from fewsure.report.tables import markdown_table

ROOT = Path(__file__).resolve().parents[1]


def main(page: Path = ROOT / "docs" / "speed.md") -> None:
    """The page of `fewsure bench`, and what vectorising gains on a CPU."""
    bench_page(_read("bench-h200"), page)
    write_atomically(page, page.read_text(encoding="utf-8") + "\n".join(_on_a_cpu(_read("bench-cpu"))))


def _on_a_cpu(record: dict[str, Any]) -> list[str]:
    rows = [
        (
            *(row["tasks"], row["method"], str(row["T"])),
            *(f"{1000 * row[way]:,.1f}" for way in ("vectorised", "loop")),
            f"{row['loop'] / row['vectorised']:.2f}",
            row["chosen"],
        )
        for row in record["cases"]
    ]
    headers = ("tasks", "method", "T", "vectorised, ms", "loop, ms", "ratio", "training takes")
    return [
        "## On a CPU",
        "",
        f"Made by `python benchmarks/vectorised.py` in {record['seconds']:,.0f} s with {record['threads']} threads: a",
        "meta-gradient with all tasks at once, and one task after another. `make bench` runs it on your machine.",
        "",
        markdown_table(headers, rows),
        "",
    ]


def _read(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
