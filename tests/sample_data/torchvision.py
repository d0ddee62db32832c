"""Small data set of torchvision, for the tests that run over every format; see `sample_data`."""

import gzip

import numpy as np

LABELS = "single"
WRITE = {}  # its images are arrays, which cannot be broken one by one


def make(root):
    """FashionMNIST's own file format (IDX), gzipped, with six images a split."""
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for prefix in ("train", "t10k"):
        images = rng.integers(0, 255, (6, 28, 28), dtype=np.uint8)
        labels = np.arange(6, dtype=np.uint8)
        header = bytes([0, 0, 8, 3]) + b"".join(int(n).to_bytes(4, "big") for n in images.shape)
        (raw / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
        header = bytes([0, 0, 8, 1]) + (6).to_bytes(4, "big")
        (raw / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + labels.tobytes()))
    return f"torchvision:FashionMNIST@{root}"
