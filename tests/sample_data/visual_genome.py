"""Small Visual Genome: six images in two folders, their objects and regions, for the tests over every format."""

from helpers.annotated import pictures, write_genome

LABELS = "single"
WRITE = {}


def make(root):
    write_genome(root, pictures())
    return str(root)
