"""NIGHTS of three triplets, for the tests that run over every format; see `sample_data`."""

import csv

import numpy as np
from PIL import Image

LABELS = "triplets"
WRITE = {}
COLUMNS = ("ref_path", "left_path", "right_path", "left_vote", "right_vote", "votes", "split")


def make(root):
    rng = np.random.default_rng(0)
    for name in "abcde":
        Image.fromarray(rng.integers(0, 255, (4, 5, 3), dtype=np.uint8)).save(root / f"{name}.png")
    rows = [("a", "b", "c", 1, 0), ("b", "c", "d", 0, 1), ("c", "d", "e", 1, 0)]
    with (root / "data.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows((*(f"{name}.png" for name in row[:3]), *row[3:], 6, "test") for row in rows)
    return str(root)
