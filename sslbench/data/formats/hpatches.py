"""HPatches sequences (v_NAME/, i_NAME/ with 1.ppm to 6.ppm and H_1_2 to H_1_6): pairs of images under a homography.

Balntas et al. 2017. Sequences v_ change the viewpoint, i_ the illumination.
"""

import re
from pathlib import Path

import numpy as np

from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.image_pairs import pairs_source
from sslbench.data.images import Files
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.targets.pairs import Homographies, HomographyPair

_FILE = re.compile(r"H_1_(\d+)")


def recognises(spec: str) -> bool:
    """Return whether the location is a folder with SEQUENCE/H_1_2."""
    return Path(spec).is_dir() and bool(matching(Path(spec), "*/H_1_2"))


def open(spec: str) -> dict[str, Source]:
    """Return the pairs of the first image of each sequence with the others."""
    root = Path(spec)
    files = [file for file in matching(root, "*/H_1_*") if _FILE.fullmatch(file.name)]
    paths: list[str] = []
    place: dict[str, int] = {}
    pairs, ids = [], []
    for file in files:
        folder, number = file.parent, file.name.rpartition("_")[2]
        rows = []
        for name in ("1", number):
            found = next((p for p in matching(folder, f"{name}.*") if p.suffix in (".ppm", ".png", ".jpg")), None)
            if found is None:
                raise DataError(f"{folder} has {file.name}, but no image {name}.ppm")
            path = found.relative_to(root).as_posix()
            if path not in place:
                place[path] = len(paths)
                paths.append(path)
            rows.append(place[path])
        try:
            matrix = np.array([float(word) for word in file.read_text(encoding="utf-8").split()]).reshape(3, 3)
        except ValueError as error:
            raise DataError(f"{file} should hold nine numbers: {error}") from error
        if not np.isfinite(matrix).all() or abs(np.linalg.det(matrix)) < 1e-12:
            raise DataError(f"{file} is no homography: its matrix has no inverse")
        pairs.append(HomographyPair(rows[0], rows[1], matrix))
        ids.append(f"{folder.name}/1-{number}")
    note = f"{spec}: homographies say no size of images; they are scored at that of the files, so none may be resized"
    return {"all": pairs_source(spec, ids, Files(tuple(paths), str(root)), pairs, notes=(note,) if pairs else ())}


FORMAT = SourceFormat(__doc__, readers={Homographies: plain_reader(recognises, open)})
