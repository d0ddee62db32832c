"""Small SceneParse folder, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "none"
WRITE = {}  # label maps only


def make(root):
    for split in ("training", "validation"):
        maps = np.arange(20).reshape(4, 5) % 3
        for kind, values in (("images", np.full((4, 5, 3), 8 * len(split))), ("annotations", maps)):
            (root / kind / split).mkdir(parents=True)
            Image.fromarray(values.astype(np.uint8)).save(root / kind / split / "a.png")
    (root / "objectInfo150.txt").write_text("Idx\tName\n1\twall\n2\tsky\n")
    return str(root)
