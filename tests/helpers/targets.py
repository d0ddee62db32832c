"""Small samples of every kind of labels, on which the contracts run every protocol: `target_of(protocol)`.

The kinds that a protocol takes choose among KINDS, so a new protocol on a known kind has its samples already.
"""

import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from sslbench.data.formats.boundaries import MaskBoundaries
from sslbench.data.image_pairs import PointPair, homography_pairs, pairs_source
from sslbench.data.images import Arrays
from sslbench.data.objects import ObjectSource
from sslbench.data.source import Source
from sslbench.data.videos import poses_source, videos_source
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.metrics.detection import masks as rle
from sslbench.targets import kinds
from sslbench.targets.anomalies import Anomalies
from sslbench.targets.label_maps import Foreground, LabelMap, LabelMaps
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers
from sslbench.targets.objects import Boxes, Objects
from sslbench.targets.pixel_values import Boundaries, Depth, Normals
from sslbench.targets.target import SeveralImages
from sslbench.targets.texts import Texts
from sslbench.targets.times import Times
from sslbench.targets.triplets import RatedPairs, Triplets
from sslbench_visbench.targets import CameraPairs, Orientations, Signals

COLOURS = np.array([[250, 10, 10], [10, 250, 10], [10, 10, 250], [250, 250, 250]])
CITIES = np.array([[48.86, 2.35], [-33.87, 151.21], [40.71, -74.01], [-1.29, 36.82]])
DEPTHS = np.array([1.0, 2.0, 4.0, 8.0], dtype=np.float32)[:, None]
DIRECTIONS = np.array([[0, 0, -1], [0.6, 0, -0.8], [0, -1, 0], [0, 0.6, -0.8]], dtype=np.float32)

UNSEEN = Arrays(np.zeros((1, 2, 2, 3), np.uint8), "unseen")
"""Images of samples of which only the features count."""


def ids_of(n, seed):
    return tuple(f"{seed}-{i:04d}" for i in range(n))


def labels_of(n, seed, kind):
    """Four classes in turn, or the place of a city for each; `multi` may have the next class as well, or unknown."""
    y = np.arange(n) % 4
    if kind == "time":  # the first class has events first, and every ninth time is censored
        rng = np.random.default_rng(seed)
        return Times(("months", "dead"), np.column_stack([1 + y + rng.random(n) / 2, np.arange(n) % 9 > 0]))
    if kind == "value":
        return Numbers(("lat", "lon"), CITIES[y])
    values = y.astype(np.int64)
    if kind == "multi":
        values = np.zeros((n, 4), dtype=np.int8)
        values[np.arange(n), y] = 1
        values[np.arange(n), (y + 1) % 4] = np.random.default_rng(seed).integers(-1, 2, n)
    return kinds()[kind](tuple(f"class {c}" for c in range(4)), values)


def class_sample(n, seed, kind="single"):
    """Features from which the labels follow."""
    x = np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)
    x[np.arange(n), np.arange(n) % 4] += 4
    x.setflags(write=False)
    labels = Unlabelled(n) if kind == "none" else labels_of(n, seed, kind)
    return Features(x, labels, ids_of(n, seed))


def class_pictures(n, seed, kind="single"):
    """Pictures of 8 x 8 pixels, each class with a colour of its own."""
    noise = np.random.default_rng(seed).integers(-10, 6, (n, 8, 8, 3))
    array = (COLOURS[np.arange(n) % 4][:, None, None, :] + noise).astype(np.uint8)
    images = Arrays(array, f"pictures {seed}")
    return Source(f"pictures {seed}", ids_of(n, seed), labels_of(n, seed, kind), images)


def camera_pairs(n, seed):
    """Pairs of images whose relative rotation is the first feature."""
    rng = np.random.default_rng(seed)
    half = rng.uniform(-0.5, 0.5, n)
    poses = np.column_stack([np.cos(half), np.zeros(n), np.zeros(n), np.sin(half)])
    features = np.column_stack([half, rng.normal(size=(n, 5))]).astype(np.float32)
    return Features(
        features,
        CameraPairs(("qw", "qx", "qy", "qz"), poses, UNSEEN, np.zeros((n, 2), np.int64)),
        ids_of(n, seed),
        regions=2,
    )


