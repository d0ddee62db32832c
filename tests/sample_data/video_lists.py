"""Small UCF101, for the tests that run over every format; see `sample_data`."""

from helpers.clips import moving, write_video

LABELS = "single"
WRITE = {}  # tests/data/test_data_video_lists.py has other layouts


def make(root):
    """Two classes of three groups of two clips each, two for training."""
    lists = {"train": [], "test": []}
    for number, (action, direction) in enumerate((("Archery", "left"), ("Bowling", "right")), 1):
        for group, clip in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)):
            name = f"{action}/v_{action}_g{group:02d}_c{clip:02d}.avi"
            write_video(root / "UCF-101" / name, moving(direction, (number, group, clip), number=16), codec="mpeg4")
            split = "test" if group == 1 else "train"
            lists[split].append(f"{name} {number}" if split == "train" else name)
    (root / "ucfTrainTestlist").mkdir()
    for split, lines in lists.items():
        (root / "ucfTrainTestlist" / f"{split}list01.txt").write_text("\n".join(lines) + "\n")
    return str(root)
