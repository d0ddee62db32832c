"""Images in memory with their labels: torch and Hugging Face data sets, frames, lists, arrays and tensors of images.

They become a `Source` like that of files, and are decoded, stored and recorded in the same way. Their identity is their
content: every image is read once for its digest, and again when it is encoded; an image that differs at its second
reading is an error.
"""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from sslbench.data.containers.members import numbered_ids, split_name
from sslbench.data.formats.table import IMAGE_COLUMNS, LABEL_COLUMNS, read_columns
from sslbench.data.formats.table.lists import TableColumns
from sslbench.data.images import Arrays, Files, array_digest, digest, joined_digests
from sslbench.data.labels import labels_of
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Images, Target

SUPPORTED = (
    "Supported: a location as text; a torch Dataset or DataLoader; a Hugging Face Dataset; a pandas frame with a "
    "column of paths; (images, labels), where the images are a list of paths or Pillow images, an array "
    "(N, H, W[, channels]) or a tensor (N, channels, H, W)."
)
_IMAGE_KEYS = (*IMAGE_COLUMNS, "images", "pixel_values")  # of an item of a data set
_USUAL_CHANNELS = (1, 3, 4)
_ENCODED = {"bytes", "path"}  # keys of an encoded image of Hugging Face
# DistributedSampler repeats samples to fill up its last round; the data set has each once.
_EACH_ONCE = (
    torch.utils.data.SequentialSampler,
    torch.utils.data.RandomSampler,
    torch.utils.data.DistributedSampler,
)


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns of a frame or a Hugging Face data set; None: recognised by their names, see `data.formats.table`.

    Attributes:
        image: with the images, or their paths.
        label: with the labels.
        attributes: further columns to keep.
        values: columns of numbers to predict, in place of labels.
    """

    image: str | None = None
    label: str | None = None
    attributes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    def refuse(self, name: str) -> None:
        """Refuse columns for data that have none."""
        for column in (self.image, self.label, *self.attributes, *self.values):
            if column is not None:
                raise UsageError(
                    f"{name} has no column '{column}': only frames and Hugging Face data sets have columns"
                )


def sources_of(data: Any, name: str, columns: Columns | None = None) -> dict[str, Source]:
    """Return images in memory, by split, as `open_data` returns those of a location.

    Args:
        data: a torch data set (map-style) or loader, a Hugging Face data set, a pandas frame; a tuple of images and
            labels; images alone; or a mapping of splits to any of these.
        name: of the data in messages and records.
        columns: of a frame or a Hugging Face data set.

    Returns:
        Split -> source; {"all": source} without splits. Ids are positions, those of a frame its paths.

    Examples:
        >>> images = np.zeros((2, 8, 8, 3), dtype=np.uint8)
        >>> source = sources_of((images, ["cat", "dog"]), "two")["all"]
        >>> source.ids, source.target.classes, source.images.path(1)
        (('0', '1'), ('cat', 'dog'), 'two[1]')
    """
    columns = columns or Columns()
    if _from(data, "pandas") and hasattr(data, "columns"):
        cells = {str(column): data[column].tolist() for column in data.columns}
        if not len(data):
            raise DataError(f"{name} has no rows")
        table = TableColumns(name, cells, lambda row: f"row {data.index[row]}")
        # Relative paths start at the current folder.
        return read_columns(table, [Path()], columns.image, columns.label, columns.attributes, columns.values)
    if isinstance(data, Mapping):
        parts = {split_name(str(key)) or str(key): (f"{name} ({key})", part) for key, part in data.items()}
        return {split: _one(part, own, columns) for split, (own, part) in parts.items()}
    return {"all": _one(data, name, columns)}


def _one(data: Any, name: str, columns: Columns) -> Source:
    """Return the source of images without splits."""
    if hasattr(data, "features") and hasattr(data, "column_names"):
        source = _of_hugging_face(data, name, columns)
    else:
        columns.refuse(name)
        source = _of_images(data, name)
    if not len(source):
        raise DataError(f"{name} holds no images")
    return source


def _of_images(data: Any, name: str) -> Source:
    if isinstance(data, torch.utils.data.DataLoader):
        is_iterable = isinstance(data.dataset, torch.utils.data.IterableDataset)
        if not is_iterable and not isinstance(data.sampler, _EACH_ONCE):
            raise UsageError(
                f"{name}: the loader chooses samples by a {type(data.sampler).__name__}",
                "Pass its data set, or torch.utils.data.Subset(dataset, indices).",
            )
        data = data.dataset
    if isinstance(data, torch.utils.data.IterableDataset):
        raise UsageError(f"{name} can only be iterated over, but images are read by position", "Pass list(dataset).")
    if isinstance(data, tuple) and len(data) == 2:
        images, labels = data
        found = _images(images, name)
        if hasattr(labels, "__len__") and len(labels) != len(found):
            raise DataError(f"{name}: {len(found):,} images and {len(labels):,} labels")
        return Source(name, numbered_ids(len(found)), labels_of(labels, len(found), name=name), found)
    if isinstance(data, tuple) and data and (isinstance(data[0], list) or getattr(data[0], "ndim", 0) >= 4):
        raise UsageError(
            f"{name}: a tuple of {len(data)}, and (images, labels) are expected", "Pass (x[0], x[1]) in place of x."
        )
    pairs = isinstance(data, list) and data and all(isinstance(row, tuple) and len(row) == 2 for row in data)
    if isinstance(data, torch.utils.data.Dataset) or pairs:
        return _of_pairs(data, name)
    if isinstance(data, list | tuple | np.ndarray | torch.Tensor) or _from(data, "pandas"):
        found = _images(data, name)
        return Source(name, numbered_ids(len(found)), Unlabelled(len(found)), found)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return _of_pairs(data, name)
    raise UsageError(f"{name}: these are no images", SUPPORTED)


def _images(images: Any, name: str) -> Images:
    """Return a list of paths, or any sequence of images, as images that are read one by one."""
    if _from(images, "pandas"):
        images = images.tolist()
    if isinstance(images, list | tuple) and images and all(isinstance(item, str | Path) for item in images):
        return Files(tuple(map(str, images)))
    if isinstance(images, torch.Tensor):
        images = _channels_last(images, name) if images.ndim == 4 else images.detach().cpu().numpy()
    if isinstance(images, np.ndarray):
        if images.ndim not in (3, 4):
            raise UsageError(
                f"{name}: an array {images.shape} is neither images (N, H, W[, channels]) nor features (N, D)",
                SUPPORTED,
            )
        if images.ndim == 4:
            _refuse_other_order(images.shape, name, first=False)
        if images.dtype == np.uint8:
            return Arrays(images, name)
    if not (hasattr(images, "__len__") and hasattr(images, "__getitem__")):
        raise UsageError(f"{name}: these are no images", SUPPORTED)
    return InMemory(images, name, _digests(images, name))


def _digests(items: Any, name: str) -> npt.NDArray[np.uint8]:
    """Return the digests of all images, (N, 16)."""
    return joined_digests(
        _digest(_pixels(_pair(items[i], f"{name}[{i}]")[0], f"{name}[{i}]")) for i in range(len(items))
    )


def _of_pairs(data: Any, name: str) -> Source:
    """Return the samples of a map-style data set; one pass over it gives the labels and the digests."""
    labels: list[Any] = []
    digests: list[bytes] = []
    for i in range(len(data)):
        image, label = _pair(data[i], f"{name}[{i}]")
        labels.append(label)
        digests.append(_digest(_pixels(image, f"{name}[{i}]")))
    unlabelled = sum(label is None for label in labels)
    if 0 < unlabelled < len(labels):
        raise DataError(f"{name}: {unlabelled:,} of {len(labels):,} samples have no label")
    dataset = data
    while isinstance(dataset, torch.utils.data.Subset):  # of one, perhaps; it has no names itself
        dataset = dataset.dataset
    names = getattr(dataset, "classes", ())  # of the data sets of torchvision
    classes = tuple(names) if isinstance(names, list | tuple) and all(isinstance(c, str) for c in names) else ()
    found = labels_of(None if unlabelled else labels, len(labels), classes=classes, name=name)
    return Source(name, numbered_ids(len(labels)), found, InMemory(data, name, joined_digests(digests)))


def _pair(item: Any, place: str) -> tuple[Any, Any]:
    """Return image and label of an item: (image, label, ...), {'image': ..., 'label': ...} or an image."""
    if isinstance(item, Mapping) and item.keys() <= _ENCODED:
        return item, None
    if isinstance(item, Mapping):
        keys = {str(key).lower(): key for key in item}
        image = next((keys[name] for name in _IMAGE_KEYS if name in keys), None)
        if image is None:
            raise UsageError(
                f"{place}: none of its keys {', '.join(keys)} is known to hold the image",
                "An item should be (image, label) or {'image': image, 'label': label}.",
            )
        return item[image], next((item[keys[name]] for name in LABEL_COLUMNS if name in keys), None)
    if isinstance(item, tuple | list):
        if not item:
            raise UsageError(f"{place} is empty", "An item should be (image, label).")
        return item[0], item[1] if len(item) > 1 else None
    return item, None


@dataclasses.dataclass(frozen=True, eq=False)
class InMemory:
    """Images of a map-style data set, or of a sequence of images, converted when they are read.

    Attributes:
        items: object with `__len__` and `__getitem__`.
        name: of the data in messages.
        known: (M, 16) digests of all items.
        rows: int64 (N,), selected items, in order; None for all.
    """

    items: Any
    name: str
    known: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.known) if self.rows is None else len(self.rows)

    def _row(self, index: int) -> int:
        return range(len(self.known))[index] if self.rows is None else int(self.rows[index])

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Return an encoded image, or its pixels: uint8 (H, W) or (H, W, channels)."""
        row = self._row(index)
        pixels = _pixels(_pair(self.items[row], self.path(index))[0], self.path(index))
        if _digest(pixels) != self.known[row].tobytes():
            raise DataError(
                f"{self.path(index)} differs between two readings: the data set changes its images at random",
                "Leave out random transforms; sslbench resizes, crops and normalises as the backbone needs it.",
            )
        return pixels

    def path(self, index: int) -> str:
        """Return the name of the data and the position in them, such as 'CIFAR10[17]'."""
        return f"{self.name}[{self._row(index)}]"

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return the BLAKE2b digest of each image's content, (N, 16) bytes."""
        return self.known.copy() if self.rows is None else self.known[self.rows]

    def select(self, indices: npt.NDArray[np.int64]) -> "InMemory":
        """Return the images at `indices`, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return dataclasses.replace(self, rows=chosen if self.rows is None else self.rows[chosen])


def _digest(content: bytes | npt.NDArray[np.uint8]) -> bytes:
    """Return the digest of an image as `Files` and `Arrays` compute it: that of the file, or of shape and pixels."""
    return digest(content) if isinstance(content, bytes) else array_digest(content)


def _pixels(image: Any, place: str) -> bytes | npt.NDArray[np.uint8]:
    """Return an image as a source delivers it: an encoded file, or uint8 (H, W) or (H, W, channels)."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, Mapping) and image.keys() <= _ENCODED:
        return image["bytes"] if image.get("bytes") else _file(image.get("path"), place)
    if isinstance(image, str | Path):
        return _file(image, place)
    if isinstance(image, Image.Image):
        image = ImageOps.exif_transpose(image)
        if image.mode in ("L", "RGB"):
            return np.asarray(image)
        # Other modes as a file, which is decoded like any other. PNG has neither CMYK and LAB nor 32 bits.
        buffer = io.BytesIO()
        image.save(buffer, "PNG" if image.mode in ("1", "P", "LA", "RGBA", "I;16") else "TIFF")
        return buffer.getvalue()
    if isinstance(image, torch.Tensor):
        image = _channels_last(image, place)
    if not isinstance(image, np.ndarray):
        raise UsageError(f"{place}: a {type(image).__name__} is no image", "Give Pillow images, arrays or tensors.")
    if image.ndim not in (2, 3):
        raise UsageError(f"{place}: an array {image.shape} is no image (H, W[, channels])")
    _refuse_other_order(image.shape, place, first=False)
    return _of_array(image, place)


