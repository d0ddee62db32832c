"""Small shard of SA-1B: six images with their regions in a tar file, for the tests over every format."""

from helpers.annotated import pictures, write_masks

LABELS = "boxes"
WRITE = {}


def make(root):
    return str(write_masks(root / "sa_000000.tar", pictures()))
