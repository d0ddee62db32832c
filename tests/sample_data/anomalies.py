"""Small folders in the layout of MVTec AD; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "anomalies"
WRITE = {}  # tests/protocols/test_anomaly.py has other layouts


def make(root):
    for category, shade in (("bolt", 60), ("nut", 120)):
        picture = np.full((12, 16, 3), shade, np.uint8)
        for part in ("train/good/0", "train/good/1", "test/good/0", "test/bent/0"):
            path = root / category / f"{part}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            if "bent" in part:
                picture[2:5, 3:9] = 250
            Image.fromarray(picture + len(part)).save(path)
        mask = np.zeros((12, 16), np.uint8)
        mask[2:5, 3:9] = 255
        (root / category / "ground_truth/bent").mkdir(parents=True)
        Image.fromarray(mask).save(root / category / "ground_truth/bent/0_mask.png")
    return str(root)
