"""Two images with COCO captions, for the tests that run over every format; see `sample_data`."""

import json

import numpy as np
from PIL import Image

LABELS = "texts"
WRITE = {}


def make(root):
    rng = np.random.default_rng(0)
    for name in "abc":
        Image.fromarray(rng.integers(0, 255, (4, 5, 3), dtype=np.uint8)).save(root / f"{name}.png")
    images = [{"id": i, "file_name": f"{name}.png"} for i, name in enumerate("abc")]
    captions = [{"id": i, "image_id": i // 2, "caption": f"caption {i}"} for i in range(6)]
    (root / "captions.json").write_text(json.dumps({"images": images, "annotations": captions}))
    return str(root / "captions.json")
