"""Small Open Images: verified labels, boxes and names of classes, for the tests that run over every format."""

from helpers.annotated import pictures, write_open_images

LABELS = "multi"
WRITE = {}


def make(root):
    write_open_images(root, pictures(12))
    for table in root.glob("*validation*.csv"):
        table.rename(root / table.name.replace("validation", "test"))
    (root / "validation").rename(root / "test")
    return str(root)
