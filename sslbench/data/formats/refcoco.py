"""RefCOCO, RefCOCO+, RefCOCOg and RefCLEF: a folder with instances.json and refs(unc).p or refs(unc).json.

A reference names an object (`ann_id`) in sentences (`sent`); it belongs to train, val, test or testA, testB, testC (Yu
et al., ECCV 2016; the layout of github.com/lichengunc/refer). The pickle is read without running it. `?by=google` takes
one of several files of references, `?part=testA` the part that is tested. Images lie in `images/` or `train2014/` of
the folder or the one around it, or in refer's `images/mscoco/images/train2014/` and `images/saiapr_tc-12/`.
"""

import dataclasses
import re
import reprlib
from pathlib import Path

import numpy as np

from sslbench.config import setting
from sslbench.data.containers.listed import finds_all, images_folder
from sslbench.data.containers.members import split_name, split_rank
from sslbench.data.containers.sniff import json_of, unpickling
from sslbench.data.formats import coco
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.crops import CropOptions
from sslbench.data.objects.regions import RegionTexts, region_format
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.objects import Objects
from sslbench.targets.texts import as_texts

_REFS = re.compile(r"refs\((.+)\)\.(json|p)")
_INSTANCES = "instances.json"
_HEAD = 1 << 20  # characters in which the first image stands
_IMAGES = (
    *("images", "train2014", "../images", "../train2014", "../images/train2014"),
    *("../images/mscoco/images/train2014", "../images/saiapr_tc-12", "../saiapr_tc-12"),
)


@dataclasses.dataclass(frozen=True)
class ReferenceBoxes:
    """Options of boxes: refcoco/?by=google."""

    images: str = setting("", "folder of the images")
    by: str = setting("", "who made the parts, where there are several files: unc, google, umd")
    part: str = setting("", "part that is tested: testA, testB")


@dataclasses.dataclass(frozen=True)
class ReferenceOptions(ReferenceBoxes, CropOptions):
    """Options of crops: refcoco/?unit=annotation&part=testA."""


@dataclasses.dataclass(frozen=True)
class ReferenceTexts(ReferenceBoxes, RegionTexts):
    """Options of texts: refcoco/?part=testB."""


Named = dict[str, dict[int, list[str]]]
"""Part -> annotation -> its sentences."""


def recognises(spec: str) -> bool:
    """Return whether the string is a folder with instances.json and a file of references."""
    root = Path(spec)
    return (root / _INSTANCES).is_file() and bool(_files(root))


def _files(root: Path) -> dict[str, Path]:
    """Return 'unc' -> refs(unc).json, else refs(unc).p."""
    found = {name: match for path in root.iterdir() if (match := _REFS.fullmatch(name := path.name))}
    return {found[name][1]: root / name for name in sorted(found, reverse=True)}


def open_objects(spec: str, options: ReferenceBoxes) -> dict[str, ObjectSource]:
    """Return the images of each part with the objects that its references name."""
    root = Path(spec)
    files = _files(root)
    if options.by not in (*files, "") or (not options.by and len(files) > 1):
        problem = f"{spec} has references by {some(sorted(files))}"
        raise UsageError(problem, did_you_mean(options.by, files) if options.by else f"Add ?by={min(files)}.")
    file = files[options.by or next(iter(files))]
    named = _references(file)
    every = coco.open_objects(str(root / _INSTANCES), images_folder(spec, options.images) or _beside(root))["all"]
    sources = {part: _of_part(f"{spec} ({part})", every, named[part]) for part in sorted(named, key=split_rank)}
    if not options.part:
        return sources
    if options.part in ("train", "val"):
        problem = f"{spec}?part={options.part}: the part that is tested would be {options.part}, too"
        raise UsageError(problem, "Leave it out, or give a part for tests: testA, testB.")
    if options.part not in sources:
        raise UsageError(
            f"{spec}?part={options.part}: {file.name} has no such part", did_you_mean(options.part, sources)
        )
    # The other parts called test would be chosen in its place.
    kept = {part: source for part, source in sources.items() if part in ("train", "val")}
    return kept | {"test": sources[options.part]}


def _beside(root: Path) -> Path | None:
    """Return the folder with the images, None if none of the usual ones has them."""
    with (root / _INSTANCES).open(encoding="utf-8", errors="replace") as file:
        head = re.search(r'"file_name"\s*:\s*"([^"]+)"', file.read(_HEAD))
    folders = [root / name for name in _IMAGES if (root / name).is_dir()]
    return next((folder for folder in folders if head and finds_all([head[1]], [folder])), None)


def _references(file: Path) -> Named:
    """Return the sentences of each object in each part."""
    if file.suffix == ".json":
        rows = json_of(file)
    else:
        remedy = f"Where it opens, write it as {file.with_suffix('.json').name}: json.dump(refs, FILE)."
        with unpickling(file, "not a list written by pickle", remedy) as load, file.open("rb") as content:
            rows = load(content)
    found: Named = {}
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{file} is not a list of references")
    for i, row in enumerate(rows):
        try:
            (part,), number = as_texts([row["split"]]), row["ann_id"]
            texts = as_texts(_python2(one["sent"]) for one in row["sentences"])
        except (KeyError, TypeError, ValueError) as error:
            problem = f"{file}, reference {i}: {error} is missing or of another kind"
            # Not `repr`: lists of a pickle may share lists, whose text would never end.
            raise DataError(f"{problem}: {reprlib.repr(row)}") from error
        if type(number) is not int:
            raise DataError(f"{file}, reference {i}: ann_id is {reprlib.repr(number)}, not a whole number")
        found.setdefault(split_name(part) or part, {}).setdefault(number, []).extend(texts)
    return found


def _python2(text: object) -> object:
    """Return a text of Python 2, which is read as Latin-1, as the UTF-8 that it holds."""
    try:
        return text.encode("latin1").decode() if isinstance(text, str) else text
    except UnicodeError:
        return text


def _of_part(name: str, every: ObjectSource, named: dict[int, list[str]]) -> ObjectSource:
    """Return the images with an object that is named, and of their objects these."""
    rows, kept, found = [], list[Objects](), set[int]()
    for row, objects in enumerate(every.target.objects):
        numbers = [] if objects.numbers is None else objects.numbers.tolist()
        own = [k for k, number in enumerate(numbers) if number in named]
        if own:
            rows.append(row)
            found.update(numbers[k] for k in own)
            texts = tuple(tuple(named[numbers[k]]) for k in own)
            kept.append(dataclasses.replace(objects.select(own), texts=texts if any(texts) else None))
    if not rows:
        raise DataError(f"{name}: {_INSTANCES} has none of the {counted(len(named), 'object')} that references name")
    lost = sorted(named.keys() - found)
    about = (f"{name}: {counted(len(lost), 'object')} not in {_INSTANCES} left out: {some(lost)}",) if lost else ()
    chosen = every.select(np.array(rows, dtype=np.int64), name)
    target = chosen.target.changed(objects=tuple(kept))
    return dataclasses.replace(chosen, target=target, notes=(*chosen.notes, *about))


FORMAT = region_format(__doc__, recognises, open_objects, ReferenceOptions, ReferenceBoxes, ReferenceTexts)
