"""Small data of every format: `sample_data/NAME.py` belongs to `sslbench/data/formats/NAME.py`.

A module has `make(root) -> location`, `LABELS` (the kind of its labels; 'none' for label maps without classes of whole
images), and `WRITE`: name of a variant -> `write(root, samples) -> location`, samples being name -> (file, class);
empty if single images cannot be damaged.
"""

import importlib

import numpy as np
from PIL import Image

from sslbench.names import list_names

FORMATS = list_names("source")


def sample_module(name):
    """Return the module for a format."""
    return importlib.import_module(f"sample_data.{name.replace('-', '_')}")


def write_splits(root):
    """Write train/ and test/ with two classes of three images each."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("b", "a"):
            (root / split / name).mkdir(parents=True)
            for i in (10, 9, 2):
                Image.fromarray(rng.integers(0, 255, (4, 5, 3), dtype=np.uint8)).save(root / split / name / f"{i}.png")
