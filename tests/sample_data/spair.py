"""SPair-71k of two test pairs, for the tests that run over every format; see `sample_data`."""

import json

import numpy as np
from PIL import Image

LABELS = "points"
WRITE = {}
PAIRS = {"000001-a-b:cat": ("a", "b"), "000002-b-c:cat": ("b", "c")}


def annotation(source, target, **changes):
    """The content of a file of PairAnnotation."""
    return {
        "src_imname": f"{source}.jpg",
        "trg_imname": f"{target}.jpg",
        "category": "cat",
        "src_imsize": [20, 12, 3],
        "trg_imsize": [20, 12, 3],
        "trg_bndbox": [1, 2, 11, 10],
        "src_kps": [[3, 4], [10, 8]],
        "trg_kps": [[4, 4], [11, 8]],
        **changes,
    }


def make(root, contents=None):
    for folder in ("Layout/large", "PairAnnotation/test", "JPEGImages/cat"):
        (root / folder).mkdir(parents=True)
    for name in "abc":
        Image.fromarray(np.full((12, 20, 3), ord(name), np.uint8)).save(root / "JPEGImages" / "cat" / f"{name}.jpg")
    for name, content in (contents or {name: annotation(*both) for name, both in PAIRS.items()}).items():
        (root / "PairAnnotation" / "test" / f"{name}.json").write_text(json.dumps(content))
    (root / "Layout" / "large" / "test.txt").write_text("\n".join(contents or PAIRS) + "\n")
    return str(root)
