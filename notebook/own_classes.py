"""Classes of a user's own, for trials: characters of Omniglot as a folder of images, and as a table of numbers.

python notebook/own_classes.py DATA/omniglot/images_background.zip own
python notebook/explore.py try "own images" simpa images '{"data": {"folder": "own/images"}}' …
python notebook/explore.py try "own rows" simpa table-classes '{"data": {"file": "own/rows.csv", "label": "label"}}' …
"""

import argparse
import io
import re
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

ALPHABETS = 12
"""The first so many by name."""
SIDE = 10
"""Of the image that a row of the table is."""


def main() -> None:
    """Write the folder and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    with zipfile.ZipFile(asked.archive) as archive:
        names = [name.split("/")[-3:] for name in archive.namelist() if name.endswith(".png")]
        taken = sorted({alphabet for alphabet, _, _ in names})[:ALPHABETS]
        contents = {
            (re.sub(r"[()]", "", "_".join(name[:2])), name[2]): archive.read("/".join(["images_background", *name]))
            for name in names
            if name[0] in taken
        }
    rows = []
    for (label, file), content in sorted(contents.items()):
        folder = asked.out / "images" / label
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
        small = Image.open(io.BytesIO(content)).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
        rows.append([*map(str, (255 - np.asarray(small)).ravel()), label])
    header = [*(f"p{number}" for number in range(SIDE**2)), "label"]
    (asked.out / "rows.csv").write_text("\n".join(map(",".join, [header, *rows])) + "\n", encoding="utf-8")
    print(f"{len(rows):,} images of {len({label for label, _ in contents})} classes in {asked.out}")


if __name__ == "__main__":
    main()
