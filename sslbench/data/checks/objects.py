"""Checks of images with boxes."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from sslbench.arrays import IntArray
from sslbench.data.checks.duplicates import Finding, by_level
from sslbench.data.checks.samples import check
from sslbench.data.decode.handlers import make_decoder
from sslbench.data.decode.picture import UnreadableImage, Wanted
from sslbench.data.images import Files
from sslbench.data.loading import loader
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.boxes import reports_changed_boxes, size_in_file
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.data.workers import Computed, run
from sslbench.errors import DataError, UsageError
from sslbench.targets.multilabel import MultiLabel

Problem = tuple[int, str]
"""(position of the image, sentence that names it)"""

_CHUNK = 16


def picture_of(source: ObjectSource, index: int) -> Tensor:
    """Decode one upright picture, uint8 (3, height, width), by the source's `reading`."""
    reading = source.reading
    decoder = make_decoder(reading.decoder, Wanted(max_pixels=reading.max_pixels), source.images)
    return loader.read(source.images, index, decoder).image


def unusable(
    source: ObjectSource, rows: IntArray, *, workers: int = 0, progress: Callable[[int], None] | None = None
) -> list[Problem]:
    """Decode images and return those that cannot be read, or have another size than their boxes are for.

    `rows`: (n,), positions of the images; `progress`: called with the number of images that are done.
    """
    chunks = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
    found: list[Problem] = []
    done = 0
    dataset = Computed(functools.partial(_problems, source), chunks)
    items = run(dataset, workers, start_method=source.reading.start_method)
    for chunk, bad in zip(chunks, items, strict=True):
        found += bad
        done += len(chunk)
        if progress is not None:
            progress(done)
    return found


def of_other_size(source: ObjectSource, rows: IntArray) -> list[Problem]:
    """Return the images whose file says in its head that it has another size than their boxes are for.

    Much faster than decoding. Images that are no files, or are read by a decoder of the user's, are skipped.
    """
    if not isinstance(source.images, Files) or source.reading.decoder:
        return []
    found = []
    for index in rows.tolist():
        size = size_in_file(Path(source.images.path(index)))
        try:
            if all(size):
                source.check_size(index, *size)
        except DataError as error:
            found.append((index, str(error).splitlines()[0]))
    return found


def _problems(source: ObjectSource, chunk: IntArray) -> list[Problem]:
    problems = []
    for index in chunk.tolist():
        try:
            source.check_size(index, *picture_of(source, index).shape[1:])
        except UnreadableImage as error:
            problems.append((index, str(error)))
        except DataError as error:
            problems.append((index, str(error).splitlines()[0]))
    return problems


_SHOWN = 20
# Usual largest longer side of images in training, in pixels.
_USUAL = 1333
TINY = 2.0
"""Side in pixels below which a box is hardly detectable."""


def check_objects(train: ObjectSource, test: ObjectSource, *, copies: bool = True) -> list[Finding]:
    """Return all findings about two parts of images with boxes, errors first.

    Notes about boxes outside of their image, without area or clipped become warnings, since they change a score.
    """
    images = check(as_source(train), as_source(test), copies=copies)
    findings = [Finding("warning" if reports_changed_boxes(f.message) else f.level, f.message) for f in images]
    for part, is_train in ((train, True), (test, False)):
        findings += [*_odd_objects(part), *_texts(part), *listed(part.name, _masks_of_other_sizes(part))]
        findings += _keypoints(part, train=is_train)
    skeletons = [part.target.skeleton for part in (train, test)]
    if len({skeleton.names for skeleton in skeletons if skeleton is not None}) > 1:
        findings.append(Finding("error", f"{train.name} and {test.name} have different keypoints"))
    return by_level(findings)


def as_source(part: ObjectSource) -> Source:
    """Return the images with the classes of their objects as multi-label labels."""
    values = np.zeros((len(part), len(part.target.classes)), dtype=np.int8)
    for row, objects in zip(values, part.target.objects, strict=True):
        row[objects.classes] = 1
    labels = MultiLabel(part.target.classes, values)
    return Source(part.name, part.ids, labels, part.images, part.notes, part.attributes, part.grouped_by)


