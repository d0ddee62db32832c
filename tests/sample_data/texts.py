"""A table of three images with two captions each, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "texts"
WRITE = {}


def make(root):
    rng = np.random.default_rng(0)
    for name in "abc":
        Image.fromarray(rng.integers(0, 255, (4, 5, 3), dtype=np.uint8)).save(root / f"{name}.png")
    rows = [f"{name}.png,caption {i} of {name}" for name in "abc" for i in range(2)]
    (root / "captions.csv").write_text("\n".join(["path,caption", *rows]))
    return str(root / "captions.csv")
