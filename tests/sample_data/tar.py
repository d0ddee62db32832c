"""Small tar shards, for the tests that run over every format; see `sample_data`."""

from helpers import containers

LABELS = "single"
WRITE = {"tar": containers.write_tar, "tar shards": containers.write_shards}


def make(root):
    return containers.write_shards(root, containers.pictures())
