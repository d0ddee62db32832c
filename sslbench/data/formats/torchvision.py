"""`torchvision:NAME` or `torchvision:NAME@FOLDER`: a data set of torchvision (CIFAR10, ...) from files on disk.

The files are read where torchvision's own classes put and expect them; nothing is downloaded. Where a data set has a
validation part beside a test part, train is both together: protocols choose on a held-out part of train themselves, and
linear probes are usually trained on both (Kornblith et al. 2019, Radford et al. 2021).
"""

import csv
import dataclasses
import gzip
import json
import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.arrays import ByteArray
from sslbench.data.containers.hdf5 import Hdf5Images, open_hdf5
from sslbench.data.containers.listed import check_some
from sslbench.data.containers.members import is_image, numbered_ids
from sslbench.data.containers.sniff import text_lines
from sslbench.data.format import NoOptions, SampleReader, SourceFormat
from sslbench.data.hashes import stamp_of
from sslbench.data.images import Arrays, Files
from sslbench.data.labels import single_labels
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean

Listed = list[tuple[str, str]]
"""(file relative to the data set's folder, class name) of each image."""
ReadSet = Callable[[Path], Mapping[str, Listed]]
"""Function from the folder of a data set to the images of each split."""

_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"


@dataclasses.dataclass(frozen=True)
class FileSet:
    """Data set of image files.

    Attributes:
        folder: its folder below the data folder.
        page: web page of its authors.
        read: from the folder to the images of each split.
        arguments: None if torchvision's class cannot download it.
        note: remark on the splits.
    """

    folder: str
    page: str
    read: ReadSet
    arguments: str | None = ""
    note: str = ""


def open_files(spec: str, name: str, root: Path) -> dict[str, Source]:
    """Return the splits of a data set of `FILE_SETS`."""
    kind = FILE_SETS[name]
    base = root / kind.folder
    try:
        listed = kind.read(base)
    except OSError as error:
        raise DataError(
            f"the files of {name} are not (or not all) in {base.absolute()}: {error.filename or error} is missing",
            _how_to_get(name, root, kind),
        ) from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"{base.absolute()}: a list of {name} is damaged: {type(error).__name__} {error}") from error
    classes = tuple(sorted({label for rows in listed.values() for _, label in rows}))
    notes = (f"{spec}: {kind.note}",) if kind.note else ()
    sources = {}
    for split, rows in listed.items():
        files, labels = zip(*sorted(rows), strict=True) if rows else ((), ())
        if not rows:
            raise DataError(f"{base.absolute()} has no image of {name} ({split})", _how_to_get(name, root, kind))
        check_some(spec, files, base, _how_to_get(name, root, kind))
        sources[split] = Source(
            f"{spec} ({split})", files, single_labels(labels, classes), Files(files, str(base)), notes
        )
    return sources


def _how_to_get(name: str, root: Path, kind: FileSet) -> str:
    class_name = name.partition("[")[0]
    text = f"{class_name} is offered at {kind.page}"
    if kind.arguments is not None:
        text += f"; to download it: sslbench data download torchvision:{name} --out {root}"
    return f"{text}. If it lies elsewhere: torchvision:{name}@FOLDER (with {kind.folder}/ in it), or set SSLBENCH_DATA."


def _class_folders(base: Path, folder: str) -> Listed:
    """List the images in the class folders of a folder."""
    found = []
    for entry in sorted((base / folder).iterdir()):
        if entry.is_dir():
            prefix = f"{folder}/" if folder else ""
            found += [(f"{prefix}{entry.name}/{f.name}", entry.name) for f in entry.iterdir() if is_image(f.name)]
    return found


def _matlab(file: Path) -> dict[str, Any]:
    import scipy.io

    with file.open("rb") as opened:
        content: dict[str, Any] = scipy.io.loadmat(opened, squeeze_me=True)
    return content


def _food101(base: Path) -> dict[str, Listed]:
    files = {split: base / "meta" / f"{split}.json" for split in ("train", "test")}
    lists = {split: json.loads(file.read_text(encoding="utf-8")) for split, file in files.items()}
    return {
        split: [(f"images/{image}.jpg", name) for name, images in by_class.items() for image in images]
        for split, by_class in lists.items()
    }


