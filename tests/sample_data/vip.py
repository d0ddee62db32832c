"""VIP of two videos, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "parts"
WRITE = {}


def make(root, frames=4, classes=(4, 8), size=(12, 20), lists=("val",)):
    for video in ("videos10", "videos9"):
        for kind in ("Images", "Annotations/Category_ids"):
            (root / kind / video).mkdir(parents=True)
        for t in range(frames):
            pixels = np.full((12, 20, 3), 40 * t, np.uint8)
            Image.fromarray(pixels).save(root / "Images" / video / f"{25 * t:012d}.jpg")
            ids = np.zeros(size, np.uint8)
            ids[2:4, t : t + 5], ids[4:6, t : t + 5], ids[0, 0] = *classes, 255
            Image.fromarray(ids).save(root / "Annotations/Category_ids" / video / f"{25 * t:012d}.png")
    (root / "lists").mkdir()
    for name in lists:
        (root / "lists" / f"{name}_videos.txt").write_text("videos10\nvideos9\n")
    return str(root)
