"""Handwritten digits of random grey on random grey, drawn as a folder of images."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from sslbench.arrays import ByteArray, FloatArray

SIDE = 16
"""Height and width of the images in pixels."""
TRAIN = 1438
"""Number of training images; the other 359 are for test."""
_GREYS = (20, 235)
# Smallest difference between the greys of stroke and paper
_LEAST_CONTRAST = 100
# Largest difference between the middle and the edge of the paper, in grey values
_SHADE = 20
_NOISE = 3


def draw_digits(folder: Path, seed: int) -> Path:
    """Write the digits bundled with scikit-learn as train/CLASS/*.png and val/CLASS/*.png, unless they are there.

    Every image has a grey of its own for the stroke and for the paper, either of which may be the brighter one, and
    light from one side. The greys tell nothing about the class.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    digits, generator = load_digits(), np.random.default_rng(seed)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for position, row in enumerate(generator.permutation(len(digits.images))):
            split = "train" if position < TRAIN else "val"
            file = part / split / str(digits.target[row]) / f"{row:04}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(_lit(digits.images[row] / 16, generator)).save(file)
        # mkdtemp lets only its owner read the folder.
        part.chmod(0o755)
        os.replace(part, folder)  # noqa: PTH105 - a reader never sees half of the images
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _lit(digit: FloatArray, generator: np.random.Generator) -> ByteArray:
    """Return a digit (8, 8) from 0 to 1 as an image (SIDE, SIDE) of random greys."""
    small = Image.fromarray(np.rint(digit * 255).astype(np.uint8))
    stroke = np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) / 255
    paper, ink = generator.uniform(*_GREYS, 2)
    while abs(paper - ink) < _LEAST_CONTRAST:
        paper, ink = generator.uniform(*_GREYS, 2)
    angle, strength = generator.uniform(0, 2 * np.pi), generator.uniform(0, _SHADE)
    y, x = np.mgrid[:SIDE, :SIDE] / (SIDE / 2) - 1
    shade = strength * (np.cos(angle) * x + np.sin(angle) * y)
    grey = paper + (ink - paper) * stroke + shade + generator.normal(0, _NOISE, stroke.shape)
    return np.asarray(np.clip(np.rint(grey), 0, 255), dtype=np.uint8)
