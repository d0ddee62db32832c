"""Small images with depth; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "depth"
WRITE = {}  # tests/data/test_data_depth.py damages files


def make(root):
    for folder in ("images", "depth"):
        (root / folder).mkdir()
    for i in range(3):
        Image.new("RGB", (5, 4), (90 * i, 0, 0)).save(root / "images" / f"{i}.png")
        np.save(root / "depth" / f"{i}.npy", np.full((4, 5), 1.0 + i))
    return str(root)
