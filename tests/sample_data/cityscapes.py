"""Small Cityscapes folder, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "none"
WRITE = {}  # label maps only


def make(root):
    for top, name, values in (
        ("leftImg8bit", "leftImg8bit", np.zeros((4, 5, 3))),
        ("gtFine", "gtFine_labelIds", np.full((4, 5), 7)),
    ):
        for split in ("train", "val"):
            (root / top / split / "ulm").mkdir(parents=True)
            Image.fromarray(values.astype(np.uint8)).save(root / top / split / "ulm" / f"ulm_0_{name}.png")
    return str(root)
