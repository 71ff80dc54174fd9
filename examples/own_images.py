"""Images of your own: a folder of class folders, and digits that no one has labelled before.

    python examples/own_images.py

Scikit-learn's handwritten digits are written as PNG files, a folder for each digit, as your photographs may lie.
Classes are divided by a rule: some digits are for training, others are held out. A ProtoNet is trained on the former,
shown five images each of two digits that it has never seen, and asked about others. Where it is not sure, it should say
so: a threshold on the confidence sets those aside.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import fewsure

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SHOT = 5
SURE = 0.95


def write_images(folder: Path) -> Path:
    """Write each digit as FOLDER/NAME/NUMBER.png."""
    digits = load_digits()
    for number, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        place = folder / NAMES[digit]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 255 / 16).astype(np.uint8)).save(place / f"{number:04}.png")
    return folder


def read_images(files: list[Path]) -> np.ndarray:
    """Bytes (N, 1, 16, 16), as the network sees them."""
    return np.stack([np.asarray(Image.open(file).resize((16, 16), Image.Resampling.LANCZOS))[None] for file in files])


def main() -> None:
    """Write the folder, train, and classify digits that were held out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/own-images"), help="a new folder for images and run")
    parser.add_argument("--updates", type=int, default=100, help="meta-updates; more is better")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    folder = write_images(options.out / "digits")
    data = fewsure.Images(folder=str(folder), image_size=16, grey=True, way=2, shot=SHOT)

    learner = fewsure.Learner("protonet", data, out=options.out / "run", device="cpu")
    learner.train(updates=options.updates)

    unseen = data.pool("test").classes
    files = {name: sorted((folder / name).iterdir()) for name in unseen}
    support = [file for name in unseen for file in files[name][:SHOT]]
    query = [file for name in unseen for file in files[name][SHOT:]]
    adapted = learner.adapt(read_images(support), [file.parent.name for file in support])
    p = adapted.predict(read_images(query))
    right = np.array([said == file.parent.name for said, file in zip(p.label, query, strict=True)])
    sure = p.confidence >= SURE
    print(f"{' and '.join(unseen)}, never seen in training, from {SHOT} images each:")
    print(f"{right.sum()} of {len(query)} others are right")
    print(f"{sure.sum()} of them have a confidence of {SURE:.0%} or more; {right[sure].sum()} of those are right")
    print(f"The run is in {learner.folder}.")


if __name__ == "__main__":
    main()
