"""Small NYUv2, for the tests that run over every format; see `sample_data`."""

import numpy as np
import pytest

LABELS = "none"
WRITE = {}  # label maps only


def make(root):
    h5py, scipy_io = pytest.importorskip("h5py"), pytest.importorskip("scipy.io")
    labels = np.arange(40).reshape(2, 4, 5) % 3
    write(h5py, scipy_io, root, labels, [2, 1], ["wall", "floor"])
    return str(root / "nyu_depth_v2_labeled.mat")


def write(h5py, scipy_io, root, labels, groups, names):
    """Write maps (N, H, W) of classes from 1, black images, and the group of each class."""
    with h5py.File(root / "nyu_depth_v2_labeled.mat", "w") as file:
        file["images"] = np.zeros((len(labels), 3, *labels.shape[:0:-1]), np.uint8)
        file["depths"] = np.zeros((len(labels), *labels.shape[:0:-1]), np.float32)
        file["labels"] = labels.transpose(0, 2, 1).astype(np.uint16)
    cells = np.array([names], dtype=object)
    scipy_io.savemat(root / "classMapping40.mat", {"mapClass": [groups], "className": cells})
