"""Small rows of base64, for the tests that run over every format; see `sample_data`."""

from helpers import containers

LABELS = "single"
WRITE = {"tsv": containers.write_tsv}


def make(root):
    return containers.write_tsv(root, containers.pictures())
