"""Drawn textures: textures:images (images of one object), textures:videos (two objects), textures:anomalies (defects).

Textures are cut from pictures that come with scikit-image and scikit-learn, for training from their left halves, for
test from the right ones, so that no pixel is in both. Their grey values are made alike: the local mean is removed, the
local contrast set to one, and the values replaced by their ranks. Object and background then share colour, mean,
contrast and histogram, and a pixel says nothing about its class; nor does the colour of an image.

Shapes: N images or V videos of T frames, S x S pixels.
"""

import dataclasses
import functools
import hashlib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, OfRows
from sslbench.data.containers.members import numbered_ids
from sslbench.data.format import NoOptions, Reader, SampleReader, SourceFormat, plain_reader
from sslbench.data.formats.boundaries import with_boundaries
from sslbench.data.formats.coco.masks import open_maps
from sslbench.data.images import Arrays
from sslbench.data.maps.classes import LabelMapOptions
from sslbench.data.maps.foreground import map_readers
from sslbench.data.objects import ObjectSource
from sslbench.data.source import Source
from sslbench.data.videos import videos_source
from sslbench.errors import DataError, UsageError
from sslbench.metrics.detection import masks as rle
from sslbench.targets.anomalies import Anomalies
from sslbench.targets.classes import Classes
from sslbench.targets.label_maps import Foreground, LabelMap
from sslbench.targets.objects import Boxes, Objects
from sslbench.targets.pixel_values import Boundaries
from sslbench.targets.videos import Ids, Tracks

PREFIX = "textures:"
IMAGES, VIDEOS, ANOMALIES = f"{PREFIX}images", f"{PREFIX}videos", f"{PREFIX}anomalies"
"""Locations of the drawn data."""
SIDE = 128
"""Height and width of images and frames in pixels."""
_SKIMAGE, _SKLEARN = ("skimage", "data"), ("sklearn", "datasets/images")
# Standard deviation of the Gaussian of local mean and contrast, in pixels
_LOCAL = 12.0
# Grey values below which contrast is noise and is not raised
_LEAST_CONTRAST = 3.0
_CORNERS = 64
_SUBPIXELS = 4

Texture = npt.NDArray[np.float32]
"""(H, W) values from -1 to 1, uniformly distributed."""


@dataclasses.dataclass(frozen=True)
class _Picture:
    """Part of a bundled picture with one texture.

    Attributes:
        place: package and folder.
        file: name in the folder.
        scale: factor of the size, so that several elements of the texture fit into an object.
        box: left, upper, right and lower end in pixels; None: the whole picture.
    """

    place: tuple[str, str]
    file: str
    scale: float = 1.0
    box: tuple[int, int, int, int] | None = None


_OBJECTS = {
    "brick": _Picture(_SKIMAGE, "brick.png", 0.45),
    "coins": _Picture(_SKIMAGE, "coins.png", 0.5, (0, 20, 384, 290)),
    "grass": _Picture(_SKIMAGE, "grass.png", 0.7),
    "gravel": _Picture(_SKIMAGE, "gravel.png", 0.55),
    "petals": _Picture(_SKLEARN, "flower.jpg", 0.7, (212, 81, 402, 271)),
    "print": _Picture(_SKIMAGE, "page.png", 0.9, (8, 58, 376, 142)),
}
_BACKGROUNDS = (
    _Picture(_SKIMAGE, "astronaut.png"),
    _Picture(_SKIMAGE, "camera.png"),
    _Picture(_SKIMAGE, "chelsea.png"),
    _Picture(_SKLEARN, "china.jpg"),
    _Picture(_SKIMAGE, "coffee.png"),
    _Picture(_SKIMAGE, "hubble_deep_field.jpg"),
    _Picture(_SKIMAGE, "ihc.png"),
    _Picture(_SKIMAGE, "motorcycle_left.png"),
    _Picture(_SKIMAGE, "retina.jpg", 1.0, (200, 200, 1211, 1211)),
    _Picture(_SKIMAGE, "rocket.jpg"),
)

CLASSES = tuple(_OBJECTS)
"""Names of the C textures of objects."""
CATEGORIES = ("brick", "grass", "gravel")
"""Names of the textures with defects."""


@dataclasses.dataclass(frozen=True, eq=False)
class TexturedImages:
    """N images with one object each.

    Attributes:
        images: uint8 (N, S, S, 3).
        masks: bool (N, S, S), the pixels of the object.
        classes: int64 (N,), positions in `CLASSES`; each occurs equally often, up to one.
    """

    images: npt.NDArray[np.uint8]
    masks: npt.NDArray[np.bool_]
    classes: IntArray


