"""PF-Pascal of two pairs, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "points"
WRITE = {}
HEAD = "source_image,target_image,class,XA,YA,XB,YB"
LINES = ("JPEGImages/a.jpg,JPEGImages/b.jpg,8,3;10,4;8,4;11,4;8", "JPEGImages/b.jpg,JPEGImages/a.jpg,12,5,6,7,8")


def make(root):
    (root / "JPEGImages").mkdir(parents=True)
    for name in "ab":
        Image.fromarray(np.full((12, 20, 3), ord(name), np.uint8)).save(root / "JPEGImages" / f"{name}.jpg")
    (root / "test_pairs.csv").write_text("\n".join((HEAD, *LINES)) + "\n")
    return str(root)
