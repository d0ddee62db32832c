"""Small folders of images and XML, for the tests that run over every format; see `sample_data`."""

from helpers.annotated import pictures, save, write_xml

LABELS = "single"
WRITE = {}


def make(root):
    for seed, split in enumerate(("train", "test")):
        samples = pictures(seed=seed)
        save(root / split, samples)
        write_xml(root / split, samples)
    return str(root)