@dataclasses.dataclass(frozen=True, eq=False)
class TexturedVideos:
    """V videos of T frames with two objects each.

    Attributes:
        frames: uint8 (V, T, S, S, 3).
        ids: int32 (V, T, S, S), 1 and 2 for the objects, 0 for the background.
    """

    frames: npt.NDArray[np.uint8]
    ids: npt.NDArray[np.int32]


def draw_images(number: int, *, test: bool, seed: int = 0) -> TexturedImages:
    """Draw images with one object of random outline, place, size and class on a background of another texture.

    Test images are cut from the right halves of the pictures, others from the left ones, and both are drawn
    independently.

    >>> drawn = draw_images(12, test=False)
    >>> drawn.images.shape, np.bincount(drawn.classes).tolist()
    ((12, 128, 128, 3), [2, 2, 2, 2, 2, 2])
    """
    generator = np.random.default_rng([seed, int(test)])
    images = np.empty((number, SIDE, SIDE, 3), dtype=np.uint8)
    masks = np.empty((number, SIDE, SIDE), dtype=np.bool_)
    classes = np.arange(number) % len(CLASSES)
    for i, c in enumerate(classes):
        background, surface = _background(generator, test), _surface(_OBJECTS[CLASSES[c]], test)
        outline = _outline(generator, SIDE * generator.uniform(0.22, 0.36))
        reach = float(np.abs(outline).max())
        centre = generator.uniform(reach, SIDE - reach, 2)
        cover = _cover(outline + centre)
        value = (1 - cover) * _cut(background, _random_view(generator, background))
        value += cover * _cut(surface, _random_view(generator, surface))
        images[i], masks[i] = _lit(generator, value, _tint(generator)), cover > 0.5
    return TexturedImages(images, masks, classes.astype(np.int64))


def draw_videos(number: int, *, frames: int = 12, seed: int = 0) -> TexturedVideos:
    """Draw videos of two objects of different classes that cross a moving background.

    Objects move, turn and grow or shrink, their textures with them; the light changes from frame to frame, so that
    neither places nor grey values persist. All textures are of the right halves of the pictures.
    """
    # Streams 0 and 1 draw the images.
    generator = np.random.default_rng([seed, 2])
    pictures = np.empty((number, frames, SIDE, SIDE, 3), dtype=np.uint8)
    ids = np.zeros((number, frames, SIDE, SIDE), dtype=np.int32)
    for video in range(number):
        background = _background(generator, test=True)
        names = generator.choice(CLASSES, 2, replace=False)
        surfaces = [_surface(_OBJECTS[name], test=True) for name in names]
        outlines = [_outline(generator, SIDE * generator.uniform(0.16, 0.22)) for _ in names]
        views = [_random_view(generator, surface) for surface in surfaces]
        scene, tint = _random_view(generator, background), _tint(generator)
        pan = generator.uniform(-2, 2, 2)
        starts = np.array([[0.25, 0.3], [0.75, 0.7]]) * SIDE + generator.uniform(-6, 6, (2, 2))
        ends = np.array([[0.75, 0.3], [0.25, 0.7]]) * SIDE + generator.uniform(-12, 12, (2, 2))
        turns = generator.uniform(0.06, 0.15, 2) * generator.choice([-1, 1], 2)
        growth = generator.uniform(0.98, 1.02, 2)
        for frame in range(frames):
            share = frame / max(frames - 1, 1)
            value = _cut(background, scene.moved(pan * frame))
            for k in range(2):
                turn, scale = turns[k] * frame, growth[k] ** frame
                centre = starts[k] + share * (ends[k] - starts[k])
                cover = _cover(scale * outlines[k] @ _rotation(turn).T + centre)
                own = dataclasses.replace(views[k], centre=(float(centre[0]), float(centre[1]))).turned(turn, scale)
                value = (1 - cover) * value + cover * _cut(surfaces[k], own)
                ids[video, frame][cover > 0.5] = k + 1
            pictures[video, frame] = _lit(generator, value, tint)
    return TexturedVideos(pictures, ids)


