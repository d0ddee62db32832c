"""JHMDB of two clips for training and two for test, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image
from scipy.io import savemat

LABELS = "poses"
WRITE = {}


def joints(frames, shift=0.0):
    """Positions (2, 15, T), counted from 1, of a person that moves by a pixel per frame."""
    x, y = np.arange(15.0)[:, None] + 2 + np.arange(frames), np.repeat(np.arange(15.0)[:, None] % 6 + 3, frames, 1)
    return np.stack([x + shift, y])


def make(root, frames=4, annotated=None, shift=0.0, lists=True):
    (root / "splits").mkdir(parents=True)
    lines = []
    for number, clip in enumerate(("a", "b", "c", "d")):
        (root / "Rename_Images" / "wave" / clip).mkdir(parents=True)
        (root / "joint_positions" / "wave" / clip).mkdir(parents=True)
        for t in range(frames):
            pixels = np.full((12, 24, 3), 40 * t + number, np.uint8)
            Image.fromarray(pixels).save(root / "Rename_Images" / "wave" / clip / f"{t + 1:05d}.png")
        savemat(
            root / "joint_positions" / "wave" / clip / "joint_positions.mat",
            {"pos_img": joints(annotated or frames, shift)},
        )
        lines.append(f"{clip}.avi {1 + number // 2}\n")
    if lists:
        (root / "splits" / "wave_test_split1.txt").write_text("".join(lines))
    return str(root)
