"""Molecules: which of an assay's molecules to measure next, when 16 of them are known to be active or not.

    python examples/molecules.py

FS-Mol's files must be in the data root (docs/data.md). A ridge regression on features of fingerprints learns from its
training assays. Then it sees 16 random molecules of an assay that it has never met, and ranks all others. A chemist
measures the top of that list, so the share of actives there is what counts.
"""

import argparse
from pathlib import Path

import numpy as np

import fewsure
from fewsure.data.sets.fs_mol import CLASSES, DATA_SET, read_assays

KNOWN, TOP = 16, 0.1


def main() -> None:
    """Train, and rank the molecules of the largest test assay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/molecules"), help="a new folder for the run")
    parser.add_argument("--updates", type=int, default=300, help="meta-updates; more is better")
    options = parser.parse_args()
    learner = fewsure.Learner("ridge", "fs-mol", out=options.out, device="cpu").train(updates=options.updates)

    assays = read_assays(DATA_SET.found("test"))
    largest = int(np.diff(assays.offsets).argmax())
    rows = slice(assays.offsets[largest], assays.offsets[largest + 1])
    molecules, active = assays.molecule[rows], assays.active[rows]
    bits = np.unpackbits(assays.bits[molecules], axis=1)

    order = np.random.default_rng(0).permutation(len(active))
    known, others = order[:KNOWN], order[KNOWN:]
    adapted = learner.adapt(bits[known], np.array(CLASSES)[active[known].astype(int)])
    p = adapted.predict(bits[others]).probabilities[:, CLASSES.index("active")]
    ranked = others[np.argsort(-p)]

    top = ranked[: round(TOP * len(ranked))]
    print(f"{assays.names[largest]}: {len(others)} molecules, of which {active[others].mean():.0%} are active")
    print(
        f"from {active[known].sum()} known actives and {(~active[known]).sum()} inactives, the tenth to measure first:"
    )
    print(f"{active[top].mean():.0%} of its {len(top)} molecules are active")
    for chance, row in zip(np.sort(p)[::-1][:5], ranked, strict=False):
        print(f"  P(active) {chance:.2f}  {CLASSES[int(active[row])]:8}  {assays.smiles[molecules[row]]}")
    print(f"The run is in {learner.folder}.")


if __name__ == "__main__":
    main()