def draw_anomalies(*, test: bool, seed: int = 0) -> TexturedImages:
    """Draw images of one texture each, in test every second one with a defect: a small shape of another texture.

    `classes` are positions in `CATEGORIES`; the masks of good images are empty. Halves of the pictures are those of
    `draw_images`.
    """
    # Streams 0 to 2 draw the images and videos.
    generator = np.random.default_rng([seed, 3, int(test)])
    number = _GOOD * len(CATEGORIES)
    images, masks = np.empty((number, SIDE, SIDE, 3), np.uint8), np.zeros((number, SIDE, SIDE), np.bool_)
    classes = np.repeat(np.arange(len(CATEGORIES)), _GOOD)
    for i, c in enumerate(classes):
        surface = _surface(_OBJECTS[CATEGORIES[c]], test)
        value = _cut(surface, _random_view(generator, surface))
        if test and i % 2:
            other = _surface(_OBJECTS[generator.choice([name for name in CLASSES if name != CATEGORIES[c]])], test)
            outline = _outline(generator, SIDE * generator.uniform(0.08, 0.16))
            reach = float(np.abs(outline).max())
            cover = _cover(outline + generator.uniform(reach, SIDE - reach, 2))
            value = (1 - cover) * value + cover * _cut(other, _random_view(generator, other))
            masks[i] = cover > 0.5
        images[i] = _lit(generator, value, _tint(generator))
    return TexturedImages(images, masks, classes.astype(np.int64))


@dataclasses.dataclass(frozen=True, eq=False)
class _View:
    """Similarity from a texture to an image.

    Attributes:
        anchor: x, y in the texture that is shown at `centre`.
        matrix: (2, 2), from offsets in the image to offsets in the texture.
        centre: x, y in the image.
    """

    anchor: tuple[float, float]
    matrix: FloatArray
    centre: tuple[float, float] = (SIDE / 2, SIDE / 2)

    def moved(self, offset: FloatArray) -> "_View":
        """Return the view with the texture moved by an offset in pixels of the image."""
        return dataclasses.replace(self, centre=(self.centre[0] + offset[0], self.centre[1] + offset[1]))

    def turned(self, angle: float, scale: float) -> "_View":
        """Return the view with the texture turned and enlarged about the centre."""
        return dataclasses.replace(self, matrix=self.matrix @ _rotation(-angle) / scale)


def _rotation(angle: float) -> FloatArray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def _random_view(generator: np.random.Generator, surface: Texture) -> _View:
    """Return a view of a random place, turned by up to 30 degrees, mirrored or not, at a scale of 0.8 to 1.4."""
    scale = float(np.exp(generator.uniform(np.log(0.8), np.log(1.4))))
    reach = SIDE / 2 / scale
    x, y = (
        float(generator.uniform(min(reach, n / 2), max(n - reach, n / 2))) for n in (surface.shape[1], surface.shape[0])
    )
    mirror = np.diag([generator.choice([-1.0, 1.0]), 1.0])
    return _View((x, y), _rotation(generator.uniform(-np.pi / 6, np.pi / 6)) @ mirror / scale)


def _cut(surface: Texture, view: _View) -> Texture:
    """Return the texture in the pixels of an image, (S, S); beyond its edge it is mirrored."""
    import cv2

    offset = np.array(view.anchor) - view.matrix @ np.array(view.centre)
    affine = np.column_stack([view.matrix, offset])
    # The view leads from the image to the texture, the inverse of what OpenCV takes by default.
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    found = cv2.warpAffine(surface, affine, (SIDE, SIDE), flags=flags, borderMode=cv2.BORDER_REFLECT)
    return np.asarray(found, dtype=np.float32)


def _outline(generator: np.random.Generator, radius: float) -> FloatArray:
    """Return the corners of a smooth random shape about the origin, (corners, 2)."""
    angle = np.linspace(0, 2 * np.pi, _CORNERS, endpoint=False)
    length = np.ones(_CORNERS)
    for k in (2, 3, 4):
        length += generator.uniform(0, 0.3 / k) * np.cos(k * angle + generator.uniform(0, 2 * np.pi))
    return np.asarray(radius * length[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]))


def _cover(outline: FloatArray) -> Texture:
    """Return the share of each pixel inside an outline, (S, S)."""
    import cv2

    # fillPoly draws whole pixels, so shares are counted on a finer grid.
    fine: Any = np.zeros((SIDE * _SUBPIXELS, SIDE * _SUBPIXELS), dtype=np.uint8)
    cv2.fillPoly(fine, [np.rint(outline * _SUBPIXELS).astype(np.int32)], 1)
    return np.asarray(fine.reshape(SIDE, _SUBPIXELS, SIDE, _SUBPIXELS).mean(axis=(1, 3)), dtype=np.float32)


def _tint(generator: np.random.Generator) -> FloatArray:
    """Return the factors of red, green and blue of an image, (3,)."""
    return 1 - generator.uniform(0, 0.2, 3)


