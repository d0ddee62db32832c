"""Small list of two folders, for the tests that run over every format; see `sample_data`."""

from helpers import containers

LABELS = "single"
WRITE = {}  # its members' formats


def make(root):
    names = list(containers.pictures())
    for part, chosen in (("one", names[::2]), ("two", names[1::2])):
        samples = {name: containers.pictures()[name] for name in chosen}
        (root / part).mkdir()
        containers.write_folder(
            root / part, {f"{split}/{n}": s for split in ("train", "test") for n, s in samples.items()}
        )
    (root / "both.yaml").write_text("sources: {one: {data: one, weight: 2}, two: two/}\n")
    return str(root / "both.yaml")
