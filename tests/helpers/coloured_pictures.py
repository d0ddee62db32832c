"""Folders of pictures with a folder per class."""

import numpy as np
from PIL import Image

COLOURS = {"blue": (30, 30, 200), "green": (30, 200, 30), "red": (200, 30, 30)}


def class_folders(root, classes, pixels, parts=None):
    """Write ROOT/PART/CLASS/i.png: `pixels(c)` of class number c, cut to bytes; `parts` has numbers by part."""
    for part, n in (parts or {"train": 12, "val": 6}).items():
        for c, name in enumerate(classes):
            (root / part / name).mkdir(parents=True)
            for i in range(n):
                Image.fromarray(np.clip(pixels(c), 0, 255).astype(np.uint8)).save(root / part / name / f"{i}.png")
    return root


def write_tinted(folder, n, seed=0, classes=COLOURS):
    """Write noise of 32 x 32 pixels with one channel raised per class: too alike for a network to be always right."""
    rng = np.random.default_rng(seed)
    class_folders(folder, classes, lambda c: rng.integers(0, 120, (32, 32, 3)) + 40 * np.eye(3)[c % 3], {".": n})


def write_pictures(folder, n, seed=0, classes=COLOURS):
    """Write noisy pictures of one colour per class."""
    rng, colours = np.random.default_rng(seed), [COLOURS[name] for name in classes]
    class_folders(folder, classes, lambda c: rng.normal(0, 60, (20, 18, 3)) + colours[c], {".": n})