def _lit(generator: np.random.Generator, value: Texture, tint: FloatArray) -> npt.NDArray[np.uint8]:
    """Return a picture (S, S, 3) of random brightness, contrast, shade and noise."""
    angle, strength = generator.uniform(0, 2 * np.pi), generator.uniform(0, 0.4)
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE - 0.5
    shade = 1 + strength * (np.cos(angle) * x + np.sin(angle) * y)
    grey = (generator.uniform(100, 150) + generator.uniform(45, 75) * value) * shade
    picture = grey[:, :, None] * tint + generator.normal(0, 3, (SIDE, SIDE, 3))
    return np.asarray(np.clip(np.rint(picture), 0, 255), dtype=np.uint8)


def _background(generator: np.random.Generator, test: bool) -> Texture:
    return _surface(_BACKGROUNDS[generator.integers(len(_BACKGROUNDS))], test)


@functools.cache
def _surface(picture: _Picture, test: bool) -> Texture:
    """Return the texture of one half of a picture."""
    import cv2
    from PIL import Image

    with Image.open(_file(picture)) as opened:
        grey = np.asarray(opened.convert("L").crop(picture.box), dtype=np.float32)
    half = grey.shape[1] // 2
    grey = grey[:, half:] if test else grey[:, :half]
    if picture.scale != 1:
        size = round(grey.shape[1] * picture.scale), round(grey.shape[0] * picture.scale)
        grey = np.asarray(cv2.resize(grey, size, interpolation=cv2.INTER_AREA), dtype=np.float32)
    local = functools.partial(cv2.GaussianBlur, ksize=(0, 0), sigmaX=_LOCAL, borderType=cv2.BORDER_REFLECT)
    difference = grey - local(grey)
    value = difference / np.sqrt(local(difference**2) + _LEAST_CONTRAST**2)
    rank = np.empty(value.size, dtype=np.int64)
    # Stable, so that equal values have the same ranks on every machine.
    rank[np.argsort(value, axis=None, kind="stable")] = np.arange(value.size)
    # The middles of equal steps from -1 to 1.
    return np.asarray((2 * rank + 1) / value.size - 1, dtype=np.float32).reshape(value.shape)


def _file(picture: _Picture) -> Path:
    package, folder = picture.place
    module = importlib.util.find_spec(package)
    if module is None or not module.submodule_search_locations:
        raise UsageError(
            f"drawn textures need the pictures of {package}, which is not installed", "pip install scikit-image"
        )
    file = Path(module.submodule_search_locations[0]) / folder / picture.file
    if not file.is_file():
        raise DataError(f"drawn textures need {file}, which is missing")
    return file


