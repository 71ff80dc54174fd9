"""`python -m tests.reliability.guided READER INPUTS FOLDER`: one reader under atheris, which goes where new code is."""

import json
import random
import sys
from collections import Counter
from pathlib import Path

import torch  # noqa: F401 (first, so that atheris does not watch it)


def main(name: str, inputs: int, place: Path) -> None:
    """Give a reader so many inputs, and print how it took them; files go to `place`."""
    import atheris  # it need not be installed

    with atheris.instrument_imports(include=["fewsure"]):
        from .fuzz import all_readers, attempt, changed, limit_memory, watched

    reader = all_readers(place)[name]
    counts: Counter[str] = Counter(read=0, refused=0, crashed=0)
    chance = random.Random(name)
    limit_memory()
    with watched(place) as outside:

        def once(content: bytes) -> None:
            counts[attempt(reader, content)] += 1
            if counts.total() == inputs:  # libFuzzer ends the process itself, and says nothing of what we counted
                shown = {"inputs": inputs, **counts, "done_outside": len(outside)}
                print(json.dumps(shown), flush=True)

        def mutate(content: bytes, largest: int, seed: int) -> bytes:
            chance.seed(seed)
            start = content if chance.random() < 0.7 else chance.choice(reader.seeds)
            return changed(start, reader.seeds, chance)[:largest]

        corpus = place / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(reader.seeds):
            (corpus / str(number)).write_bytes(seed)
        options = [f"-atheris_runs={inputs}", "-seed=1", "-max_len=200000", "-rss_limit_mb=8192", str(corpus)]
        atheris.Setup([sys.argv[0], *options], once, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