def _lists(train: Sequence[str], test: str, image: Callable[[str], tuple[str, str]]) -> ReadSet:
    """Return a reader of the lists of train and test; `image`: from a line to an image and its class."""
    files = {"train": train, "test": [test]}
    return lambda base: {
        split: [image(line) for name in names for line in text_lines(base / name)] for split, names in files.items()
    }


def _flowers(base: Path) -> dict[str, Listed]:
    ids, labels = _matlab(base / "setid.mat"), _matlab(base / "imagelabels.mat")["labels"]

    def part(key: str) -> Listed:
        # Images are counted from 1.
        return [(f"jpg/image_{i:05d}.jpg", f"{labels[i - 1]:03d}") for i in ids[key].tolist()]

    return {"train": part("trnid") + part("valid"), "test": part("tstid")}


def _cars(base: Path) -> dict[str, Listed]:
    names = _matlab(base / "devkit" / "cars_meta.mat")["class_names"].tolist()

    def part(file: Path, folder: str) -> Listed:
        # squeeze_me makes a scalar of a single row.
        rows = np.atleast_1d(_matlab(file)["annotations"])
        return [(f"{folder}/{row['fname']}", names[int(row["class"]) - 1]) for row in rows]

    train = part(base / "devkit" / "cars_train_annos.mat", "cars_train")
    return {"train": train, "test": part(base / "cars_test_annos_withlabels.mat", "cars_test")}


