"""Small Copydays, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "single"
WRITE = {}


def make(root):
    """Three originals, and copies of two kinds."""
    rng = np.random.default_rng(0)
    for folder in ("original", "strong", "jpegqual/50"):
        (root / folder).mkdir(parents=True)
        for i in range(3):
            name = f"{200000 + 100 * i + (folder != 'original')}.png"
            Image.fromarray(rng.integers(0, 255, (4, 5, 3), dtype=np.uint8)).save(root / folder / name)
    return str(root)
