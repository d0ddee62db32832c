"""Small Cityscapes folder, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "none"
WRITE = {}  # label maps and objects only


def make(root):
    for top, name, values in (
        ("leftImg8bit", "leftImg8bit", np.zeros((4, 5, 3))),
        ("gtFine", "gtFine_labelIds", np.full((4, 5), 26)),
        ("gtFine", "gtFine_instanceIds", np.full((4, 5), 26001)),
    ):
        for split in ("train", "val"):
            (root / top / split / "ulm").mkdir(parents=True, exist_ok=True)
            depth = np.uint16 if values.max() > 255 else np.uint8
            values = values + len(split) if values.ndim == 3 else values
            Image.fromarray(values.astype(depth)).save(root / top / split / "ulm" / f"ulm_0_{name}.png")
    return str(root)
