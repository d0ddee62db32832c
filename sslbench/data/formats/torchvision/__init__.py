"""`torchvision:NAME` or `torchvision:NAME@FOLDER`: a data set of torchvision (CIFAR10, ...) from files on disk."""

import csv
import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.arrays import ByteArray
from sslbench.data.containers.hdf5 import Hdf5Images, open_hdf5
from sslbench.data.containers.members import numbered_ids
from sslbench.data.format import NoOptions, SampleReader, SourceFormat
from sslbench.data.formats.torchvision.files import FILE_SETS, open_files
from sslbench.data.hashes import stamp_of
from sslbench.data.images import Arrays
from sslbench.data.labels import single_labels
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean

PREFIX = "torchvision:"
# Split -> prefix of its files, in data sets with the layout of MNIST
_IDX_FILES = {"train": "train", "test": "t10k"}

_Loaded = dict[str, tuple[ByteArray, list[int]]]


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'torchvision:'."""
    return spec.startswith(PREFIX)


def open(spec: str) -> dict[str, Source]:
    """Return a data set with torchvision's files in FOLDER, else in $SSLBENCH_DATA, else in ./data.

    Nothing is downloaded. Of the sets laid out like MNIST the compressed files are enough. `CLEVRClassification` counts
    objects, as in torchvision; `CLEVRClassification[distance]` and `Kitti[distance]` are the distance tasks of VTAB.

    Returns:
        {"train": source, "test": source} by the official splits; {"all": source} where there are none; with "val" where
        that is the public part (CLEVR, Imagenette) or is not used (PCAM). The unlabelled and extra images of STL10 and
        SVHN are left alone.
    """
    name, _, folder = spec.removeprefix(PREFIX).partition("@")
    if name not in all_sets():
        raise UsageError(
            f"there is no data set '{PREFIX}{name}'",
            f"{did_you_mean(name, all_sets())} Export other data sets as a folder of images per class.",
        )
    root = Path(folder or os.environ.get("SSLBENCH_DATA") or "data").expanduser()
    if name in FILE_SETS:
        return open_files(spec, name, root)
    if name == "PCAM":
        return _open_pcam(spec, root)
    loaded, classes = _LOADERS[name](name, root)
    sources = {}
    for split, (pixels, targets) in loaded.items():
        labels = single_labels([classes[target] for target in targets], classes)
        images = Arrays(pixels, f"{name}-{split}")
        sources[split] = Source(f"{spec} ({split})", numbered_ids(len(pixels)), labels, images)
    return sources


def all_sets() -> list[str]:
    """Return the names that can follow 'torchvision:', sorted."""
    return sorted([*_LOADERS, *FILE_SETS, "PCAM"])


def page(name: str) -> str:
    """Return the web page of a data set."""
    return FILE_SETS[name].page if name in FILE_SETS else _PLACES[name][1]


def place(name: str, root: Path) -> Path:
    """Return the folder of a data set below the data folder, or one of its files where it has no folder of its own."""
    if name in FILE_SETS:
        return root / FILE_SETS[name].folder
    return root / _WITHOUT_FOLDER.get(name, _PLACES[name][0])


def _not_there(name: str, root: Path, arguments: str, cause: object = None) -> DataError:
    detail = f": {' '.join(str(cause).split())}" if cause else ""
    place, page = _PLACES[name]
    inside = "" if place == "." else f" (with {place}/ in it)"
    fetch = f"; to download it: sslbench data download {PREFIX}{name} --out {root}." if arguments else "."
    return DataError(
        f"the files of {name} are not (or not all, or not intact) in {(root / place).absolute()}{detail}",
        f"{name} is offered at {page}{fetch} "
        f"If it lies elsewhere: {PREFIX}{name}@FOLDER{inside}, or set SSLBENCH_DATA.",
    )


def _load_idx(name: str, root: Path) -> tuple[_Loaded, tuple[str, ...]]:
    """Load MNIST, FashionMNIST or KMNIST from idx files; torchvision cannot read them compressed."""
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
            raise DataError(f"{images} and {labels} do not match: {pixels.shape} and {targets.shape}")
        loaded[split] = (pixels, targets.tolist())
    return loaded, tuple(getattr(torchvision.datasets, name).classes)


def _idx_file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read_idx(path: Path) -> ByteArray:
    """Read an idx array: two zero bytes, type 8 (uint8), the number of dimensions, big-endian sizes, data."""
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


def _load_by_train(name: str, root: Path) -> tuple[_Loaded, tuple[str, ...]]:
    """Load CIFAR or USPS, whose classes in torchvision have the argument `train`; USPS has digits."""
    sets = {split: _dataset(name, root, {"train": split == "train"}) for split in ("train", "test")}
    loaded = {split: (s.data, [int(target) for target in s.targets]) for split, s in sets.items()}
    return loaded, tuple(getattr(sets["train"], "classes", "0123456789"))


def _load_by_split(name: str, root: Path) -> tuple[_Loaded, tuple[str, ...]]:
    """Load STL10 or SVHN, whose classes in torchvision have the argument `split`; SVHN has digits."""
    sets = {split: _dataset(name, root, {"split": split}) for split in ("train", "test")}
    # (N, C, H, W) as a view (N, H, W, C): pixels are copied when an image is read.
    loaded = {split: (s.data.transpose(0, 2, 3, 1), s.labels.tolist()) for split, s in sets.items()}
    return loaded, tuple(getattr(sets["train"], "classes", "0123456789"))


_EMOTIONS = ("angry", "disgust", "fear", "happy", "sad", "surprise", "neutral")
# The part that the challenge was decided on is test; its public leaderboard, a validation part, is train too
_FER_PARTS = {"Training": "train", "PublicTest": "train", "PrivateTest": "test"}


def _load_fer(name: str, root: Path) -> tuple[_Loaded, tuple[str, ...]]:
    """Load FER2013 from a table with the pixels as text; Kaggle's test.csv has no labels and is not read."""
    folder = root / "fer2013"
    file = next((f for f in (folder / "fer2013.csv", folder / "icml_face_data.csv") if f.is_file()), None)
    if file is None:
        raise _not_there(name, root, "", "fer2013.csv or icml_face_data.csv is missing")
    pixels: dict[str, list[ByteArray]] = {"train": [], "test": []}
    targets: dict[str, list[int]] = {"train": [], "test": []}
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            # icml_face_data.csv has a space behind each comma of its header.
            for row in csv.DictReader(opened, skipinitialspace=True):
                part = _FER_PARTS[row["Usage"]]
                pixels[part].append(np.array(row["pixels"].split(), dtype=np.uint8).reshape(48, 48))
                # By range, so that a number of no class is an IndexError.
                targets[part].append(range(len(_EMOTIONS))[int(row["emotion"])])
    except (KeyError, ValueError, IndexError, OverflowError) as error:
        raise DataError(f"{file} is damaged: {type(error).__name__} {error}") from error
    if not all(pixels.values()):
        raise DataError(f"{file} has no rows for {' and '.join(p for p, rows in pixels.items() if not rows)}")
    return {part: (np.stack(rows), targets[part]) for part, rows in pixels.items()}, _EMOTIONS


