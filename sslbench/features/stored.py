"""Features of two parts that some former run has stored, whatever network they come from."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sslbench.data.splits import TrainTest
from sslbench.features.store import Entry


class StoredPair(NamedTuple):
    """Features of a train and a test part from one network and layer, (N, D) and (M, D), and what made them."""

    train: npt.NDArray[np.floating]
    test: npt.NDArray[np.floating]
    made_by: str


def find_stored(root: Path, data: TrainTest) -> StoredPair | None:
    """The newest features in the store that describe both parts of the data, every image of them.

    Args:
        root: folder of the feature store; may be missing.
        data: the parts; where they were cut from one source, its features serve both.

    Returns:
        None if there are none from one network, layer and preprocessing.

    Raises:
        StoreError: an entry that fits is damaged.
    """
    wanted = {part.images_fingerprint() for part in (data.train, data.test, data.whole) if part is not None}
    entries = sorted(root.glob("*/meta.json"), key=lambda file: -file.stat().st_mtime)
    groups: dict[str, dict[str, Entry]] = {}
    for entry in (Entry(file.parent) for file in entries):
        meta = entry.meta()
        if not isinstance(meta.get("key"), dict):
            continue  # damaged
        key = dict(meta["key"])
        images = key.pop("images", None)
        if images in wanted and not meta.get("left_out"):
            for layer in entry.layers():
                group = groups.setdefault(json.dumps([layer, key], sort_keys=True), {})
                group.setdefault(images, entry)
    for name, group in groups.items():
        layer, key = json.loads(name)
        found = _both(data, group, layer)
        if found is not None:
            return StoredPair(*found, made_by=f"features of {key['backbone']['name']}, layer {layer}")
    return None


def _both(
    data: TrainTest, group: dict[str, Entry], layer: str
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]] | None:
    if data.whole is not None and (entry := group.get(data.whole.images_fingerprint())):
        place = {sample_id: row for row, sample_id in enumerate(data.whole.ids)}
        whole = entry.read(layer)
        train, test = (whole[[place[sample_id] for sample_id in part.ids]] for part in (data.train, data.test))
        return train, test
    entries = [group.get(part.images_fingerprint()) for part in (data.train, data.test)]
    if entries[0] is None or entries[1] is None:
        return None
    return entries[0].read(layer), entries[1].read(layer)
