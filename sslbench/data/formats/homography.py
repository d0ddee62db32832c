"""`homography:PLACE`: every image of a place with five copies of it under homographies; `homography:pictures`.

`homography:pictures` are twelve pictures that come with scikit-image and scikit-learn.
"""

import importlib.util
from pathlib import Path

from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.image_pairs import homography_pairs
from sslbench.data.images import Files
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.data.wording import part_name
from sslbench.errors import DataError, UsageError
from sslbench.targets.none import Unlabelled
from sslbench.targets.pairs import Homographies

PREFIX = "homography:"
_PICTURES = {
    "skimage": (
        "data",
        (
            *("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png"),
            *("moon.png", "motorcycle_left.png", "retina.jpg", "rocket.jpg"),
        ),
    ),
    "sklearn": ("datasets/images", ("china.jpg", "flower.jpg")),
}


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'homography:'."""
    return spec.startswith(PREFIX)


def open(spec: str) -> dict[str, Source]:
    """Return the pairs of each split of the images."""
    place = spec.removeprefix(PREFIX)
    if not place:
        raise UsageError(f"'{spec}' names no images", "Write homography:photos/, or homography:pictures.")
    found = {"all": _pictures()} if place == "pictures" else open_data(place)
    return {split: homography_pairs(source, part_name(spec, split)) for split, source in found.items()}


def _pictures() -> Source:
    files: dict[str, Path] = {}
    for package, (folder, names) in _PICTURES.items():
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise UsageError(f"homography:pictures needs {package}, which is not installed", f"pip install {package}")
        root = Path(found.submodule_search_locations[0]) / folder
        files |= {name: root / name for name in names}
    if missing := [str(file) for file in files.values() if not file.is_file()]:
        raise DataError(f"homography:pictures: {missing[0]} is missing")
    ids = tuple(sorted(files))
    return Source("homography:pictures", ids, Unlabelled(len(ids)), Files(tuple(files[name] for name in ids)))


FORMAT = SourceFormat(__doc__, readers={Homographies: plain_reader(recognises, open)})