def _open_pcam(spec: str, root: Path) -> dict[str, Source]:
    """Open PatchCamelyon: arrays of several gigabytes in HDF5 files, read patch by patch."""
    sources = {}
    for split, word in (("train", "train"), ("val", "valid"), ("test", "test")):
        stem = root / "pcam" / f"camelyonpatch_level_2_split_{word}"
        try:
            with open_hdf5(Path(f"{stem}_y.h5")) as opened:
                targets = opened["y"][:].reshape(-1)
            file = Path(f"{stem}_x.h5")
            stamp = stamp_of(file.stat())
            with open_hdf5(file) as opened:
                n = len(opened["x"])
        except FileNotFoundError as error:
            raise _not_there("PCAM", root, f"'{split}'", f"{error.filename} is missing") from error
        except KeyError as error:
            raise DataError(f"{stem}_x.h5 and _y.h5 should hold the arrays x and y: {error}") from error
        if len(targets) != n:
            raise DataError(f"{stem}_x.h5 and _y.h5 do not belong together: {n} patches, {len(targets)} labels")
        names = ("normal", "tumour")
        labels = single_labels([names[int(target)] for target in targets], names)
        images = Hdf5Images(file, "x", np.arange(n, dtype=np.int64), f"PCAM-{split}", stamp)
        sources[split] = Source(f"{spec} ({split})", numbered_ids(n), labels, images)
    return sources


_LOADERS: dict[str, Callable[[str, Path], tuple[_Loaded, tuple[str, ...]]]] = {
    "CIFAR10": _load_by_train,
    "CIFAR100": _load_by_train,
    "FER2013": _load_fer,
    "FashionMNIST": _load_idx,
    "KMNIST": _load_idx,
    "MNIST": _load_idx,
    "STL10": _load_by_split,
    "SVHN": _load_by_split,
    "USPS": _load_by_train,
}

# Name -> (folder below the data folder, official page)
_PLACES: dict[str, tuple[str, str]] = {
    "CIFAR10": ("cifar-10-batches-py", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    "CIFAR100": ("cifar-100-python", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    "FER2013": (
        "fer2013",
        "https://www.kaggle.com/c/challenges-in-representation-learning-facial-expression-recognition-challenge",
    ),
    "FashionMNIST": ("FashionMNIST/raw", "https://github.com/zalandoresearch/fashion-mnist"),
    "KMNIST": ("KMNIST/raw", "http://codh.rois.ac.jp/kmnist"),
    "MNIST": ("MNIST/raw", "https://yann.lecun.com/exdb/mnist"),
    "PCAM": ("pcam", "https://github.com/basveeling/pcam"),
    "STL10": ("stl10_binary", "https://cs.stanford.edu/~acoates/stl10"),
    "SVHN": (".", "http://ufldl.stanford.edu/housenumbers"),
    "USPS": (".", "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps"),
}
_WITHOUT_FOLDER = {"SVHN": "test_32x32.mat", "USPS": "usps.t.bz2"}


FORMAT = SourceFormat(__doc__, SampleReader(recognises, lambda request: open(request.spec), NoOptions))
