"""Small TFDS folder, for the tests that run over every format; see `sample_data`."""

from helpers import containers

LABELS = "single"
WRITE = {"tfds": containers.write_tfds}


def make(root):
    names = list(containers.pictures())
    return containers.write_tfds(root, containers.pictures(), splits={"train": names[:7], "test": names[7:]})