def _file(path: object, place: str) -> bytes:
    if not isinstance(path, str | Path):
        raise DataError(f"{place} has neither the content of an image nor a path")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{place}: cannot read {path}: {error.strerror or error}") from error


def _of_array(image: npt.NDArray[Any], place: str) -> bytes | npt.NDArray[np.uint8]:
    """Return an array of pixels as uint8 where that is exact, else as a NumPy file of 16 bits."""
    if image.dtype == np.uint8:
        return image
    if image.dtype == np.uint16:
        return _as_file(image)
    if not image.size or image.dtype == np.bool_ or not np.issubdtype(image.dtype, np.number):
        raise DataError(f"{place}: an array of {image.dtype} {image.shape} holds no pixels")
    low, high = float(image.min()), float(image.max())
    if np.issubdtype(image.dtype, np.integer) and low >= 0 and high <= 255:
        return image.astype(np.uint8)
    if not np.issubdtype(image.dtype, np.floating) or not 0 <= low <= high <= 1:  # NaN fails, too
        raise DataError(
            f"{place}: pixels of {image.dtype} from {low:g} to {high:g}, whose range is not known",
            "Give 8 or 16 bits, or floats from 0 to 1, without Normalize: sslbench normalises for the backbone.",
        )
    exact = np.rint(image.astype(np.float64) * 255)
    if np.abs(exact - image.astype(np.float64) * 255).max() < 1e-3:  # ToTensor of 8 bits
        return exact.astype(np.uint8)
    return _as_file(np.rint(image.astype(np.float64) * 65535).astype(np.uint16))


