"""Small zip archive, for the tests that run over every format; see `sample_data`."""

from helpers import containers

LABELS = "single"
WRITE = {"zip": containers.write_zip}


def make(root):
    names = containers.pictures().items()
    splits = {f"{split}/{name}": sample for split in ("train", "test") for name, sample in names}
    return containers.write_zip(root, splits)