def triplets(n, seed):
    """Triplets of images whose choice follows from the features."""
    rng = np.random.default_rng(seed)
    values, x = rng.integers(0, 2, n), rng.normal(size=(n, 3, 6)).astype(np.float32)
    x[np.arange(n), 1 + values] += 2 * x[:, 0]
    return Features(x.reshape(n, -1), Triplets(values, UNSEEN, np.zeros((n, 3), np.int64)), ids_of(n, seed), regions=3)


def rated_pairs(n, seed):
    """Pairs of images whose rating is their cosine and noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2, 6)).astype(np.float32)
    cosine = np.einsum("nd,nd->n", x[:, 0], x[:, 1]) / np.linalg.norm(x, axis=2).prod(axis=1)
    target = RatedPairs((cosine + rng.normal(0, 0.1, n))[:, None], UNSEEN, np.zeros((n, 2), np.int64))
    return Features(x.reshape(n, -1), target, ids_of(n, seed), regions=2)


def image_texts(n, seed):
    """Images with one or two texts each, whose features are those of their image and noise, see `needed_settings`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    texts = Texts(tuple(tuple(f"text {j} of image {seed}-{i}" for j in range(1 + i % 2)) for i in range(n)))
    return Features(x, texts, ids_of(n, seed))


def text_file(rows):
    """Write embeddings made elsewhere, text -> (D,); return the file."""
    file = Path(tempfile.mkdtemp(prefix="text_embeddings")) / "texts.npz"
    np.savez(file, features=np.array(list(rows.values()), np.float32), names=list(rows))
    return str(file)


@functools.cache
def text_embeddings():
    """A file with embeddings of all classes, whatever they are called, and of the texts of images."""
    rows = {f"class {c}": np.eye(6)[c] for c in range(4)} | {name: np.eye(6)[c] for c, name in enumerate("xzwy")}
    for part in (image_texts(80, 1), image_texts(40, 2)):
        rows |= {text: x for own, x in zip(part.target.texts, part.x, strict=True) for text in own}
    return text_file(rows)


def needed_settings(protocol):
    """Return the settings without which a protocol does not run on these samples."""
    return {"text_features": text_embeddings()} if "text_features" in protocol.settings.__dataclass_fields__ else {}


@dataclasses.dataclass(frozen=True)
class ArrayMaps:
    """Label maps (N, H, W); -1: ignored."""

    maps: np.ndarray

    def __len__(self):
        return len(self.maps)

    def read_map(self, index, *, size=None):
        if self.maps[index].min() < -1:
            raise DataError("a value without a class")
        return LabelMap(self.maps[index].astype(np.int32), None)

    def select(self, indices):
        return ArrayMaps(self.maps[np.asarray(indices)])

    def fingerprint(self):
        return str(self.maps.sum())


def label_maps(maps, classes):
    return LabelMaps(tuple(f"class {c}" for c in range(classes)), ArrayMaps(maps))


def map_sample(n, seed, classes=4, *, grid=(2, 3), side=8, noise=1.0):
    """Images whose cells of side x side pixels have one class each, and features of the cells: one-hot and noise."""
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, classes, (n, *grid))
    x = noise * rng.normal(size=(n, grid[0] * grid[1], 6)) + 4 * np.eye(6)[cells.reshape(n, -1)]
    maps = np.kron(cells, np.ones((1, side, side), dtype=int))
    return Features(
        x.reshape(n, -1).astype(np.float32),
        label_maps(maps, classes),
        ids_of(n, seed),
        regions=grid[0] * grid[1],
        grid=grid,
    )


def map_pictures(n, seed, *, grid=(2, 3), side=8):
    """Pictures with a cell of side x side pixels of each colour, whose class is that colour, and their label maps."""
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 4, (n, *grid))
    maps = np.kron(cells, np.ones((1, side, side), dtype=int))
    pixels = (COLOURS[maps] + rng.integers(-10, 6, (*maps.shape, 3))).astype(np.uint8)
    images = Arrays(pixels, f"pictures {seed}")
    return Source(f"pictures {seed}", ids_of(n, seed), label_maps(maps, 4), images)


def one_object_each(boxes, side, *, masked=True):
    """One object per image: a box, and where `masked` its mask."""
    n, no = len(boxes), np.zeros(1, np.bool_)
    objects = []
    for box in boxes:
        masks = (rle.encode(filled(box, side, side)),) if masked else None
        objects.append(Objects(np.float32([box]), np.zeros(1, np.int64), no, no, np.ones(1), masks))
    return Boxes(("object",), tuple(objects), np.full((n, 2), side), tuple(range(1, n + 1)), (1,))