def _as_file(array: npt.NDArray[np.uint16]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array))
    return buffer.getvalue()


def _channels_last(images: torch.Tensor, place: str) -> npt.NDArray[Any]:
    """Return a tensor (..., C, H, W) as an array with the channels last; one channel is a grey picture."""
    array: npt.NDArray[Any] = images.detach().cpu().numpy()
    if array.ndim < 3:
        return array
    _refuse_other_order(array.shape, place, first=True)
    array = np.moveaxis(array, -3, -1)
    return array[..., 0] if array.shape[-1] == 1 else array


def _refuse_other_order(shape: tuple[int, ...], place: str, *, first: bool) -> None:
    """Refuse images with channels where height or width should be, as far as the numbers of 1, 3 or 4 tell."""
    if len(shape) not in (3, 4):
        return
    at, other = (-3, -1) if first else (-1, -3)
    if shape[other] not in _USUAL_CHANNELS or shape[at] <= max(_USUAL_CHANNELS) or shape[-2] <= shape[other]:
        return
    n = "N, " if len(shape) == 4 else ""
    orders = f"({n}channels, H, W)", f"({n}H, W, channels)"
    kinds, expected, found = ("tensors", *orders) if first else ("arrays", *reversed(orders))
    axes = {(3, True): "2, 0, 1", (4, True): "0, 3, 1, 2", (3, False): "1, 2, 0", (4, False): "0, 2, 3, 1"}
    moved = f"x.{'permute' if first else 'transpose'}({axes[len(shape), first]})"
    raise UsageError(
        f"{place}: {kinds} of images are {expected}, and {shape} looks like {found}", f"Pass {moved} in place of x."
    )


