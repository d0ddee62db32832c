"""Small YOLO folder, for the tests that run over every format; see `sample_data`."""

from helpers.annotated import NAMES, pictures, save, write_yolo

LABELS = "single"
WRITE = {}


def make(root):
    for seed, split in enumerate(("train", "test")):
        samples = pictures(seed=seed)
        save(root / split / "images", samples)
        write_yolo(root / split / "labels", samples)
    (root / "data.yaml").write_text(f"train: ../train/images\ntest: ../test/images\nnames: {list(NAMES)}\n")
    return str(root)
