"""Small COCO manifest, for the tests that run over every format; see `sample_data`."""

import json

from helpers import containers

from sample_data import write_splits

LABELS = "single"
WRITE = {"coco": containers.write_coco}


def make(root):
    write_splits(root)
    files = sorted(root.rglob("*.png"))
    images = [
        {"id": i, "file_name": str(f.relative_to(root)), "split": f.parent.parent.name} for i, f in enumerate(files)
    ]
    annotations = [
        {"id": i, "image_id": i, "category_id": "ab".index(f.parent.name) + 1, "bbox": [0, 0, 1, 1]}
        for i, f in enumerate(files)
    ]
    categories = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    manifest = {"images": images, "annotations": annotations, "categories": categories}
    (root / "m.json").write_text(json.dumps(manifest))
    return str(root / "m.json")
