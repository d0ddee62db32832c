"""HPatches of two sequences, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "homography"
WRITE = {}


def make(root):
    for name in ("i_a", "v_b"):
        (root / name).mkdir(parents=True)
        for k in (1, 2, 3):
            Image.fromarray(np.full((12, 20, 3), 20 * k, np.uint8)).save(root / name / f"{k}.ppm")
            if k > 1:
                (root / name / f"H_1_{k}").write_text(f"1 0 {k}\n0 1 0\n0 0 1\n")
    return str(root)
