"""Images with known boxes, written in the layouts in which annotations are exchanged."""

import csv
import io
import json
import pickle
import tarfile

import numpy as np
from PIL import Image

from sslbench.metrics.detection import masks

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


def phrase(stem, k):
    """Text of the k-th object of a picture."""
    return f"object {k} of {stem}"


def write_genome(root, samples, test=3):
    """Visual Genome, version 1.4; the last `test` pictures are the test part of densecap_splits.json."""
    about, regions, objects = [], [], []
    for number, (picture, boxes) in enumerate(samples.values(), 1):
        folder = ("VG_100K", "VG_100K_2")[number % 2]
        (root / folder).mkdir(parents=True, exist_ok=True)
        picture.save(root / folder / f"{number}.jpg", quality=95)
        url = f"https://cs.stanford.edu/people/rak248/{folder}/{number}.jpg"
        about.append({"image_id": number, "width": picture.width, "height": picture.height, "url": url})
        stem, sides = f"p{number - 1}", [(x1, y1, x2 - x1, y2 - y1) for _, x1, y1, x2, y2 in boxes]
        keys = ("x", "y", "width", "height")
        own = [dict(zip(keys, side, strict=True)) for side in sides]
        own = [{"region_id": 10 * number + k, "image_id": number, **row} for k, row in enumerate(own)]
        regions.append({"regions": [row | {"phrase": phrase(stem, k)} for k, row in enumerate(own)], "id": number})
        own = [dict(zip("xywh", side, strict=True)) for side in sides]
        names = [{"object_id": 10 * number + k, "names": [box[0], "thing"]} for k, box in enumerate(boxes)]
        both = [a | b | {"synsets": [], "merged_object_ids": []} for a, b in zip(own, names, strict=True)]
        objects.append({"image_id": number, "objects": both, "image_url": url})
    for name, rows in (("image_data", about), ("region_descriptions", regions), ("objects", objects)):
        (root / f"{name}.json").write_text(json.dumps(rows))
    ids = list(range(1, len(samples) + 1))
    (root / "densecap_splits.json").write_text(json.dumps({"train": ids[:-test], "val": [], "test": ids[-test:]}))


def references(samples, parts):
    """The references of refer to every object; pictures go to the parts in blocks of equal length."""
    rows, number = [], 0
    for i, (stem, (_, boxes)) in enumerate(samples.items()):
        for k, (name, *_) in enumerate(boxes):
            number += 1
            said = [{"sent_id": 2 * number + s, "sent": f"{phrase(stem, k)}{' again' * s}"} for s in range(2)]
            said = [row | {"raw": row["sent"].upper(), "tokens": row["sent"].split()} for row in said]
            part = {"split": parts[i * len(parts) // len(samples)], "category_id": NAMES.index(name) + 1}
            row = {"ref_id": number, "ann_id": number, "image_id": i + 1, "file_name": f"{stem}_{number}.png"}
            rows.append(row | part | {"sentences": said, "sent_ids": [one["sent_id"] for one in said]})
    return rows


def write_references(root, samples, parts, name="refs(unc).p"):
    write_coco(root / "instances.json", samples)
    rows = references(samples, parts)
    # As Python 2 wrote it.
    (root / name).write_bytes(pickle.dumps(rows, protocol=0) if name.endswith(".p") else json.dumps(rows).encode())


def write_masks(tar, samples, *, captions=True):
    """A shard of SA-1B, with the captions in the annotations; the masks are the boxes."""
    with tarfile.open(tar, "w") as archive:
        for number, (stem, (picture, boxes)) in enumerate(samples.items(), 1):
            rows = []
            for k, (_, x1, y1, x2, y2) in enumerate(boxes):
                mask = np.zeros((picture.height, picture.width), dtype=bool)
                mask[y1:y2, x1:x2] = True
                row = {"id": 10 * number + k, "bbox": [x1, y1, x2 - x1, y2 - y1], "area": int(mask.sum())}
                row |= {"segmentation": masks.text(masks.encode(mask)), "point_coords": [[x1 + 0.5, y1 + 1.5]]}
                row |= {
                    "predicted_iou": 0.9,
                    "stability_score": 0.98,
                    "crop_box": [0, 0, picture.width, picture.height],
                }
                rows.append(row | ({"caption": phrase(stem, k)} if captions else {}))
            about = {
                "image_id": number,
                "width": picture.width,
                "height": picture.height,
                "file_name": f"sa_{number}.jpg",
            }
            file = io.BytesIO()
            picture.save(file, "jpeg", quality=95)
            add(archive, f"./sa_{number}.jpg", file.getvalue())
            add(archive, f"./sa_{number}.json", json.dumps({"image": about, "annotations": rows}).encode())
    return tar


def add(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


OPEN_IMAGES = {"cat": "/m/01yrx", "dog": "/m/0bt9lr"}
"""Class -> its label."""


def write_open_images(root, samples, *, labels=True, suffix=".png"):
    """Open Images V7: the first half of the pictures is train, the other validation; one class each, verified.

    The other class is verified to be absent from every second picture. Boxes of less than 60 pixels are groups.
    """
    half = len(samples) // 2
    for split, stems in (("train", list(samples)[:half]), ("validation", list(samples)[half:])):
        save(root / split, {stem: samples[stem] for stem in stems}, suffix)
        boxes, verified = [], []
        for stem in stems:
            (width, height), own = samples[stem][0].size, samples[stem][1]
            for name, x1, y1, x2, y2 in own:
                shares = [x1 / width, x2 / width, y1 / height, y2 / height]
                group = int((x2 - x1) * (y2 - y1) < 60)
                boxes.append([stem, "xclick", OPEN_IMAGES[name], 1, *shares, 0, -1, group, 0, 0])
            verified.append([stem, "verification", OPEN_IMAGES[own[0][0]], 1])
            if int(stem[1:]) % 2:
                other = NAMES[1 - NAMES.index(own[0][0])]
                verified.append([stem, "crowdsource-verification", OPEN_IMAGES[other], 0])
        head = ["ImageID", "Source", "LabelName", "Confidence"]
        flags = ["IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside"]
        corners = ["XMin", "XMax", "YMin", "YMax"]
        tables = {f"{split}-annotations-bbox.csv": [[*head, *corners, *flags], *boxes]}
        if labels:
            tables[f"oidv7-{split}-annotations-human-imagelabels.csv"] = [head, *verified]
        for name, rows in tables.items():
            with (root / name).open("w", newline="") as file:
                csv.writer(file).writerows(rows)
    rows = "".join(f"{label},{name.title()}\n" for name, label in OPEN_IMAGES.items())
    (root / "oidv7-class-descriptions.csv").write_text(f"LabelName,DisplayName\n{rows}")
    return root
