"""Small images with maps of boundaries; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "boundaries"
WRITE = {}  # tests/protocols/test_edges.py damages files


def make(root):
    for folder in ("images", "boundaries"):
        (root / folder).mkdir()
    for i in range(3):
        Image.new("RGB", (5, 4), (90 * i, 0, 0)).save(root / "images" / f"{i}.png")
        Image.fromarray(np.eye(4, 5, i, dtype=np.uint8) * 255).save(root / "boundaries" / f"{i}.png")
    return str(root)
