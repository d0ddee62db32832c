"""NYUv2 with 40 classes: nyu_depth_v2_labeled.mat with classMapping40.mat beside it.

Silberman et al., ECCV 2012, label 894 classes; Gupta et al., CVPR 2013, score 40 groups of them, which the second file
lists. Value 0, nothing labelled, does not count. With splits.mat beside it the official split into 795 and 654 images;
without, images of one scene stay together. Instances are not read.
"""

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.data.decode.picture import check_size
from sslbench.data.depth.nyu import MatImages, opened, scenes_of, split_rows
from sslbench.data.format import LabelMapReader, SourceFormat
from sslbench.data.images import DIGEST_BYTES, digest
from sslbench.data.maps.classes import LabelMapOptions, make_coding, with_ignored
from sslbench.data.maps.types import CodedMaps, Coding, RawMap, source_of_maps
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError

_MAPPING = "classMapping40.mat"


def recognises(spec: str) -> bool:
    """Return whether the location is a MATLAB file."""
    return spec.lower().endswith(".mat") and Path(spec).is_file()


@dataclasses.dataclass(frozen=True)
class MatMaps:
    """Label maps of the file, grouped.

    Attributes:
        file: path.
        rows: positions in the file.
        groups: value of each class of the file, from 0, nothing labelled.
    """

    file: str
    rows: tuple[int, ...]
    groups: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def path(self, index: int) -> str:
        """Return the file and the number of the map in it."""
        return f"{self.file}[labels {self.rows[index]}]"

    def read(self, index: int, max_pixels: int) -> RawMap:
        """Read one map; see `Maps`."""
        stored = opened(self.file)["labels"][self.rows[index]]  # (W, H), as MATLAB stores columns first
        width, height = (int(side) for side in stored.shape)
        check_size(width, height, self.path(index), max_pixels)
        classes = np.asarray(stored).T.astype(np.int64)
        if classes.max() >= len(self.groups):
            found = f"it holds the class {classes.max()}, but {_MAPPING} groups {len(self.groups) - 1}"
            return RawMap(np.zeros(classes.shape, np.int32), broken=(found,))
        return RawMap(np.array(self.groups, dtype=np.int32)[classes])

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: a hash of each map before grouping, and of the groups."""
        groups = repr(self.groups).encode()
        labels = opened(self.file)["labels"]
        found = b"".join(digest(np.asarray(labels[row]).tobytes() + groups) for row in self.rows)
        return np.frombuffer(found, dtype=np.uint8).reshape(-1, DIGEST_BYTES)

    def select(self, indices: npt.NDArray[np.int64]) -> "MatMaps":
        """Return the maps at `indices`, in that order."""
        return dataclasses.replace(self, rows=tuple(self.rows[i] for i in indices.tolist()))


def open_maps(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    """Return the label maps of NYUv2; see `sslbench.data.open.open_label_maps`."""
    if options.names_folders or options.classes:
        raise UsageError(f"{spec}: of a MATLAB file, ?ignore= is the only option")
    path, file = Path(spec), opened(spec)
    groups, coding = _groups(path.parent / _MAPPING)
    coding = with_ignored(spec, coding, options.ignore)
    if "labels" not in file or len(file["labels"]) != len(file["images"]):
        raise DataError(f"{spec} does not hold 'labels' for every image; expected nyu_depth_v2_labeled.mat")
    number = len(file["labels"])
    scenes = scenes_of(file, number)
    sources: dict[str, Source] = {}
    for split, rows in split_rows(path, number).items():
        name, ids = spec if split == "all" else f"{spec} ({split})", tuple(f"{row:04d}" for row in rows)
        maps = CodedMaps(name, ids, MatImages(spec, tuple(rows)), MatMaps(spec, tuple(rows), groups), coding)
        sources[split] = source_of_maps(maps, (), {"scene": tuple(scenes[row] for row in rows)}, "scene")
    return sources


def _groups(path: Path) -> tuple[tuple[int, ...], Coding]:
    """Return the value of each class of the file, and the names of the values."""
    if not path.is_file():
        raise DataError(
            f"{path} is missing, which groups the 894 classes of NYUv2 into 40",
            "Its mapClass has a number from 1 to 40 per class, its className the names. Maps that are grouped already "
            "(PNG) are a folder of images and masks: FOLDER?ignore=0 with classes.txt.",
        )
    from scipy.io import loadmat

    try:
        found = loadmat(path, squeeze_me=True)
        numbers = [int(number) for number in found["mapClass"]]
        names = [str(name) for name in found["className"]]
    except Exception as error:  # scipy raises errors of many kinds
        raise DataError(f"{path} should hold mapClass and className: {error!r:.200}") from error
    if outside := sorted(set(numbers) - set(range(1, len(names) + 1))):
        raise DataError(f"{path}: mapClass has the number {outside[0]}, but className has {len(names)} names")
    coding = make_coding(path, enumerate(names, start=1))
    return (0, *numbers), dataclasses.replace(coding, ignore=(0,))


def _recognises(spec: str, _: LabelMapOptions) -> bool:
    return recognises(spec)


def _has_groups(spec: str) -> bool:
    return recognises(spec) and (Path(spec).parent / _MAPPING).is_file()


FORMAT = SourceFormat(__doc__, maps=LabelMapReader(_recognises, open_maps, maps_only=_has_groups))
