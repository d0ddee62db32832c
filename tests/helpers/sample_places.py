"""Images with a bright object each, its box and its mask, in memory."""

import dataclasses
import json

import numpy as np
from PIL import Image

from sslbench.data.boundaries import MaskBoundaries
from sslbench.data.images import Arrays
from sslbench.data.label_map import LabelMap
from sslbench.data.source import Labels, Source


@dataclasses.dataclass(frozen=True)
class ArrayObjects:
    """One object per image: a box, and where `masked` its mask."""

    boxes: np.ndarray
    masked: bool = True

    def boxes_of(self, index):
        return self.boxes[index : index + 1].astype(np.float32)

    def bitmaps_of(self, index, height, width):
        if not self.masked:
            return None
        return filled(self.boxes[index], height, width)[None]

    def select(self, indices):
        return ArrayObjects(self.boxes[np.asarray(indices)], self.masked)

    def fingerprint(self):
        return str(self.boxes.sum())


@dataclasses.dataclass(frozen=True)
class BoxMasks:
    """Foreground masks that are the boxes."""

    boxes: np.ndarray
    side: int

    def read_map(self, index, *, size=None):
        return LabelMap(filled(self.boxes[index], self.side, self.side).astype(np.int32), None)

    def select(self, indices):
        return BoxMasks(self.boxes[np.asarray(indices)], self.side)

    def fingerprint(self):
        return str(self.boxes.sum())


def filled(box, height, width):
    left, top, right, bottom = box.tolist()
    mask = np.zeros((height, width), dtype=bool)
    mask[top:bottom, left:right] = True
    return mask


def bright_objects(n, seed, *, kind="boxes", side=32, cell=4, masked=True):
    """Dark images with a bright rectangle whose corners lie on a grid of cells."""
    rng = np.random.default_rng(seed)
    corners = cell * rng.integers(0, 3, (n, 2))
    sizes = cell * rng.integers(2, 4, (n, 2))
    boxes = np.concatenate([corners, corners + sizes], axis=1)
    images = rng.integers(0, 20, (n, side, side, 3)).astype(np.uint8)
    for image, box in zip(images, boxes, strict=True):
        image[filled(box, side, side)] = 230
    labels = Labels(kind, ("object",), np.zeros((n, 0), dtype=np.int8))
    ids = tuple(f"{seed}-{i:04d}" for i in range(n))
    objects = ArrayObjects(boxes, masked) if kind == "boxes" else None
    maps = BoxMasks(boxes, side) if kind == "mask" else None
    values = MaskBoundaries(f"objects {seed}", BoxMasks(boxes, side), regions=True) if kind == "boundaries" else None
    source = Source(f"objects {seed}", ids, labels, Arrays(images, f"objects {seed}"), objects=objects, maps=maps)
    return dataclasses.replace(source, pixel_values=values)


def write_manifest(folder, boxes, *, size=(40, 30), crowd=()):
    """Write images and a COCO manifest with the boxes (x, y, width, height) of each; return its path."""
    images, annotations = [], []
    for i, of_image in enumerate(boxes):
        name = f"{i}.png"
        Image.new("RGB", size, (10 * i, 0, 0)).save(folder / name)
        images.append({"id": i + 1, "file_name": name, "width": size[0], "height": size[1]})
        for box in of_image:
            row = {"id": len(annotations) + 1, "image_id": i + 1, "category_id": 1, "bbox": list(box)}
            annotations.append({**row, "area": box[2] * box[3], "iscrowd": int(i in crowd)})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "thing"}]}
    path = folder / "manifest.json"
    path.write_text(json.dumps(content))
    return path