@dataclasses.dataclass(frozen=True)
class BoxMasks:
    """Foreground masks that are the boxes."""

    boxes: np.ndarray
    side: int

    def __len__(self):
        return len(self.boxes)

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
    masks = BoxMasks(boxes, side)
    brightness = np.stack([masks.read_map(i).semantic for i in range(n)])[..., None].astype(np.float32)
    targets = {
        "signal": Signals(n, ("brightness",), ArrayValues(brightness)),
        "orientation": Orientations(n),
        "boxes": one_object_each(boxes, side, masked=masked),
        "mask": Foreground(masks),
        "boundaries": Boundaries(MaskBoundaries(f"objects {seed}", masks, regions=True)),
    }
    of_kind = ObjectSource if kind == "boxes" else Source
    return of_kind(f"objects {seed}", ids_of(n, seed), targets[kind], Arrays(images, f"objects {seed}"))


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


def texture(rng, side=32):
    """A picture of random colours in squares of 4 x 4 pixels."""
    return np.kron(rng.integers(0, 255, (side // 4, side // 4, 3)), np.ones((4, 4, 1), int)).astype(np.uint8)


def shifted_pairs(n=3, seed=0, *, shift=(8, 4), side=32, points=5, centred=False):
    """Pairs of a texture and the same moved, with points of both, anywhere or at the centres of cells of 4 pixels."""
    rng = np.random.default_rng(seed)
    images, pairs, ids = [], [], []
    for i in range(n):
        large = texture(rng, 2 * side)
        (dx, dy) = shift
        images += [large[dy : dy + side, dx : dx + side], large[:side, :side]]
        own = rng.integers(0, side - max(shift), (points, 2)).astype(float)
        own = own // 4 * 4 + 1.5 if centred else own
        pairs.append(PointPair(2 * i, 2 * i + 1, own, own + shift, float(side)))
        ids.append(f"pair{i}")
    classes = [("cat", "dog")[i % 2] for i in range(n)]
    return pairs_source("shifted", ids, Arrays(np.stack(images), "shifted"), pairs, classes=classes)


def warped_pairs(n=2, seed=0, side=32):
    """Textures under five homographies each."""
    rng = np.random.default_rng(seed)
    array = np.stack([texture(rng, side) for _ in range(n)])
    return homography_pairs(Source("t", tuple(f"t{i}" for i in range(n)), Unlabelled(n), Arrays(array, "t")), "warped")


@dataclasses.dataclass(frozen=True)
class ArrayIds:
    """Object ids (M, H, W) in memory."""

    ids: np.ndarray

    def read_ids(self, row):
        return self.ids[row]

    def select(self, indices):
        return ArrayIds(self.ids[np.asarray(indices)])

    def fingerprint(self):
        return str(self.ids.sum())


def moving_squares(n=2, frames=5, seed=0, side=32, step=4, start=0):
    """Videos of one square per video, of a texture of its own, that moves to the right on black."""
    rng = np.random.default_rng(seed)
    images = np.zeros((n * frames, side, side, 3), np.uint8)
    ids = np.zeros((n * frames, side, side), np.int32)
    for video in range(n):
        own = np.maximum(texture(rng, 12), 60)
        for t in range(frames):
            left = start + step * t
            images[video * frames + t, 8:20, left : left + 12] = own
            ids[video * frames + t, 8:20, left : left + 12] = 1
    videos = {f"video{v}": range(v * frames, (v + 1) * frames) for v in range(n)}
    return videos_source("squares", videos, Arrays(images, "squares"), ArrayIds(ids))


def rolling_textures(n, frames, seed, side):
    """Textures that move to the right by 4 pixels per frame, around the border."""
    rng = np.random.default_rng(seed)
    return np.stack(
        [np.roll(own, 4 * t, axis=1) for own in (texture(rng, side) for _ in range(n)) for t in range(frames)]
    )


def moving_parts(n=2, frames=4, seed=0, side=32, classes=("background", "hat", "hair", "scarf")):
    """Videos of textures with a hat and hair as stripes of 8 pixels; in the last frame half of the hat is a scarf."""
    ids = np.zeros((n * frames, side, side), np.int32)
    for video in range(n):
        for t in range(frames):
            left = 4 * (t + video)
            ids[video * frames + t, :, left : left + 8], ids[video * frames + t, :, left + 8 : left + 16] = 1, 2
        ids[video * frames + frames - 1, :, left : left + 4] = 3
        ids[video * frames + 1, 0, :4] = 255
    images = Arrays(rolling_textures(n, frames, seed, side), "parts")
    videos = {f"video{v}": range(v * frames, (v + 1) * frames) for v in range(n)}
    return videos_source("parts", videos, images, ArrayIds(ids), classes=classes)


def moving_joints(n=2, frames=4, seed=0, side=32):
    """Clips of textures with three joints at the centres of cells of 4 pixels, and one outside the first frame."""
    start = np.array([[5.5, 5.5], [9.5, 13.5], [5.5, 25.5], [-6.5, 9.5]])
    joints = start + np.arange(frames)[:, None, None] * [4.0, 0.0]
    images = Arrays(rolling_textures(n, frames, seed, side), "joints")
    names = [f"clip{v}" for v in range(n)]
    videos = {name: range(v * frames, (v + 1) * frames) for v, name in enumerate(names)}
    sizes = dict.fromkeys(names, (side, side))
    return poses_source(
        "joints", videos, images, dict.fromkeys(names, joints), sizes, ("neck", "belly", "knee", "wrist")
    )


@dataclasses.dataclass(frozen=True)
class ArrayValues:
    """Values (N, H, W, K), nan: unknown."""

    values: np.ndarray

    def __len__(self):
        return len(self.values)

    def path(self, index):
        return f"values[{index}]"

    def read_values(self, index, *, size=None):
        found = self.values[index]
        if size is not None and tuple(size) != found.shape[:2]:
            raise DataError("of another size")
        return found

    def select(self, indices):
        return ArrayValues(self.values[np.asarray(indices)])

    def fingerprint(self):
        return str(np.nansum(self.values))


def value_pictures(kind, n, seed, *, unknown=0.0):
    """Pictures whose colours say the depth or the normal of every pixel, a share of them unknown."""
    pictures = map_pictures(n, seed)
    values = {"depth": DEPTHS, "normals": DIRECTIONS}[kind][pictures.target.maps.maps].copy()
    values[np.random.default_rng(seed).random(values.shape[:3]) < unknown] = np.nan
    return dataclasses.replace(pictures, target={"depth": Depth, "normals": Normals}[kind](ArrayValues(values)))


def defective_pictures(n, seed, *, side=32, train=1):
    """Two categories of different shades; half of the images, none of train, have a bright square."""
    rng = np.random.default_rng(seed)
    pictures = np.zeros((n, side, side, 3), np.uint8)
    pictures[::2], pictures[1::2] = 40, 110
    pictures += rng.integers(0, 20, pictures.shape).astype(np.uint8)
    masks = np.zeros((n, side, side), np.int64)
    defective = (np.arange(n) // 2 % 2) * (seed != train)
    for i in np.flatnonzero(defective):
        top, left = rng.integers(0, side - 12, 2)
        pictures[i, top : top + 12, left : left + 12], masks[i, top : top + 12, left : left + 12] = 240, 1
    values = np.column_stack([np.arange(n) % 2, defective])
    target = Anomalies(("dark", "light"), values, ArrayMaps(masks))
    return Source(f"defects {seed}", ids_of(n, seed), target, Arrays(pictures, f"defects {seed}"))


@dataclasses.dataclass(frozen=True)
class Target:
    """Samples of one kind of labels.

    Attributes:
        features: samples for protocols on features, from their number and a seed.
        pictures: samples for protocols on images, likewise.
        n: numbers of train and test samples.
        layers: layers of a small convolutional network for protocols on images; none: its output.
        quick: settings of protocols on images, where a protocol has them.
        good: bounds of metrics on these samples, of the first that a protocol has.
        chance: least and largest chance level of metrics.
        floor: a floor that the features of the network are better than.
    """

    features: Callable[[int, int], Features] | None = None
    pictures: Callable[[int, int], Source] | None = None
    n: tuple[int, int] = (80, 40)
    layers: tuple[str, ...] = ()
    quick: Mapping[str, object] = dataclasses.field(default_factory=dict)
    good: Mapping[str, float] = dataclasses.field(default_factory=dict)
    chance: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    floor: str = ""

    @property
    def train(self):
        return (self.features or self.pictures)(self.n[0], 1)

    @property
    def test(self):
        return (self.features or self.pictures)(self.n[1], 2)


def _of_classes(kind, **more):
    make = (functools.partial(each, kind=kind) for each in (class_sample, class_pictures))
    return Target(*make, quick={"batch_size": 16}, **more)


def _of_objects(kind, good):
    pictures = functools.partial(bright_objects, kind=kind)
    return Target(pictures=pictures, n=(8, 8), layers=("0",), good=good, floor="whole image")


def _of_pixels(pictures, n=(48, 24), **quick):
    steps = {"steps": 60, "warmup_steps": 5, "batch_size": 8}
    return Target(pictures=pictures, n=n, layers=("2",), quick=steps | quick)


def _of_signals(kind):
    sizes = {"size": None, "crop": (32, 32), "window": None, "max_epochs": 60, "tolerance": 0.05}
    return _of_pixels(functools.partial(bright_objects, kind=kind), (24, 12), **sizes, lr=(0.05,))


def _of_tuples(make, **quick):
    return Target(pictures=lambda n, seed: make(seed=seed), layers=("0", "2"), quick={"size": 32} | quick)


PLAIN = {"upsample": 1, "colours": "none"}
KINDS = {
    "single": _of_classes("single", good={"top1": 0.8}),
    "multi": _of_classes("multi", good={"mAP": 0.8}),
    "value": _of_classes(
        "value",
        n=(240, 40),  # fifty in every cell of the globe
        good={"accuracy@200km": 0.8, "r2": 0.6},
        chance={"accuracy@200km": (0.25, 0.25)},
    ),
    "time": _of_classes("time", good={"c_index": 0.8}, chance={"c_index": (0.5, 0.5)}),
    "none": _of_classes("none"),
    "map": dataclasses.replace(
        _of_pixels(map_pictures), features=map_sample, good={"mIoU": 0.7}, chance={"mIoU": (0.0, 0.1)}
    ),
    "depth": _of_pixels(functools.partial(value_pictures, "depth"), **PLAIN),
    "normals": _of_pixels(functools.partial(value_pictures, "normals"), **PLAIN),
    "boxes": _of_objects("boxes", {"corloc": 0.8}),
    "mask": _of_objects("mask", {"saliency_max_f": 0.6}),  # cells at the border of an object are larger than its edge
    "signal": _of_signals("signal"),
    "orientation": _of_signals("orientation"),
    "boundaries": _of_signals("boundaries"),
    "anomalies": Target(
        pictures=defective_pictures,
        n=(8, 16),
        layers=("0",),
        quick={"size": 32, "smoothing": 1.0},
        good={"image_auroc": 0.9, "pixel_auroc": 0.8},
        chance={"image_auroc": (0.5, 0.5)},
    ),
    "triplets": Target(triplets),
    "rated_pairs": Target(rated_pairs, good={"spearman": 0.8}, chance={"spearman": (0.0, 0.0)}),
    "texts": Target(image_texts, good={"mean_recall": 0.8}),
    "camera_pairs": Target(camera_pairs),
    "points": _of_tuples(shifted_pairs),
    "homography": _of_tuples(warped_pairs),
    "tracks": _of_tuples(moving_squares),
    "parts": _of_tuples(moving_parts),
    "poses": _of_tuples(moving_joints, topk=1, radius=0.0, temperature=0.01),
}


def kinds_of(protocol):
    """Return the kinds of labels of a protocol, one class per sample first."""
    return [kind.name for kind in protocol.kind.takes]


def target_of(protocol, kind=None):
    """Return the samples of a kind of labels of a protocol, by default of the first."""
    kind = kind or kinds_of(protocol)[0]
    assert kind in KINDS, f"no samples of labels of the kind '{kind}': add them to KINDS in tests/helpers/targets.py"
    return KINDS[kind]


def with_other_targets(part):
    """Return the same samples, each with the targets of another; targets that hold images get those of another."""
    rng, target = np.random.default_rng(0), part.target
    if isinstance(part, Source) and isinstance(target, SeveralImages):
        images = target.images.select(rng.permutation(len(target.images)))
        return dataclasses.replace(part, target=target.changed(images=images))
    return dataclasses.replace(part, target=target.select(rng.permutation(len(part.ids))))
