"""Small file of arrays, for the tests that run over every format; see `sample_data`."""

import numpy as np

LABELS = "single"
WRITE = {}  # its images are arrays


def make(root):
    """MedMNIST's arrays, of six images a split."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "test"):
        arrays[f"{split}_images"] = rng.integers(0, 255, (6, 28, 28, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(6, dtype=np.uint8)[:, None] % 3
    np.savez_compressed(root / "tinymnist.npz", **arrays)
    return str(root / "tinymnist.npz")
