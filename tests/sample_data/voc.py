"""Small Pascal VOC tree, for the tests that run over every format; see `sample_data`."""

from helpers import containers

LABELS = "multi"
WRITE = {"voc": lambda root, samples: containers.write_voc(root, samples, splits=("trainval",))}


def make(root):
    return containers.write_voc(root, containers.pictures(), splits=("trainval", "test"))
