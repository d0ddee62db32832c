"""Small RefCOCO: six images and references to their objects, for the tests over every format."""

from helpers.annotated import pictures, save, write_references

LABELS = "single"
WRITE = {}


def make(root):
    samples = pictures()
    save(root / "train2014", samples)
    write_references(root, samples, ["train", "test"])
    return str(root)
