"""TSS (FG3DCar/, JODS/, PASCAL/ with flow1.flo, flow2.flo): pairs of images with dense flow of their foreground.

Taniai et al. 2016. Each folder of two images is two pairs: image 1 to image 2 by flow1.flo, and the other way. The
thresholds of PCK refer to the longer side of the target image. Of the pixels with flow a regular grid of at most 2,000
is scored, so that a pair takes a moment; the published scores count every pixel.
"""

import math
from pathlib import Path

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data.decode.arrays import array_of
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
_UNKNOWN = 1e9  # larger values stand for pixels without flow


def recognises(spec: str) -> bool:
    """Return whether the location is a folder with SUBSET/PAIR/flow1.flo."""
    return Path(spec).is_dir() and bool(matching(Path(spec), "*/*/flow1.flo"))


def open(spec: str) -> dict[str, Source]:
    """Return the pairs; their classes are the subsets."""
    root = Path(spec)
    folders = [file.parent.relative_to(root) for file in matching(root, "*/*/flow1.flo")]
    paths = [(folder / f"image{k}.png").as_posix() for folder in folders for k in (1, 2)]
    sizes = [size_in_file(root / path) for path in paths]
    if missing := [path for path, size in zip(paths, sizes, strict=True) if size == (0, 0)]:
        raise DataError(f"{spec} lacks images: {', '.join(missing[:5])}")
    pairs, ids, classes = [], [], []
    for number, folder in enumerate(folders):
        for k in (0, 1):
            source, target = 2 * number + k, 2 * number + 1 - k
            file, (height, width) = root / folder / f"flow{k + 1}.flo", sizes[source]
            flow = read_flow(file)
            if flow.shape[:2] != (height, width):
                raise DataError(
                    f"{file} has {flow.shape[1]} x {flow.shape[0]} vectors, its image {width} x {height} pixels"
                )
            known = (np.abs(flow) < _UNKNOWN).all(axis=2)
            step = max(1, math.ceil(math.sqrt(np.count_nonzero(known) / _MOST)))
            on_grid = np.zeros_like(known)
            on_grid[::step, ::step] = True
            y, x = np.nonzero(known & on_grid)
            start = np.column_stack([x, y]).astype(np.float64)
            end = start + flow[y, x]
            inside = ((end >= 0) & (end <= np.array(sizes[target][::-1]) - 1)).all(axis=1)
            points = start[inside], end[inside]
            pairs.append(PointPair(source, target, *points, float(max(sizes[target])), keypoints=False))
            ids.append(f"{folder.as_posix()}/{k + 1}")
            classes.append(folder.parts[0])
    check_points(spec, ids, pairs, sizes)
    note = f"{spec}: at most {_MOST:,} pixels of a regular grid are scored per pair"
    files = Files(tuple(paths), str(root))
    return {"all": pairs_source(spec, ids, files, pairs, classes=classes, notes=(note,), sized=True)}


def read_flow(file: Path) -> FloatArray:
    """Return the vectors (H, W, 2) of a Middlebury .flo file, in pixels."""
    try:
        flow = array_of(file.read_bytes() if file.is_file() else b"", str(file))
    except UnreadableImage as error:
        raise DataError(str(error)) from error
    if flow is None or flow.ndim != 3 or flow.shape[2] != 2:
        raise DataError(f"{file} is no Middlebury .flo file")
    return flow.astype(np.float64)


FORMAT = SourceFormat(__doc__, readers={Points: plain_reader(recognises, open)})
