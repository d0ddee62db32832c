"""TSS of one folder, two pairs, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "points"
WRITE = {}


def write_flow(file, flow):
    """Write vectors (H, W, 2) as a Middlebury .flo file."""
    height, width = flow.shape[:2]
    head = np.float32(202021.25).tobytes() + np.array([width, height], "<i4").tobytes()
    file.write_bytes(head + flow.astype("<f4").tobytes())


def make(root):
    folder = root / "JODS" / "pair1"
    folder.mkdir(parents=True)
    for k, move in ((1, 2.0), (2, -2.0)):
        Image.fromarray(np.full((12, 20, 3), 50 * k, np.uint8)).save(folder / f"image{k}.png")
        flow = np.full((12, 20, 2), 1e10)
        flow[3:9, 4:16] = (move, 0)
        write_flow(folder / f"flow{k}.flo", flow)
    return str(root)