_NAME = re.compile(rf"{PREFIX}(?P<what>images|videos|anomalies)(-seed(?P<seed>\d{{1,9}}))?")
_TAKERS = {
    "images": f"{IMAGES} are images.",
    "videos": "`sslbench eval tracking` takes videos.",
    "anomalies": "`sslbench eval anomaly` takes images with defects.",
}
_NUMBERS = {"train": 72, "test": 48}
_VIDEOS, _FRAMES = 8, 12
# Images of each category with anomalies.
_GOOD = 16
_NOTE = "Drawn textures, an example: scores are not comparable with those of a benchmark."


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnIds(OfRows):
    """Objects of M drawn frames; see `tracks.ObjectIds`.

    Attributes:
        ids: int32 (M, H, W).
    """

    of_rows = ("ids",)
    ids: npt.NDArray[np.int32]

    def read_ids(self, row: int) -> Ids:
        """Return the objects of a frame."""
        return np.asarray(self.ids[row])

    def fingerprint(self) -> str:
        """Return a hash of the masks."""
        return hashlib.sha256(repr(self.ids.shape).encode() + np.ascontiguousarray(self.ids).tobytes()).hexdigest()


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'textures:'."""
    return spec.startswith(PREFIX)


def open(spec: str) -> dict[str, Source]:
    """Return the images of both splits, labelled with the class of their object."""
    sources = {}
    for split, drawn in _both_splits(_seed(spec, "images")).items():
        name, images = f"{spec} ({split})", Arrays(drawn.images, f"{spec} ({split})")
        labels = Classes(CLASSES, drawn.classes)
        sources[split] = Source(name, numbered_ids(len(images)), labels, images, (_NOTE,))
    return sources


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """Return the images of both splits with box and mask of their object; see `open`."""
    sources = {}
    for split, drawn in _both_splits(_seed(spec, "images")).items():
        n, name = len(drawn.classes), f"{spec} ({split})"
        sources[split] = ObjectSource(
            name,
            numbered_ids(n),
            Boxes(
                CLASSES,
                tuple(_object(drawn, i) for i in range(n)),
                sizes=np.full((n, 2), SIDE, dtype=np.int64),
                numbers=tuple(range(1, n + 1)),
                class_numbers=tuple(range(1, len(CLASSES) + 1)),
            ),
            Arrays(drawn.images, name),
            (_NOTE,),
        )
    return sources


def open_videos(spec: str) -> dict[str, Source]:
    """Return the videos with the masks of their objects, as a test part."""
    drawn = _videos(_seed(spec, "videos"))
    frames, name = drawn.frames.reshape(-1, *drawn.frames.shape[2:]), f"{spec} (test)"
    places = {video: range(i * _FRAMES, (i + 1) * _FRAMES) for i, video in enumerate(numbered_ids(_VIDEOS))}
    masks = DrawnIds(drawn.ids.reshape(-1, *drawn.ids.shape[2:]))
    return {"test": videos_source(name, places, Arrays(frames, name), masks, (_NOTE,))}


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnMasks(OfRows):
    """Drawn masks; see `PixelLabels`.

    Attributes:
        masks: bool (N, H, W).
    """

    of_rows = ("masks",)
    masks: npt.NDArray[np.bool_]

    def read_map(self, index: int, *, size: tuple[int, int] | None = None) -> LabelMap:
        """Return the mask of an image."""
        return LabelMap(self.masks[index].astype(np.int32), None)

    def fingerprint(self) -> str:
        """Return a hash of the masks."""
        return hashlib.sha256(repr(self.masks.shape).encode() + self.masks.tobytes()).hexdigest()[:32]


def open_anomalies(spec: str) -> dict[str, Source]:
    """Return good images for training, and good and anomalous ones for test."""
    seed, sources = _seed(spec, "anomalies"), {}
    for split in ("train", "test"):
        drawn, name = draw_anomalies(test=split == "test", seed=seed), f"{spec} ({split})"
        values = np.column_stack([drawn.classes, drawn.masks.any(axis=(1, 2))]).astype(np.int64)
        target = Anomalies(CATEGORIES, values, DrawnMasks(drawn.masks))
        ids = tuple(f"{CATEGORIES[c]}/{i:02d}" for i, c in enumerate(drawn.classes))
        sources[split] = Source(name, ids, target, Arrays(drawn.images, name), (_NOTE,))
    return sources


def _object(drawn: TexturedImages, index: int) -> Objects:
    mask = drawn.masks[index]
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = np.array([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], dtype=np.float32)
    no = np.zeros(1, dtype=np.bool_)
    area = np.array([mask.sum()], dtype=np.float64)
    return Objects(box, drawn.classes[index : index + 1], no, no, area, (rle.text(rle.encode(mask)),))


def _seed(spec: str, what: str) -> int:
    """Return the seed in a name."""
    match = _NAME.fullmatch(spec)
    if match is None:
        raise UsageError(
            f"there are no drawn textures '{spec}'",
            f"Known: {IMAGES}, {VIDEOS}, {ANOMALIES}; other drawings of them: {IMAGES}-seed1.",
        )
    if match["what"] != what:
        raise UsageError(f"{spec} holds no {what}", f"{_TAKERS[match['what']]} Give {PREFIX}{what}.")
    return int(match["seed"] or 0)


@functools.cache
def _both_splits(seed: int) -> Mapping[str, TexturedImages]:
    return {split: draw_images(n, test=split == "test", seed=seed) for split, n in _NUMBERS.items()}


@functools.cache
def _videos(seed: int) -> TexturedVideos:
    return draw_videos(_VIDEOS, frames=_FRAMES, seed=seed)


def _is_no_file(spec: str) -> bool:
    return recognises(spec) and not Path(spec).exists()


_MAPS = map_readers(
    lambda spec, _: _is_no_file(spec), lambda spec, options: open_maps(spec, options, open_objects), LabelMapOptions
)


FORMAT = SourceFormat(
    __doc__,
    SampleReader(recognises, lambda request: open(request.spec), NoOptions),
    {
        Boxes: plain_reader(_is_no_file, open_objects),
        **_MAPS,
        Boundaries: Reader(
            _MAPS[Foreground].recognises,
            lambda spec, options: {
                split: with_boundaries(source, regions=True)
                for split, source in _MAPS[Foreground].open(spec, options).items()
            },
            LabelMapOptions,
        ),
        Tracks: plain_reader(_is_no_file, open_videos),
        Anomalies: plain_reader(_is_no_file, open_anomalies),
    },
)
