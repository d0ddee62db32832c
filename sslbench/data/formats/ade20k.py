"""ADE20K: the 150 classes of SceneParse (ADEChallengeData2016/), and the full data set with its `_seg.png` files.

SceneParse: a pixel holds 1 to 150, the line of objectInfo150.txt, or 0 for anything else, which does not count; in
annotations_instance/ red is a category and green the number of the instance. Full data set (README of its release): the
class is R / 10 * 256 + G, 0 without one, and B tells instances apart.
"""

import contextlib
import dataclasses
import json
import re
from pathlib import Path

import numpy as np

from sslbench.data.containers.members import split_name
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.format import SourceFormat
from sslbench.data.images import Files, OfFiles
from sslbench.data.maps.classes import LabelMapOptions, coding_beside, make_coding, with_ignored
from sslbench.data.maps.files import MapPixels, ValueMaps, load
from sslbench.data.maps.foreground import layout_readers
from sslbench.data.maps.layout import Pairs, by_key, find_places, in_order, pair, paired, source_of, walk
from sslbench.data.maps.types import Coding, RawMap
from sslbench.data.source import Source
from sslbench.data.wording import repeated
from sslbench.errors import DataError
from sslbench.preprocessing import MAX_PIXELS
from sslbench.targets.label_maps import Grid

_INFO = "objectInfo150.txt"
_SEG = "_seg"
# Maps of the parts of objects lie beside those of the objects.
_PART = re.compile(r".*_parts_\d+")
_FULL = Path("images") / "ADE"


def recognises(spec: str) -> bool:
    """Return whether the location is a folder with objectInfo150.txt, or with images/ADE/."""
    root = Path(spec)
    return (root / _INFO).is_file() or (root / _FULL).is_dir()


def open_maps(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    """Return the label maps of either release; see `sslbench.data.open.open_as`."""
    root = Path(spec)
    if not (root / _INFO).is_file():
        return _full(spec, root / _FULL, options)
    coding = with_ignored(spec, coding_beside(root, options) or class_names(root), options.ignore)
    places = find_places(root)
    if not places:
        raise DataError(f"{spec} has {_INFO}, but not the folders images/ and annotations/")
    sources = {}
    for split, pairs in paired(places).items():
        objects, notes = _instances(root, pairs)
        maps = ValueMaps(pairs.maps, objects=objects, numbers=_object_numbers)
        sources[split] = source_of(spec, split, pairs, maps, coding, notes)
    return sources


def class_names(root: Path) -> Coding:
    """Read the classes of objectInfo150.txt: a table with the columns Idx and Name, the name with its synonyms."""
    path = root / _INFO
    try:
        lines = [line.split("\t") for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    head = [cell.strip().lower() for cell in lines[0]] if lines else []
    if "idx" not in head or "name" not in head:
        raise DataError(f"{path} should be a table with the columns Idx and Name, separated by tabs")
    at, named = head.index("idx"), head.index("name")
    broken = [i for i, cells in enumerate(lines[1:], start=2) if len(cells) <= max(at, named)]
    broken += [i for i, cells in enumerate(lines[1:], start=2) if i not in broken and not cells[at].strip().isdecimal()]
    if broken:
        raise DataError(f"{path}, line {broken[0]}: no number or no name")
    whole = [cells[named].strip() for cells in lines[1:]]
    short = [re.split(r"[;,]", name)[0].strip() for name in whole]
    names = short if len(set(short)) == len(short) else whole
    coding = make_coding(path, zip((int(cells[at]) for cells in lines[1:]), names, strict=True))
    return dataclasses.replace(coding, ignore=() if 0 in coding.values else (0,))


def _instances(root: Path, pairs: Pairs) -> tuple[Files | None, tuple[str, ...]]:
    folder = root / "annotations_instance"
    if not folder.is_dir():
        return None, ()
    of_maps = Path(pairs.maps.root)
    names = [str(path) for path in pairs.maps.paths]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        return None, (
            f"{folder} lacks {len(missing):,} of {len(names):,} maps of {of_maps}, so instances are not read",
        )
    return Files(tuple(names), str(folder)), ()


def _object_numbers(objects: MapPixels) -> Grid:
    # Green; red is the category.
    return objects.colours() >> 8 & 255


@dataclasses.dataclass(frozen=True)
class FullMaps(OfFiles):
    """Maps of the full data set.

    Attributes:
        files: `_seg.png` files, one per image.
    """

    files: Files

    def read(self, index: int, max_pixels: int) -> RawMap:
        """Read one map; see `Maps`."""
        colours = load(self.files, index, max_pixels).colours()
        red, green, blue = colours & 255, colours >> 8 & 255, colours >> 16
        return RawMap((red // 10 * 256 + green).astype(np.int32), blue.astype(np.int32))


def _full(spec: str, root: Path, options: LabelMapOptions) -> dict[str, Source]:
    splits: dict[str, Pairs] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        split = split_name(folder.name)
        if split is None:
            continue
        files = [path for path in walk(folder) if not _PART.fullmatch(Path(path).stem)]
        photos = by_key(folder, [path for path in files if Path(path).suffix.lower() in (".jpg", ".jpeg")])
        photos = {key: path for key, path in photos.items() if not key.endswith(_SEG)}
        maps = by_key(folder, [path for path in files if Path(path).suffix.lower() == ".png"], _SEG)
        splits[split] = pair(photos, maps, folder, folder)
    if not splits:
        raise DataError(f"{root} has neither training/ nor validation/")
    coding, notes = coding_beside(Path(spec), options), list[str]()
    if coding is None:
        coding, notes = _names_in_json(spec, splits)
    coding = dataclasses.replace(coding, ignore=() if 0 in coding.values else (0,))
    coding = with_ignored(spec, coding, options.ignore)
    return {s: source_of(spec, s, p, FullMaps(p.maps), coding, notes) for s, p in in_order(splits).items()}


def _names_in_json(spec: str, splits: dict[str, Pairs]) -> tuple[Coding, list[str]]:
    """Read the classes from the JSON files beside the images (release of 2021); name_ndx is the value in the map."""
    names: dict[int, str] = {}
    files = [Path(p.images.path(i)).with_suffix(".json") for p in splits.values() for i in range(len(p.images))]
    for file in files:
        try:
            content = json.loads(file.read_bytes())
            found = {int(o["name_ndx"]): str(o["name"]) for o in content["annotation"]["object"]}
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise DataError(f"{file} should list annotation.object with name and name_ndx: {error!r}") from error
        names |= {value: name for value, name in found.items() if value > 0 and value not in names}
    if names:
        twice = repeated(names.values())
        pairs = [(value, f"{name} ({value})" if name in twice else name) for value, name in sorted(names.items())]
        return make_coding(spec, pairs), []
    numbers: set[int] = set()
    for maps in (FullMaps(pairs.maps) for pairs in splits.values()):
        for index in range(len(maps)):
            with contextlib.suppress(UnreadableImage):  # the check lists it
                numbers |= set(np.unique(maps.read(index, MAX_PIXELS).values).tolist())
    note = f"{spec}: no JSON files with class names lie beside the images, so classes are named by number"
    return dataclasses.replace(make_coding(spec, [(n, str(n)) for n in sorted(numbers - {0})]), named=False), [note]


FORMAT = SourceFormat(__doc__, readers=layout_readers(recognises, open_maps))
