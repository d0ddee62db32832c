"""Pairs of images with dense flow: TSS (SUBSET/PAIR/flow1.flo), KITTI 2015 and 2012 (flow_noc/ beside image_2/).

TSS (Taniai et al. 2016): a folder of two images is two pairs, image 1 to image 2 by flow1.flo, and the other way; flow
is that of the foreground. KITTI (Menze and Geiger 2015; Geiger et al. 2012): the folder training/, or the one around
it; NAME_10.png to NAME_11.png by flow_noc/NAME_10.png, pixels that both images show.

The thresholds of PCK refer to the longer side of the target image. Of the pixels with flow a regular grid of at most
2,000 is scored, so that a pair takes a moment; the published scores count every pixel.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data.decode.arrays import flow_of
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.image_pairs import check_points, pairs_source
from sslbench.data.images import Files
from sslbench.data.objects.boxes import size_in_file
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.targets.pairs import PointPair, Points

_MOST = 2000
_KITTI_FLOW = "flow_noc"
_KITTI_IMAGES = ("image_2", "colored_0", "image_0")  # of 2015, of 2012 in colour and grey


@dataclasses.dataclass(frozen=True)
class _FlowPair:
    """Pair of images, by their numbers in a list, with the file of its flow."""

    id: str
    subset: str
    source: int
    target: int
    flow: Path


def recognises(spec: str) -> bool:
    """Return whether the location is a folder with SUBSET/PAIR/flow1.flo, or KITTI's with flow_noc/."""
    root = Path(spec)
    return root.is_dir() and (_kitti(root) is not None or bool(matching(root, "*/*/flow1.flo")))


def _kitti(root: Path) -> Path | None:
    tops = (root, root / "training")
    return next((top for top in tops if (top / _KITTI_FLOW).is_dir() and _image_folder(top)), None)


def _image_folder(top: Path) -> str:
    return next((name for name in _KITTI_IMAGES if (top / name).is_dir()), "")


def open(spec: str) -> dict[str, Source]:
    """Return the pairs; their classes are the subsets of TSS, or 'kitti'."""
    root = Path(spec)
    top = _kitti(root)
    paths, listed = _of_kitti(root, top) if top is not None else _of_tss(root)
    sizes = [size_in_file(root / path) for path in paths]
    if missing := [path for path, size in zip(paths, sizes, strict=True) if size == (0, 0)]:
        raise DataError(f"{spec} lacks images: {', '.join(missing[:5])}")
    pairs = []
    for pair in listed:
        points = _points(pair.flow, sizes[pair.source], sizes[pair.target])
        pairs.append(PointPair(pair.source, pair.target, *points, float(max(sizes[pair.target])), keypoints=False))
    ids, subsets = [pair.id for pair in listed], [pair.subset for pair in listed]
    check_points(spec, ids, pairs, sizes)
    note = f"{spec}: at most {_MOST:,} pixels of a regular grid are scored per pair"
    files = Files(tuple(paths), str(root))
    return {"all": pairs_source(spec, ids, files, pairs, classes=subsets, notes=(note,), sized=True)}


def _of_tss(root: Path) -> tuple[list[str], list[_FlowPair]]:
    folders = [file.parent.relative_to(root) for file in matching(root, "*/*/flow1.flo")]
    paths = [(folder / f"image{k}.png").as_posix() for folder in folders for k in (1, 2)]
    return paths, [
        _FlowPair(
            f"{folder.as_posix()}/{k + 1}",
            folder.parts[0],
            2 * number + k,
            2 * number + 1 - k,
            root / folder / f"flow{k + 1}.flo",
        )
        for number, folder in enumerate(folders)
        for k in (0, 1)
    ]


def _of_kitti(root: Path, top: Path) -> tuple[list[str], list[_FlowPair]]:
    images = (top / _image_folder(top)).relative_to(root)
    files = matching(top / _KITTI_FLOW, "*_10.png")
    if not files:
        raise DataError(f"{top / _KITTI_FLOW} holds no NAME_10.png")
    names = [file.name.removesuffix("_10.png") for file in files]
    paths = [(images / f"{name}_{time}.png").as_posix() for name in names for time in (10, 11)]
    rows = enumerate(zip(names, files, strict=True))
    return paths, [_FlowPair(name, "kitti", 2 * i, 2 * i + 1, file) for i, (name, file) in rows]


def _points(file: Path, source: Sequence[int], target: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """Return pixels of the source on a regular grid, and their places in the target, x, y."""
    flow, (height, width) = read_flow(file), source
    if flow.shape[:2] != (height, width):
        raise DataError(f"{file} has {flow.shape[1]} x {flow.shape[0]} vectors, its image {width} x {height} pixels")
    known = np.isfinite(flow).all(axis=2)
    step = max(1, math.ceil(math.sqrt(np.count_nonzero(known) / _MOST)))
    on_grid = np.zeros_like(known)
    on_grid[::step, ::step] = True
    y, x = np.nonzero(known & on_grid)
    start = np.column_stack([x, y]).astype(np.float64)
    end = start + flow[y, x]
    inside = ((end >= 0) & (end <= np.array(target[::-1]) - 1)).all(axis=1)
    return start[inside], end[inside]


def read_flow(file: Path) -> FloatArray:
    """Return the vectors (H, W, 2) of a file of flow, in pixels; NaN where there is none."""
    try:
        return flow_of(file.read_bytes() if file.is_file() else b"", str(file)).astype(np.float64)
    except UnreadableImage as error:
        raise DataError(str(error)) from error


FORMAT = SourceFormat(__doc__, readers={Points: plain_reader(recognises, open)})
