"""Homographies of two pictures, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "homography"
WRITE = {}


def make(root):
    root.mkdir(exist_ok=True)
    for name in "ab":
        Image.fromarray(np.full((12, 20, 3), ord(name), np.uint8)).save(root / f"{name}.png")
    return f"homography:{root}"
