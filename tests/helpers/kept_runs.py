"""Small runs whose numbers and keys are kept in tests/contracts/same_numbers, as a user starts them.

Of every protocol on every kind of data, of every format, detector and method: see `helpers.kept_numbers`.
"""

import csv
import itertools
import json

import numpy as np
from PIL import Image

from helpers import runs

CITIES = {"europe": (48.86, 2.35), "oceania": (-33.87, 151.21), "africa": (-1.29, 36.82)}
COLOURS = {"blue": (60, 60, 180), "green": (60, 180, 60), "red": (180, 60, 60)}
CELLS = ((200, 40, 40), (40, 200, 40), (40, 40, 200), (210, 210, 40))


def write_data(root):
    """Write table.csv (classes, tags, places, heights, sites), scenes/ (maps of pixels) and pairs of images."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(54):
        name = list(COLOURS)[i % 3]
        colour = np.array(COLOURS[name]) + rng.normal(0, 55, 3)
        pixels = (colour + rng.normal(0, 25, (20, 18, 3))).clip(0, 255).astype(np.uint8)
        save(root / "pictures" / f"{i:02d}.png", pixels)
        latitude, longitude = np.array([*CITIES.values()][i % 3]) + rng.uniform(-1, 1, 2)
        tags = [tag for tag, value in zip("rgb", colour, strict=True) if value > 100] or ["dark"]
        row = {"path": f"pictures/{i:02d}.png", "split": "train" if i < 36 else "test", "label": name}
        row |= {"tags": "|".join(tags), "lat": f"{latitude:.4f}", "lon": f"{longitude:.4f}"}
        rows.append({**row, "height": f"{colour.mean():.3f}", "site": "xy"[i // 3 % 2]})
    write_table(root / "table.csv", rows)
    write_table(root / "other.csv", [{**row, "path": f"{root}/{row['path']}"} for row in rows])
    write_table(root / "swapped.csv", [{**row, "label": list(COLOURS)[i % 2]} for i, row in enumerate(rows)])
    for split, n in (("train", 8), ("test", 6)):
        for i in range(n):
            scene(root / "scenes", split, f"{i}", rng)
        write_objects(root, split, n, rng)
    turns = [{"first": a["path"], "second": b["path"], "split": a["split"]} for a, b in itertools.pairwise(rows)]
    for turn in turns:
        angle = rng.uniform(-0.8, 0.8)
        turn |= {"qw": np.cos(angle), "qx": np.sin(angle), "qy": 0, "qz": 0}
    write_table(root / "turns.csv", turns[:20] + turns[36:48])
    choices = [(a, b, c) for a, b, c in zip(rows, rows[1:], rows[4:], strict=False)]
    triplets = [
        {"ref": a["path"], "left": b["path"], "right": c["path"], "choice": ("left", "right")[i % 3 == 0]}
        for i, (a, b, c) in enumerate(choices)
    ]
    write_table(root / "triplets.csv", triplets[:20])
    rated = [{"image1": a["path"], "image2": b["path"], "score": i % 7} for i, (a, b, _) in enumerate(choices)]
    write_table(root / "pairs.csv", rated[:20])
    vectors = np.random.default_rng(1).normal(size=(len(COLOURS), 48)).astype(np.float32)
    np.savez(root / "texts.npz", features=vectors, names=[f"a photo of {name}" for name in COLOURS])


def write_objects(root, split, n, rng):
    """Write SPLIT.json: bright rectangles of two classes, with masks and keypoints, and detections.json near them."""
    images, annotations, detections = [], [], []
    for i in range(n):
        pixels = rng.integers(0, 60, (64, 64, 3)).astype(np.uint8)
        for category in (1, 2):
            x, y, w, h = (int(value) for value in rng.integers((2, 2, 14, 14), (30, 30, 30, 30)))
            pixels[y : y + h, x : x + w] = (250, 200, 40) if category == 1 else (40, 90, 250)
            about = {"image_id": i + 1, "category_id": category}
            corners = [x, y, x + w, y, x + w, y + h, x, y + h]
            points = [x + 2, y + 2, 2, x + w - 2, y + 2, 2, x + 2, y + h - 2, 2]
            row = {**about, "id": len(annotations) + 1, "bbox": [x, y, w, h], "area": w * h, "iscrowd": 0}
            annotations.append({**row, "segmentation": [corners], "keypoints": points, "num_keypoints": 3})
            box = [x + int(rng.integers(-3, 4)), y + int(rng.integers(-3, 4)), w, h]
            detections.append({**about, "bbox": box, "score": float(rng.integers(1, 99)) / 100})
        save(root / "objects" / f"{split}{i}.png", pixels)
        images.append({"id": i + 1, "file_name": f"objects/{split}{i}.png", "width": 64, "height": 64})
    kinds = [{"id": i, "name": name, "keypoints": ["left", "right", "tail"]} for i, name in ((1, "wide"), (2, "tall"))]
    content = {"images": images, "annotations": annotations, "categories": kinds}
    (root / f"{split}.json").write_text(json.dumps(content))
    (root / "detections.json").write_text(json.dumps(detections))


def scene(root, split, name, rng):
    """Write a picture with cells of four colours, and the maps that follow from them."""
    cells = np.kron(rng.integers(0, 4, (4, 4)), np.ones((8, 8), dtype=int))
    pixels = (np.array(CELLS)[cells] + rng.normal(0, 40, (32, 32, 3))).clip(0, 255).astype(np.uint8)
    save(root / "images" / split / f"{name}.png", pixels)
    save(root / "labels" / split / f"{name}.png", np.where(rng.random((32, 32)) < 0.02, 255, cells).astype(np.uint8))
    edges = (np.diff(cells, axis=0, append=cells[-1:]) != 0) | (np.diff(cells, axis=1, append=cells[:, -1:]) != 0)
    save(root / "lines" / split / f"{name}.png", (255 * edges).astype(np.uint8))
    slope = np.linspace(0, 1, 32)[:, None]
    save(root / "depth" / split / f"{name}.npy", (1.0 + cells + slope).astype(np.float32))
    normals = np.stack([cells - 1.5, slope + 0 * cells, np.full(cells.shape, -2.0)], axis=2)
    normals /= np.linalg.norm(normals, axis=2, keepdims=True)
    save(root / "normals" / split / f"{name}.npy", normals.astype(np.float32))


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array) if path.suffix == ".npy" else Image.fromarray(array).save(path)


def write_table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


NET = ("--weights", "random", "--backbone", "resnet18w0.125", "--device", "cpu", "--workers", "0", "--no-floors")
SMALL = ("--resize", "32x32", "--crop", "none")
PIXELS = ("--weights", "pixels:4", *NET[4:])
TABLE = (*PIXELS, "--data", "table.csv")
TAGS, PLACES, HEIGHT = ("--label-col", "tags"), ("--value-col", "lat,lon"), ("--value-col", "height")
STEPS = ("steps=20", "warmup_steps=2", "batch_size=4", "size=32", "crop=[32,32]", "window=null", "upsample=1")
MAPS = (*NET, "--layers", "res3", "--data")
SCENES = "scenes?images=images&maps=labels"
FEW = ("rotations=[90]", "scales=[]", "crops=[]")
UPDATES = ("updates=8", "batch_size=8", "lr=0.002")
TUNED = ("finetune", *NET, *SMALL, "--data", "table.csv")
EVALUATIONS = {
    "knn": ("knn", *TABLE, "k=3,5", "--groups", "site"),
    "knn, with floors": ("knn", *NET[:-1], *SMALL, "--data", "table.csv", "k=3", "--layers", "res2:avg"),
    "knn, several classes": ("knn", *TABLE, *TAGS, "k=5"),
    "linear": ("linear", *TABLE, "c=[0.01,0.1]"),
    "linear, several classes": ("linear", *TABLE, *TAGS, "c=[0.1]"),
    "linear, numbers": ("linear", *TABLE, *HEIGHT, "alpha=[1000]"),
    "svm": ("svm", *TABLE),
    "svm, several classes": ("svm", *TABLE, *TAGS),
    "lsr": ("lsr", *TABLE),
    "low-shot": ("low-shot", *TABLE, "k=[1,4]"),
    "low-shot, several classes": ("low-shot", *TABLE, *TAGS, "k=[1,4]"),
    "clustering": ("clustering", *TABLE),
    "bags": ("bags", *PIXELS, "--data", "sklearn:digit-bags", "c=[0.1]"),
    "transferability": ("transferability", *TABLE),
    "retrieval": ("retrieval", *TABLE),
    "geolocation": ("geolocation", *TABLE, *PLACES, "max_images=20", "min_images=3"),
    "robustness": ("robustness", "--weights", "pixels:32", *TABLE[2:], "corrupt=[contrast]", "severities=[1,5]", *FEW),
    "linear-online": ("linear-online", *TABLE, *UPDATES, "seeds=2"),
    "linear-online, several classes": ("linear-online", *TABLE, *TAGS, *UPDATES),
    "finetune": (*TUNED, *UPDATES),
    "finetune, AdamW and decay of layers": (*TUNED, *UPDATES, "optimizer=adamw", "layer_decay=0.7"),
    "finetune, several classes": (*TUNED, *TAGS, *UPDATES),
    "similarity": ("similarity", *PIXELS, "--data", "triplets.csv"),
    "similarity, ratings": ("similarity", *PIXELS, "--data", "pairs.csv"),
    "zero-shot": ("zero-shot", *TABLE, 'templates=["a photo of {}"]', "text_features=texts.npz"),
    "image-text": ("image-text", *PIXELS, "--data", "texts:table.csv", "text_features=texts.npz"),
    "relative-pose": ("relative-pose", *PIXELS, "--data", "turns.csv", "epochs=10"),
    "segmentation": ("segmentation", *MAPS, SCENES, *STEPS, "lr=[0.01]"),
    "segmentation, convolutions": ("segmentation", *MAPS, SCENES, *STEPS, "lr=[0.01]", "head=conv", "clip_norm=1"),
    "segmentation-knn": ("segmentation-knn", *SMALL, *NET, "--layers", "res3", "--data", SCENES),
    "depth": ("depth", *MAPS, "scenes?images=images&depth=depth", *STEPS),
    "normals": ("normals", *MAPS, "scenes?images=images&normals=normals", *STEPS),
    "edges": ("edges", *MAPS, "scenes?images=images&maps=lines", *STEPS),
    "low-level": ("low-level", *MAPS, "scenes/images", *STEPS),
    "orientation": ("orientation", *MAPS, "scenes/images", *STEPS),
    "anomaly": ("anomaly", *NET, "--layers", "res3", "--data", "textures:anomalies", "size=32", "scored_at=input"),
    "saliency": ("saliency", *MAPS, SCENES, "method=lost"),
    "discovery": ("discovery", *MAPS, "test.json", "method=lost"),
    "discovery, tokencut": ("discovery", *MAPS, "test.json"),
    "correspondence": ("correspondence", *MAPS, "homography:scenes/images/test", "size=32"),
}

ON_CLASSES = ("knn", *PIXELS, "k=1")
ON_MAPS = ("segmentation-knn", *NET, "--resize", "16x16", "--crop", "none", "--layers", "res2")
ON_FRAMES = ("tracking", *NET, "--layers", "res2")
ON_PAIRS = ("correspondence", *NET, "--layers", "res4", "size=32")
BOXES = ("discovery", *NET, "--layers", "res2", "method=lost")
BY_LABELS = {
    **{"single": ON_CLASSES, "multi": ON_CLASSES, "none": ON_MAPS, "points": ON_PAIRS, "homography": ON_PAIRS},
    **dict.fromkeys(("tracks", "parts", "poses"), ON_FRAMES),
    "anomalies": ("anomaly", *NET, "--layers", "res2", "size=16"),
}
WITH_BOXES = ("boxes-csv", "cityscapes", "coco", "coco-folder", "voc-folders", "yolo")
OTHERS = {**dict.fromkeys(("retrieval", "reidentification"), ("retrieval", *PIXELS)), "hpatches": (*ON_PAIRS[:-1],)}
OTHERS["pangaea"] = (*ON_MAPS, "--backbone", "resnet18w0.125,in_chans=6")
NOT_EVALUATED = {
    "several": "train and test are the same images, which is refused",
    "zip": "train and test are the same images, which is refused",
    "nyu": "two images are too few for train and test",
    **dict.fromkeys(
        ("camera-pairs", "texts", "triplets", "rated-pairs", "depth", "boundaries", "motorcycle", "pascal-context"),
        "the runs of their protocols read such tables",
    ),
    **dict.fromkeys(("visual-genome", "refcoco", "sa1b"), "test_data_regions compares them with what was written"),
    "video-lists": "test_data_video_lists compares it with what was written",
    "openimages": "test_data_openimages compares it with what was written",
    **dict.fromkeys(("sklearn", "textures", "kwcoco"), "takes seconds, or draws other pictures each time"),
}
SHORT = (
    *("iterations=5", "steps=[4]", "warmup_iterations=2", "batch_size=2", "precise_bn=1", "min_sizes_train=[64]"),
    *("max_size_train=64", "min_size_test=64", "max_size_test=64"),
)
SHAPES = (*NET, "--data", "train.json", "--test-data", "test.json")
REGIONS = ("rpn_samples=32", "roi_samples=16", "rpn_post_nms_train=20", "rpn_post_nms_test=10")
PYRAMID = (*REGIONS, "pyramid_channels=8", "box_channels=8", "head_channels=8")
BOTTLENECK = ("--backbone", "resnet_bottleneck_1-1-1-1w0.125")
DETR = ("transformer_width=64", "transformer_mlp=32", "queries=10", "encoder_layers=1", "decoder_layers=2")


def detector(benchmark, *words, lr=0.002):
    return ("detection", "--benchmark", f"detection/{benchmark}", *SHAPES, *SHORT, f"lr={lr}", *words)


DETECTORS = {
    "fpn": detector("toy", *PYRAMID),
    "fpn, masks, AdamW": detector("toy", *PYRAMID, "masks=true", "optimizer=adamw", "accumulate=2", lr=0.0001),
    "c4": detector("coco_c4_1x", *REGIONS, "norm=batch", "freeze_at=0", "anchor_sizes=[[8,16,32]]", *BOTTLENECK),
    "keypoints": detector("toy_keypoints", *PYRAMID, "keypoint_channels=8"),
    "fcos": detector("small_fcos"),
    "retinanet": detector("small_retinanet", "backbone_rate=0.5"),
    "deformable_detr": detector("small_deformable_detr", *DETR, lr=0.0001),
}

SGD = {"name": "sgd", "lr": 0.001}
SLOW = {"optimizer": {"name": "sgd", "lr": 0.0001}}
GROWING = ("emp_ssl", "nnclr", "npid", "pirl", "smog", "vicregl", "wmse")  # at a larger rate, rounding grows
PART = {"limit": 32, "batch_size": 8, "epochs": 2, "save_every": "2 epochs", "optimizer": SGD}
ADAMW = {"name": "adamw", "lr": 0.0001}
TRAININGS = {
    **{method: (method, SLOW if method in GROWING else {}) for method in runs.METHODS},
    "dino, twenty updates of AdamW": ("dino", {"epochs": 5, "optimizer": ADAMW}),
    "simclr, LARS": ("simclr", {"optimizer": {"name": "lars", "lr": 0.05}}),
    "simclr, LARC": ("simclr", {"optimizer": {"name": "larc", "lr": 0.05}}),
    "mae, decay of layers": ("mae", {"optimizer": {**ADAMW, "layer_decay": 0.7}, "clip_norm": 1.0}),
    "simclr, accumulated, clipped": ("simclr", {"accumulate": 2, "clip_norm": 1.0, "limit": 64, "batch_size": 16}),
    "simclr, groups": ("simclr", {"groups": {"head": {"lr": 0.05}}, "freeze": {"conv1": 4}, "ema": 0.9}),
}

FIRST = ("knn", *NET, *SMALL, "--data", "table.csv", "k=3", "--no-overlaps")
VARIANTS = {
    "first": FIRST,
    "first again": FIRST,
    "batch size": (*FIRST, "--batch-size", "5"),
    "overlaps": FIRST[:-1],
    "groups": (*FIRST, "--groups", "site"),
    "other paths": (*FIRST, "--data", "other.csv"),
    "other classes": (*FIRST, "--data", "swapped.csv"),
    "several classes": (*FIRST, *TAGS),
    "fewer samples": (*FIRST, "--limit", "30"),
    "seed": (*FIRST, "--seed", "1"),
    "setting": (*FIRST[:-2], "k=5", "--no-overlaps"),
    "preset": (*FIRST[:-2], "--preset", "knn/dino", "--no-overlaps"),
    "protocol": ("clustering", *FIRST[1:-2], "--no-overlaps"),
    "layer": (*FIRST, "--layers", "res4"),
    "resize": (*FIRST, "--resize", "24x24"),
    "finetuned": (*TUNED, "updates=1"),
    "finetuned, batch size of the evaluation": (*TUNED, "updates=1", "--batch-size", "5"),
    "finetuned, seed": (*TUNED, "updates=1", "--seed", "1"),
    "finetuned, other classes": (*TUNED, "updates=1", "--data", "swapped.csv"),
    "finetuned, trainings": (*TUNED, "updates=1", "seeds=2"),
}
