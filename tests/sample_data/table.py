"""Small tables, for the tests that run over every format; see `sample_data`."""

from helpers import containers

from sample_data import write_splits

LABELS = "single"
WRITE = {
    "table": containers.write_csv,
    "table of text": containers.write_txt,
    "table of records": containers.write_records,
}


def make(root):
    write_splits(root)
    files = sorted(root.rglob("*.png"))
    lines = [f"{f.relative_to(root)},{f.parent.name},{f.parent.parent.name}" for f in files]
    (root / "t.csv").write_text("\n".join(["path,label,split", *lines]) + "\n")
    return str(root / "t.csv")
