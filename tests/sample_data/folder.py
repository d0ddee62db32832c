"""Small image folder, for the tests that run over every format; see `sample_data`."""

from helpers import containers

from sample_data import write_splits

LABELS = "single"
WRITE = {"folder": containers.write_folder}


def make(root):
    write_splits(root)
    return str(root)