def _odd_objects(part: ObjectSource) -> list[Finding]:
    findings = []
    empty = [i for i, objects in enumerate(part.target.objects) if not len(objects)]
    if empty:
        names = some([part.images.path(i) for i in empty[:3]], total=len(empty))
        findings.append(Finding("note", f"{part.name}: {counted(len(empty), 'image')} without an object: {names}"))
    lines = part.target.narrow(_USUAL)
    if len(lines):
        height, width = part.target.sizes[lines[0]].tolist()
        findings.append(
            Finding(
                "error",
                f"{part.name}: {counted(len(lines), 'image')} too narrow for the usual recipes, first "
                f"{part.images.path(int(lines[0]))}, {width} x {height} pixels: nothing is left when the longer side "
                f"is reduced to {_USUAL:,}",
            )
        )
    twice, tiny = 0, 0
    first = ""
    for i, objects in enumerate(part.target.objects):
        rows = np.column_stack([objects.boxes, objects.classes])
        again = len(rows) - len(np.unique(rows, axis=0)) if len(rows) else 0
        first = first or (part.images.path(i) if again else "")
        twice += again
        tiny += int(((objects.boxes[:, 2:] - objects.boxes[:, :2]) < TINY).any(axis=1).sum())
    if twice:
        message = f"{part.name}: {counted(twice, 'box')} of the same class at the same place twice, first in {first}"
        findings.append(Finding("warning", message))
    if tiny:
        findings.append(Finding("note", f"{part.name}: {counted(tiny, 'box')} less than {TINY:g} pixels wide or high"))
    return findings


def _texts(part: ObjectSource) -> list[Finding]:
    """Return the number of regions with texts, and of those whose text another region has, too."""
    texts = [own for one in part.target.objects for own in one.texts or ((),) * len(one)]
    every = [text for own in texts for text in own]
    if not every:
        return []
    having = sum(1 for own in texts if own)
    alike = len(every) - len(set(every))
    same = f"; {alike:,} are equal to another one" if alike else ""
    message = f"{part.name}: {having:,} of {counted(len(texts), 'object')} have texts, {len(every):,} in all{same}"
    return [Finding("note", message)]


def _masks_of_other_sizes(part: ObjectSource) -> list[Problem]:
    """Return the images with masks as run lengths of another size, which training and scoring of masks refuse."""
    problems = []
    for i, (objects, (height, width)) in enumerate(zip(part.target.objects, part.target.sizes.tolist(), strict=True)):
        coded = [mask["size"] for mask in objects.masks or () if isinstance(mask, dict) and "counts" in mask]
        if height and (other := next((size for size in coded if list(size) != [height, width]), None)):
            where = f"{part.name}: {part.images.path(i)}"
            problems.append((i, f"{where} is {width} x {height} pixels, and a mask of it {other[1]} x {other[0]}"))
    return problems


def _keypoints(part: ObjectSource, *, train: bool) -> list[Finding]:
    """Return the number of labelled keypoints of each kind, and what training or scoring them needs besides."""
    skeleton = part.target.skeleton
    if skeleton is None:
        return []
    counts = part.target.labelled_keypoints
    if not counts.any():
        return [Finding("warning", f"{part.name}: no object has a labelled keypoint of {some(skeleton.names, 5)}")]
    listed = some([f"{name} {n:,}" for name, n in zip(skeleton.names, counts.tolist(), strict=True)], 20)
    found = [Finding("note", f"{part.name}: objects with each keypoint labelled: {listed}")]
    try:
        _ = skeleton.mirrored() if train else skeleton.with_sigmas()
    except UsageError as error:
        found.append(Finding("note", f"{part.name}: for keypoints=true, {error.message}. {error.remedy}"))
    return found


def unusable_objects(part: ObjectSource, decoded: IntArray, workers: int) -> list[Problem]:
    """Return the images that an evaluation would refuse.

    `decoded`: (n,), positions of the images to decode; of the others only the size in the file is compared.
    """
    others = np.setdiff1d(np.arange(len(part)), decoded)
    return sorted([*unusable(part, decoded, workers=workers), *of_other_size(part, others)])


def listed(name: str, problems: Sequence[Problem]) -> list[Finding]:
    """Return an error for each of the first unusable images, and one that counts the others."""
    found = [Finding("error", line) for _, line in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        found.append(Finding("error", f"{name}: {len(problems) - _SHOWN:,} more images cannot be used"))
    return found
