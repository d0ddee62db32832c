"""Small Market-1501, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "single"
WRITE = {}  # tests/data/test_data_reidentification.py has other layouts


def make(root):
    """Three identities by two cameras, a distractor and junk."""
    rng = np.random.default_rng(0)
    names = {
        "bounding_box_train": ("0001_c1s1_000001_00", "0001_c2s1_000002_00", "0004_c1s1_000003_00"),
        "query": ("0002_c1s1_000004_00", "0003_c2s1_000005_00"),
        "bounding_box_test": (
            *("-1_c1s1_000006_00", "0000_c1s1_000007_00", "0002_c1s1_000008_00", "0002_c2s1_000009_00"),
            *("0003_c1s1_000010_00", "0003_c3s1_000011_00"),
        ),
    }
    for folder, own in names.items():
        (root / folder).mkdir(parents=True)
        for name in own:
            Image.fromarray(rng.integers(0, 255, (6, 4, 3), dtype=np.uint8)).save(root / folder / f"{name}.png")
    return str(root)
