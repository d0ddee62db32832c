"""DAVIS of two videos, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "tracks"
WRITE = {}


def make(root, frames=4, first=1, size=(12, 20)):
    lists = root / "ImageSets" / "2017"
    lists.mkdir(parents=True)
    for video in ("cow", "dog"):
        for kind in ("JPEGImages", "Annotations"):
            (root / kind / "480p" / video).mkdir(parents=True)
        for t in range(frames):
            Image.fromarray(np.full((12, 20, 3), 40 * t, np.uint8)).save(
                root / "JPEGImages" / "480p" / video / f"{t:05d}.jpg"
            )
            ids = np.zeros(size, np.uint8)
            ids[2:6, t : t + 5], ids[0, 0] = first, 255
            mask = Image.fromarray(ids, mode="P")
            mask.putpalette(list(range(256)) * 3)
            mask.save(root / "Annotations" / "480p" / video / f"{t:05d}.png")
    (lists / "val.txt").write_text("cow\ndog\n")
    return str(root)