def _gtsrb(base: Path) -> dict[str, Listed]:
    with (base / "GT-final_test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter=";"))
    test = [(f"GTSRB/Final_Test/Images/{row['Filename']}", f"{int(row['ClassId']):05d}") for row in rows]
    return {"train": _class_folders(base, "GTSRB/Training"), "test": test}


def _country211(base: Path) -> dict[str, Listed]:
    return {
        "train": _class_folders(base, "train") + _class_folders(base, "valid"),
        "test": _class_folders(base, "test"),
    }


def _caltech101(base: Path) -> dict[str, Listed]:
    """Draw thirty training images of each class by a fixed seed: there is no official split."""
    by_class: dict[str, list[str]] = {}
    for file, name in sorted(_class_folders(base, "")):
        # Clutter, and none of the 101 classes.
        if name != "BACKGROUND_Google":
            by_class.setdefault(name, []).append(file)
    generator = np.random.default_rng(0)
    parts: dict[str, Listed] = {"train": [], "test": []}
    for name, files in by_class.items():
        for position, i in enumerate(generator.permutation(len(files))):
            parts["train" if position < 30 else "test"].append((files[i], name))
    return parts


def _clevr(base: Path, label: Callable[[list[dict[str, Any]]], str]) -> dict[str, Listed]:
    """Return the splits with public scenes; the label is a function of the scene's objects."""
    listed = {}
    for split in ("train", "val"):
        scenes = json.loads((base / "scenes" / f"CLEVR_{split}_scenes.json").read_text(encoding="utf-8"))["scenes"]
        listed[split] = [(f"images/{split}/{scene['image_filename']}", label(scene["objects"])) for scene in scenes]
    return listed


def _clevr_distance(base: Path) -> dict[str, Listed]:
    """Return the bin of the depth of the closest object (VTAB, Zhai et al. 2019, appendix; edges as VISSL has them)."""
    edges = (8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
    names = [f"{i} below {edge:g}" for i, edge in enumerate(edges)]
    return _clevr(base, lambda objects: names[bisect_left(edges, min(o["pixel_coords"][2] for o in objects))])


def _kitti_distance(base: Path) -> dict[str, Listed]:
    """Return the bin of the distance of the closest car, van or truck (column 14 of the labels), or none (VTAB)."""
    names = ("none", "below 8 m", "below 20 m", "from 20 m")
    rows = []
    for file in sorted((base / "label_2").iterdir()):
        objects = [line.split() for line in text_lines(file)]
        distances = [float(o[13]) for o in objects if o[0] in ("Car", "Van", "Truck")]
        # Without an object -1, which falls into the first bin.
        place = bisect_left((0.0, 8.0, 20.0), min(distances, default=-1.0))
        rows.append((f"image_2/{file.stem}.png", names[place]))
    return {"all": rows}


_VAL_TOO = "train is train and val together"
_NO_SPLIT = "there is no official split"

FILE_SETS: dict[str, FileSet] = {
    "CLEVRClassification": FileSet(
        "clevr/CLEVR_v1.0",
        "https://cs.stanford.edu/people/jcjohns/clevr",
        lambda base: _clevr(base, lambda objects: f"{len(objects):02d} objects"),
    ),
    "CLEVRClassification[distance]": FileSet(
        "clevr/CLEVR_v1.0", "https://cs.stanford.edu/people/jcjohns/clevr", _clevr_distance
    ),
    "Caltech101": FileSet(
        "caltech101/101_ObjectCategories",
        "https://data.caltech.edu/records/mzrjq-6wc02",
        _caltech101,
        note=f"{_NO_SPLIT}: 30 images of each class, drawn by seed 0, are train, the rest test",
    ),
    "Country211": FileSet(
        "country211", "https://github.com/openai/CLIP/blob/main/data/country211.md", _country211, note=_VAL_TOO
    ),
    "DTD": FileSet(
        "dtd/dtd",
        f"{_OXFORD}/dtd",
        _lists(
            ("labels/train1.txt", "labels/val1.txt"),
            "labels/test1.txt",
            lambda line: (f"images/{line}", line.partition("/")[0]),
        ),
        note=f"{_VAL_TOO} (partition 1 of 10)",
    ),
    "EuroSAT": FileSet(
        "eurosat/2750",
        "https://github.com/phelber/EuroSAT",
        lambda base: {"all": _class_folders(base, "")},
        note=_NO_SPLIT,
    ),
    "FGVCAircraft": FileSet(
        "fgvc-aircraft-2013b",
        f"{_OXFORD}/fgvc-aircraft",
        _lists(
            ["data/images_variant_trainval.txt"],
            "data/images_variant_test.txt",
            lambda line: (f"data/images/{line.split(' ', 1)[0]}.jpg", line.split(" ", 1)[1]),
        ),
        note=_VAL_TOO,
    ),
    "Flowers102": FileSet("flowers-102", f"{_OXFORD}/flowers/102", _flowers, note=_VAL_TOO),
    "Food101": FileSet("food-101", "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101", _food101),
    "GTSRB": FileSet("gtsrb", "https://benchmark.ini.rub.de/gtsrb_dataset.html", _gtsrb, "split='train'"),
    "Imagenette": FileSet(
        "imagenette2",
        "https://github.com/fastai/imagenette",
        lambda base: {split: _class_folders(base, split) for split in ("train", "val")},
    ),
    "Kitti[distance]": FileSet(
        "Kitti/raw/training", "https://www.cvlibs.net/datasets/kitti/eval_object.php", _kitti_distance, note=_NO_SPLIT
    ),
    "OxfordIIITPet": FileSet(
        "oxford-iiit-pet",
        f"{_OXFORD}/pets",
        _lists(
            ["annotations/trainval.txt"],
            "annotations/test.txt",
            lambda line: (f"images/{line.split()[0]}.jpg", line.split()[0].rsplit("_", 1)[0]),
        ),
    ),
    "RenderedSST2": FileSet(
        "rendered-sst2", "https://github.com/openai/CLIP/blob/main/data/rendered-sst2.md", _country211, note=_VAL_TOO
    ),
    "SUN397": FileSet(
        "SUN397",
        "https://vision.princeton.edu/projects/2010/SUN (Partitions.zip, unpacked to SUN397/Partitions/, too)",
        _lists(
            ["Partitions/Training_01.txt"],
            "Partitions/Testing_01.txt",
            lambda line: (line.lstrip("/"), line.lstrip("/").split("/", 1)[1].rsplit("/", 1)[0]),
        ),
        arguments=None,  # of the two archives its class fetches one
        note="the first of the ten official partitions",
    ),
    "StanfordCars": FileSet(
        "stanford_cars", "https://ai.stanford.edu/~jkrause/cars/car_dataset.html", _cars, arguments=None
    ),
}


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
