"""NAVI of one scene, for the tests that run over every format; see `sample_data`."""

import json

import numpy as np
from PIL import Image

LABELS = "camera_pairs"
WRITE = {}


def make(root):
    rng, folder = np.random.default_rng(0), root / "bear" / "multiview_00_a"
    (folder / "images").mkdir(parents=True)
    records = []
    for i in range(6):
        Image.fromarray(rng.integers(0, 255, (4, 5, 3), dtype=np.uint8)).save(folder / "images" / f"{i}.png")
        half = np.radians(15 * i)
        camera = {"q": [np.cos(half), 0.0, 0.0, np.sin(half)], "t": [100.0 * i, 0.0, 2000.0]}
        records.append({"filename": f"{i}.png", "split": "val" if i % 2 else "train", "camera": camera})
    (folder / "annotations.json").write_text(json.dumps(records))
    return str(root)
