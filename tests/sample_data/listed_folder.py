"""Small folder with a list of labels, for the tests that run over every format; see `sample_data`."""

from sample_data import write_splits

LABELS = "single"
WRITE = {}


def make(root):
    write_splits(root)
    for split in ("train", "test"):
        lines = []
        for file in sorted((root / split).rglob("*.png")):
            name = f"{file.parent.name}{file.name}"
            lines.append(f"{name},{file.parent.name}")
            file.rename(root / split / name)
        for folder in ("a", "b"):
            (root / split / folder).rmdir()
        (root / split / "metadata.csv").write_text("\n".join(["file_name,label", *lines]) + "\n")
    return str(root)