def _of_hugging_face(data: Any, name: str, columns: Columns) -> Source:
    """Return a Hugging Face data set."""
    if not hasattr(data, "__len__"):
        raise UsageError(
            f"{name} can only be iterated over, but images are read by position",
            "Load it without streaming=True, or pass datasets.Dataset.from_list(list(data), features=data.features).",
        )
    given = {str(key): feature for key, feature in data.features.items()}
    image = _column(name, columns.image, given, [key for key in given if type(given[key]).__name__ == "Image"], "image")
    if image is None:
        raise DataError(f"{name}: no column holds images, there are: {', '.join(given)}")
    if columns.values:
        raise UsageError(f"{name}: numbers to predict are read from frames, not from a Hugging Face data set")
    # A format of torch or NumPy would change the types of the cells.
    plain = data.with_format(None)
    usual = [key for key in LABEL_COLUMNS if key in given and key != image]
    label = _column(name, columns.label, given, usual, "label")
    labels = Unlabelled(len(data)) if label is None else _hugging_face_labels(plain, label, given[label], name)
    # The encoded files, which are decoded like any others, not the pictures that the library makes of them.
    encoded = plain.select_columns([image]).cast_column(image, type(given[image])(decode=False))
    items = _Column(encoded, image)
    attributes = {}
    for key in columns.attributes:
        _column(name, key, given, (), "group")
        attributes[key] = tuple(map(str, plain[key]))
    found = InMemory(items, name, _digests(items, name))
    return Source(name, numbered_ids(len(data)), labels, found, attributes=attributes)


def _column(name: str, asked: str | None, given: Mapping[str, Any], usual: Sequence[str], what: str) -> str | None:
    if asked is not None and asked not in given:
        raise UsageError(f"{name} has no column '{asked}' ({what})", did_you_mean(asked, given))
    return asked if asked is not None else next(iter(usual), None)


def _hugging_face_labels(data: Any, column: str, feature: Any, name: str) -> Target:
    """Return the labels of a column; a ClassLabel names its numbers."""
    feature = feature if hasattr(feature, "names") else getattr(feature, "feature", feature)  # a list of ClassLabel
    classes = tuple(getattr(feature, "names", None) or ())
    cells = list(data[column])
    # Test parts whose labels are not public have -1 on the hub.
    if classes and all(cell == -1 for cell in cells):
        return Unlabelled(len(cells))
    return labels_of(cells, len(cells), classes=classes, name=f"{name}, column '{column}'")


@dataclasses.dataclass(frozen=True)
class _Column:
    """Cells of one column of a Hugging Face data set."""

    data: Any
    column: str

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index][self.column]


def _from(data: Any, library: str) -> bool:
    """Return whether an object is of a library, without importing it."""
    return type(data).__module__.partition(".")[0] == library
