"""Small COCO folder, for the tests that run over every format; see `sample_data`."""

from helpers.annotated import pictures, save, write_coco

LABELS = "single"
WRITE = {}


def make(root):
    for seed, split in enumerate(("train2017", "test2017")):
        samples = pictures(seed=seed)
        save(root / split, samples)
        write_coco(root / "annotations" / f"instances_{split}.json", samples)
    return str(root)
