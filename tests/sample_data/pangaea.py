"""Small HLS Burn Scars and Sen1Floods11, for the tests that run over every format; see `sample_data`."""

import numpy as np
import tifffile

LABELS = "none"
WRITE = {}  # label maps only


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, array, compression="zlib", planarconfig="contig" if array.ndim == 3 else None)


def label(i):
    """A map of 4 x 5: the first row does not count, 1 from column i on."""
    found = np.zeros((4, 5), np.int16)
    found[:, i % 5 :], found[0] = 1, -1
    return found


def make(root, training=20, validation=2):
    """HLS Burn Scars: brighter where it burnt; the first pixel of each image is missing."""
    for folder, number in (("training", training), ("validation", validation)):
        for i in range(number):
            image = np.random.default_rng(i).uniform(0, 0.1, (4, 5, 6)).astype(np.float32)
            image += 0.5 * (label(i) == 1)[..., None] + np.arange(6, dtype=np.float32)
            image[0, 0] = 9999
            save(root / folder / f"scene{i:02d}_merged.tif", image)
            save(root / folder / f"scene{i:02d}.mask.tif", label(i))
    return str(root)


def floods(root):
    """Sen1Floods11: bands have ten times their number, those of radar are negative."""
    top = root / "v1.1"
    for split, names in {"train": ["Ghana_1", "Ghana_2"], "valid": ["India_3"], "test": ["India_4"]}.items():
        rows = [f"{name}_S1Hand.tif,{name}_LabelHand.tif" for name in names]
        lists = top / "splits" / "flood_handlabeled"
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f"flood_{split}_data.csv").write_text("\n".join(rows) + "\n")
        for name in names:
            i = int(name[-1])
            values = np.zeros((4, 5, 1)) + np.arange(1, 14) * 10 + np.arange(5)[:, None]
            folder = top / "data" / "flood_events" / "HandLabeled"
            save(folder / "S2Hand" / f"{name}_S2Hand.tif", values.astype(np.int16))
            radar = -values[..., :2].astype(np.float32)
            radar[0, 0] = np.nan
            save(folder / "S1Hand" / f"{name}_S1Hand.tif", radar)
            save(folder / "LabelHand" / f"{name}_LabelHand.tif", label(i))
    return str(root)
