"""Images with known boxes, written in the layouts in which annotations are exchanged."""

import csv
import json

import numpy as np
from PIL import Image

NAMES = ("cat", "dog")


def pictures(n=6, size=(40, 30), seed=0):
    """Stem -> (picture, [(class, x1, y1, x2, y2)]), whole pixels, x2 and y2 behind the last one; one class each."""
    rng = np.random.default_rng(seed)
    found = {}
    for i in range(n):
        boxes = []
        for _ in range(1 + i % 2):
            x1, y1 = int(rng.integers(0, size[0] - 8)), int(rng.integers(0, size[1] - 8))
            boxes.append((NAMES[i % 2], x1, y1, int(rng.integers(x1 + 4, size[0])), int(rng.integers(y1 + 4, size[1]))))
        found[f"p{i}"] = (Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)), boxes)
    return found


def save(folder, samples, suffix=".png"):
    folder.mkdir(parents=True, exist_ok=True)
    for stem, (picture, _) in samples.items():
        picture.save(folder / f"{stem}{suffix}")


def write_xml(folder, samples, *, size=True):
    """VOC counts from 1, and the last pixel belongs to the box."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, (picture, boxes) in samples.items():
        about = f"<size><width>{picture.width}</width><height>{picture.height}</height></size>" if size else ""
        objects = "".join(
            f"<object><name>{name}</name><bndbox><xmin>{x1 + 1}</xmin><ymin>{y1 + 1}</ymin><xmax>{x2}</xmax>"
            f"<ymax>{y2}</ymax></bndbox></object>"
            for name, x1, y1, x2, y2 in boxes
        )
        (folder / f"{stem}.xml").write_text(f"<annotation>{about}{objects}</annotation>")


def write_coco(file, samples, prefix="", **of_images):
    images, annotations = [], []
    for i, (stem, (picture, boxes)) in enumerate(samples.items(), 1):
        place = {"file_name": f"{prefix}{stem}.png"}
        images.append({"id": i, "width": picture.width, "height": picture.height, **(of_images or {}), **place})
        for name, x1, y1, x2, y2 in boxes:
            bbox = [x1, y1, x2 - x1, y2 - y1]
            number = len(annotations) + 1
            annotations.append({"id": number, "image_id": i, "category_id": NAMES.index(name) + 1, "bbox": bbox})
    file.parent.mkdir(parents=True, exist_ok=True)
    categories = [{"id": i, "name": name} for i, name in enumerate(NAMES, 1)]
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))


def write_yolo(folder, samples):
    folder.mkdir(parents=True, exist_ok=True)
    for stem, (picture, boxes) in samples.items():
        w, h = picture.size
        shares = [
            (name, (x1 + x2) / 2 / w, (y1 + y2) / 2 / h, (x2 - x1) / w, (y2 - y1) / h) for name, x1, y1, x2, y2 in boxes
        ]
        rows = [f"{NAMES.index(name)} {' '.join(f'{value:.8f}' for value in row)}" for name, *row in shares]
        (folder / f"{stem}.txt").write_text("\n".join(rows) + "\n")


def write_table(file, samples, columns=("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax")):
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(columns)
        for stem, (picture, boxes) in samples.items():
            for name, *corners in boxes:
                cells = dict(zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True))
                cells |= {"width": picture.width, "height": picture.height}
                kinds = [{"filename": f"{stem}.png"}.get(c, cells.get(c, name)) for c in columns]
                rows.writerow(kinds)
