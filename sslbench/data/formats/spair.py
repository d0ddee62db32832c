"""SPair-71k (PairAnnotation/, Layout/, JPEGImages/): pairs of images of one category with corresponding keypoints.

Min et al. 2019. The thresholds of PCK refer to the longer side of the target's box. `Layout/large/` lists the pairs of
each split; without it, all files of PairAnnotation/ are read.
"""

import json
from pathlib import Path

import numpy as np

from sslbench.data.containers.sniff import text_lines
from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.image_pairs import check_points, pairs_source
from sslbench.data.images import Files
from sslbench.data.maps.types import SAME_SIZE, size_difference
from sslbench.data.objects.boxes import size_in_file
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.targets.pairs import PointPair, Points

_SPLITS = {"trn": "train", "val": "val", "test": "test"}


def recognises(spec: str) -> bool:
    """Return whether the location is a folder with PairAnnotation/ and JPEGImages/."""
    return (Path(spec) / "PairAnnotation").is_dir() and (Path(spec) / "JPEGImages").is_dir()


def open(spec: str) -> dict[str, Source]:
    """Return the pairs of each split; their classes are the 18 categories."""
    root, sources = Path(spec), {}
    for folder, split in _SPLITS.items():
        layout, annotations = root / "Layout" / "large" / f"{folder}.txt", root / "PairAnnotation" / folder
        if layout.is_file():
            names = text_lines(layout)
        elif annotations.is_dir():
            names = [file.stem for file in matching(annotations, "*.json")]
        else:
            continue
        sources[split] = _split(f"{spec} ({split})", root, folder, names)
    if not sources:
        raise DataError(f"{spec}/PairAnnotation has neither trn/, val/ nor test/")
    return sources


def _split(name: str, root: Path, folder: str, names: list[str]) -> Source:
    images: dict[str, tuple[int, int]] = {}
    pairs, classes = [], []
    for each in names:
        file = root / "PairAnnotation" / folder / f"{each}.json"
        try:
            content = json.loads(file.read_bytes())
            category = str(content["category"])
            both = [f"{category}/{content[key]}" for key in ("src_imname", "trg_imname")]
            for path, key in zip(both, ("src_imsize", "trg_imsize"), strict=True):
                # Sizes are width, height and channels.
                width, height = (int(side) for side in content[key][:2])
                images.setdefault(path, (height, width))
            left, top, right, bottom = (float(v) for v in content["trg_bndbox"])
            points = [np.array(content[key], dtype=np.float64).reshape(-1, 2) for key in ("src_kps", "trg_kps")]
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise DataError(f"{file} is no annotation of a pair: {error!r}") from error
        if points[0].shape != points[1].shape:
            raise DataError(f"{file}: {len(points[0])} points of the source and {len(points[1])} of the target")
        pairs.append((both, points, max(right - left, bottom - top)))
        classes.append(category)
    paths = sorted(images)
    place = {path: i for i, path in enumerate(paths)}
    found = [PointPair(place[a], place[b], own, other, side) for (a, b), (own, other), side in pairs]
    check_points(name, names, found, [images[path] for path in paths])
    # Points are those of images of the size for which they were annotated.
    resized = []
    for path, size in images.items():
        stored = size_in_file(root / "JPEGImages" / path)
        if all(stored) and (difference := size_difference(size, stored, "the annotation")):
            resized.append(f"{path} ({difference})")
    if resized:
        of = f"{len(resized):,} of {counted(len(images), 'image')}"
        raise DataError(f"{name}: {of} have another size than their annotations: {some(resized, 3)}", SAME_SIZE)
    files = Files(tuple(paths), str(root / "JPEGImages"))
    return pairs_source(name, names, files, found, classes=classes, sized=True)


FORMAT = SourceFormat(__doc__, readers={Points: plain_reader(recognises, open)})
