"""A folder with a table of three rated pairs, for the tests that run over every format; see `sample_data`."""

import csv

import numpy as np
from PIL import Image

LABELS = "rated_pairs"
WRITE = {}
COLUMNS = ("image1", "image2", "score", "split")


def make(root):
    rng = np.random.default_rng(0)
    for name in "abcd":
        Image.fromarray(rng.integers(0, 255, (4, 5, 3), dtype=np.uint8)).save(root / f"{name}.png")
    with (root / "pairs.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows((f"{a}.png", f"{b}.png", score, "test") for a, b, score in ("ab1", "bc4", "cd2"))
    return str(root)
