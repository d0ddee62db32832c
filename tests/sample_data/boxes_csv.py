"""Small table of boxes, for the tests that run over every format; see `sample_data`."""

from helpers.annotated import pictures, save, write_table

LABELS = "single"
WRITE = {}


def make(root):
    samples = pictures()
    save(root / "images", samples)
    write_table(root / "boxes.csv", samples)
    return str(root / "boxes.csv")
