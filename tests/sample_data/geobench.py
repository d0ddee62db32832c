"""A small data set of GEO-Bench V1, for the tests that run over every format; see `sample_data`."""

import json

import numpy as np
import pytest

LABELS = "single"
WRITE = {}
BANDS = ("02 - Blue", "03 - Green", "04 - Red")


def make(
    root, samples=12, *, classes=2, splits=("train", "train", "test"), several=False, maps=False, bands=BANDS, date=""
):
    """Write samples whose bands are brighter for a higher class; half of each map is of class 1."""
    h5py = pytest.importorskip("h5py")
    rng, parts, by_class, stats = np.random.default_rng(0), {split: [] for split in splits}, {}, {}
    for i in range(samples):
        name, label = f"id_{i:04d}", i % classes
        parts[splits[i // classes % len(splits)]].append(name)
        by_class.setdefault(str(label), []).append(name)
        stats[name] = [0.5, 0.5] if maps else [int(label == c) for c in range(classes)]
        pixels = rng.normal(1000 + 400 * label, 100, (len(bands), 8, 10))
        pixels[:, :, 5:] += 2000 if maps else 0
        with h5py.File(root / f"{name}.hdf5", "w") as file:
            for band, values in zip(bands, pixels, strict=True):
                file[band + date] = values.astype(np.int16)
            if maps:
                file["label"] = np.repeat([[0] * 5 + [1] * 5], 8, axis=0).astype(np.int16)
            file.attrs["pickle"] = "b'no pickle'"
    (root / "band_stats.json").write_text("{}")
    (root / "default_partition.json").write_text(json.dumps(parts))
    if several or maps:
        (root / "label_stats.json").write_text(json.dumps(stats))
    else:
        (root / "label_map.json").write_text(json.dumps(by_class))
    return str(root)
