"""`torchvision:NAME` or `torchvision:NAME@FOLDER`: a data set of torchvision (CIFAR10, ...) from files on disk."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.images import Arrays
from sslbench.data.labels import single_labels
from sslbench.data.source import Source
from sslbench.data.sources._names import numbered_ids, refuse_columns
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean

PREFIX = "torchvision:"
_IDX_FILES = {"train": "train", "test": "t10k"}
"""Split -> how the names of its files begin, in the sets that are laid out like MNIST."""

_Pixels = npt.NDArray[np.uint8]
_Loaded = dict[str, tuple[_Pixels, list[int]]]


def recognises(spec: str) -> bool:
    """Whether the string starts with 'torchvision:'."""
    return spec.startswith(PREFIX)


def open(spec: str, *, image_column: str | None = None, label_column: str | None = None) -> dict[str, Source]:
    """A data set whose files lie in FOLDER, else in $SSLBENCH_DATA, else in ./data, as torchvision lays them out.

    Nothing is downloaded. Of the sets laid out like MNIST the compressed files are enough.

    Returns:
        {"train": source, "test": source}. The unlabelled and extra images of STL10 and SVHN are left alone.

    Raises:
        DataError: the files are not there or are damaged.
        UsageError: torchvision has no such data set, or a column was named.
    """
    refuse_columns(spec, image_column, label_column)
    name, _, folder = spec.removeprefix(PREFIX).partition("@")
    if name not in _LOADERS:
        raise UsageError(
            f"there is no data set '{PREFIX}{name}'",
            f"{did_you_mean(name, _LOADERS)} Others can be exported to a folder of images, one sub-folder per class.",
        )
    root = Path(folder or os.environ.get("SSLBENCH_DATA") or "data").expanduser()
    loaded, classes = _LOADERS[name](name, root)
    return {split: _source(spec, name, split, *data, classes) for split, data in loaded.items()}


def _source(spec: str, name: str, split: str, pixels: _Pixels, targets: list[int], classes: tuple[str, ...]) -> Source:
    labels = single_labels([classes[target] for target in targets], classes)
    return Source(f"{spec} ({split})", numbered_ids(len(pixels)), labels, Arrays(pixels, f"{name}-{split}"))


def _not_there(name: str, root: Path, arguments: str, cause: object = None) -> DataError:
    detail = f": {' '.join(str(cause).split())}" if cause else ""
    return DataError(
        f"the files of {name} are not (or not all, or not intact) in {root.absolute()}{detail}",
        f'sslbench downloads nothing. To get them: python -c "from torchvision.datasets import {name}; '
        f"{name}('{root}', {arguments}, download=True)\". If they lie elsewhere: {PREFIX}{name}@FOLDER, or set "
        "SSLBENCH_DATA to the folder.",
    )


def _load_idx(name: str, root: Path) -> tuple[_Loaded, tuple[str, ...]]:
    """MNIST, FashionMNIST, KMNIST: idx files, which torchvision itself cannot read while they are compressed."""
    import torchvision.datasets

    folders = [root / name / "raw", root / "raw", root]
    folder = next((f for f in folders if _idx_file(f, "train-images-idx3-ubyte")), None)
    if folder is None:
        raise _not_there(name, root, "train=True")
    loaded: _Loaded = {}
    for split, prefix in _IDX_FILES.items():
        images, labels = (_idx_file(folder, f"{prefix}-{rest}") for rest in ("images-idx3-ubyte", "labels-idx1-ubyte"))
        if images is None or labels is None:
            raise _not_there(name, root, "train=True")
        pixels, targets = _read_idx(images), _read_idx(labels)
        if pixels.ndim != 3 or targets.shape != pixels.shape[:1]:
            raise DataError(f"{images} and {labels} do not belong together: {pixels.shape} and {targets.shape}")
        loaded[split] = (pixels, targets.tolist())
    return loaded, tuple(getattr(torchvision.datasets, name).classes)


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read_idx(path: Path) -> _Pixels:
    """An array in the idx format: two zero bytes, type 8 (uint8), the number of dimensions, big-endian sizes, data."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zero, kind, dimensions = struct.unpack(">HBB", content[:4])
        shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
        if (zero, kind) != (0, 8):
            raise ValueError("not an idx file of bytes")
        return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise DataError(f"{path} is damaged or no idx file: {error}") from error


def _dataset(name: str, root: Path, arguments: dict[str, Any]) -> Any:
    import torchvision.datasets

    try:
        return getattr(torchvision.datasets, name)(str(root), **arguments, download=False)
    except (RuntimeError, OSError) as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise _not_there(name, root, shown, error) from error


def _load_cifar(name: str, root: Path) -> tuple[_Loaded, tuple[str, ...]]:
    sets = {split: _dataset(name, root, {"train": split == "train"}) for split in ("train", "test")}
    return {split: (s.data, s.targets) for split, s in sets.items()}, tuple(sets["train"].classes)


def _load_svhn(name: str, root: Path) -> tuple[_Loaded, tuple[str, ...]]:
    sets = {split: _dataset(name, root, {"split": split}) for split in ("train", "test")}
    loaded = {split: (_channels_last(s.data), s.labels.tolist()) for split, s in sets.items()}
    return loaded, tuple("0123456789")


def _load_stl(name: str, root: Path) -> tuple[_Loaded, tuple[str, ...]]:
    sets = {split: _dataset(name, root, {"split": split}) for split in ("train", "test")}
    loaded = {split: (_channels_last(s.data), s.labels.tolist()) for split, s in sets.items()}
    return loaded, tuple(sets["train"].classes)


def _load_usps(name: str, root: Path) -> tuple[_Loaded, tuple[str, ...]]:
    sets = {split: _dataset(name, root, {"train": split == "train"}) for split in ("train", "test")}
    return {split: (s.data, [int(t) for t in s.targets]) for split, s in sets.items()}, tuple("0123456789")


def _channels_last(pixels: _Pixels) -> _Pixels:
    """(N, C, H, W) -> (N, H, W, C), a view: the pixels of one image are copied when it is read."""
    return pixels.transpose(0, 2, 3, 1)


_LOADERS: dict[str, Callable[[str, Path], tuple[_Loaded, tuple[str, ...]]]] = {
    "CIFAR10": _load_cifar,
    "CIFAR100": _load_cifar,
    "FashionMNIST": _load_idx,
    "KMNIST": _load_idx,
    "MNIST": _load_idx,
    "STL10": _load_stl,
    "SVHN": _load_svhn,
    "USPS": _load_usps,
}
