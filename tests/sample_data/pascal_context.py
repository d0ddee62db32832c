"""Small Pascal Context, for the tests that run over every format; see `sample_data`."""

import numpy as np
from PIL import Image

LABELS = "none"
WRITE = {}  # label maps only


def make(root):
    tree = root / "VOCdevkit" / "VOC2010"
    lists = tree / "ImageSets" / "SegmentationContext"
    for folder in (lists, tree / "JPEGImages", tree / "SegmentationClassContext"):
        folder.mkdir(parents=True)
    for i, split in enumerate(("train", "val")):
        Image.new("RGB", (5, 4)).save(tree / "JPEGImages" / f"{split}.jpg")
        Image.fromarray(np.full((4, 5), i, np.uint8)).save(tree / "SegmentationClassContext" / f"{split}.png")
        (lists / f"{split}.txt").write_text(split)
    return str(tree)
