"""Complete check of a data location: both parts, findings, and counts per class."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sslbench.data.checks.duplicates import Finding, Pair, Suspect, by_level, named, suspects
from sslbench.data.checks.objects import as_source, check_objects, listed, unusable_objects
from sslbench.data.checks.samples import check
from sslbench.data.checks.sheets import Boxes
from sslbench.data.decode.handlers import Reading
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.loading import loader
from sslbench.data.maps.types import size_and_turn, unknown_orientation
from sslbench.data.maps.values import Quantity, implausible_unit
from sslbench.data.objects import ObjectSource
from sslbench.data.source import Source
from sslbench.data.splits import Parts, TrainTest
from sslbench.data.splits.objects import split_objects
from sslbench.data.wording import counted, some
from sslbench.errors import SslbenchError
from sslbench.targets.pixel_values import ReadValues
from sslbench.targets.target import OfClasses

_RGB = 3


@dataclasses.dataclass(frozen=True)
class OpenedParts:
    """Opened parts of a data location.

    Attributes:
        spec: data location, as the user gave it.
        data: train and test; the classes of an image's boxes are its labels.
        objects: the parts with boxes; None for plain labels.
    """

    spec: str
    data: TrainTest
    objects: Parts[ObjectSource] | None = None


@dataclasses.dataclass(frozen=True)
class CheckedParts:
    """Result of a check.

    Attributes:
        opened: the checked parts.
        findings: errors first.
        counts: 'train' and 'test' -> class -> images (with boxes: objects).
        tried: number of images that were given to the decoder.
        decoded: number of them without a problem.
        unreadable: path and reason of unreadable images.
        copies: duplicates were looked for.
        reading: the decoder and its limit.
        near: rows of near duplicates in test and train.
    """

    opened: OpenedParts
    findings: tuple[Finding, ...]
    counts: dict[str, dict[str, int]]
    tried: int
    decoded: int
    unreadable: tuple[tuple[str, str], ...]
    copies: bool
    reading: Reading
    near: tuple[Pair, ...] = ()

    @property
    def parts(self) -> dict[str, Source]:
        """Sources of 'train' and 'test'."""
        return {"train": self.opened.data.train, "test": self.opened.data.test}

    def boxes(self, part: str) -> Boxes | None:
        """Return the boxes of each image of a part; None for plain labels."""
        objects = self.opened.objects
        if objects is None:
            return None
        return [image.boxes for image in (objects.train if part == "train" else objects.test).target.objects]

    def texts(self, part: str) -> list[str] | None:
        """Return the texts of the regions of each image of a part, joined; None without any."""
        objects = self.opened.objects
        target = None if objects is None else (objects.train if part == "train" else objects.test).target
        if target is None or not target.has_texts:
            return None
        return [" | ".join(text for own in image.texts or () for text in own) for image in target.objects]

    def with_near(self, more: Sequence[Finding], near: Iterable[Pair]) -> "CheckedParts":
        """Return the result with the findings about near duplicates added."""
        findings = tuple(by_level([*self.findings, *more]))
        return dataclasses.replace(self, findings=findings, near=(*self.near, *near))

    def overlaps(self) -> list[Suspect]:
        """Return the test images suspected to be in train too."""
        train, test = self.opened.data.train, self.opened.data.test
        return suspects(train, test, named(self.near, test.ids, train.ids), exact=self.copies)


def open_with_boxes(data: str, test_data: str | None, *, seed: int, test_fraction: float) -> OpenedParts:
    """Open both parts with their boxes, with `open_objects.split_objects`."""
    objects = split_objects(data, test_data, seed=seed, test_fraction=test_fraction)
    train, test = as_source(objects.train), as_source(objects.test)
    return OpenedParts(data, TrainTest(train, test, objects.how, seeded=objects.seeded), objects)


def check_parts(
    opened: OpenedParts, *, copies: bool, decode: int | None, workers: int, reading: Reading
) -> CheckedParts:
    """Check labels, splits and boxes, and decode images.

    `copies`: look for duplicates, for which files not hashed yet are read; `decode`: number of evenly spaced images to
    decode per part, None: all. The sizes of all images with boxes are compared with those in the heads of their files.
    """
    both, objects = opened.data, opened.objects
    if objects is not None:
        findings = check_objects(objects.train, objects.test, copies=copies)
        turned = (unknown_orientation(p.name, p.images, sized=p.target.sized) for p in (objects.train, objects.test))
        findings += [Finding("warning", note) for note in turned if note is not None]
        tallies = [part.target.counts().tolist() for part in (objects.train, objects.test)]
    else:
        unlabelled = not (both.train.target.labelled or both.test.target.labelled)
        findings = check(both.train, both.test, labels=not unlabelled, copies=copies)
        if unlabelled:
            findings.append(Finding("note", "no labels: usable for pretraining and extraction, not for evaluation"))
        tallies = [
            part.target.counts().tolist() if isinstance(part.target, OfClasses) else []
            for part in (both.train, both.test)
        ]
    findings += [Finding("note", note) for note in both.notes]
    tried = decoded = 0
    unreadable: list[tuple[str, str]] = []
    with_boxes = (None, None) if objects is None else (objects.train, objects.test)
    for part, boxes in zip((both.train, both.test), with_boxes, strict=True):
        rows = spread(len(part), decode)
        if boxes is None:
            found = loader.survey(part, rows, workers, reading=reading)
            bad, broken = [(path, why) for _, path, why in found.unreadable], {i for i, _, _ in found.unreadable}
            findings += [Finding("error", f"{path}: {reason}") for path, reason in bad]
            findings += picture_findings(part, found)
        else:
            problems = unusable_objects(dataclasses.replace(boxes, reading=reading), rows, workers)
            bad, broken = [(part.images.path(index), line) for index, line in problems], {i for i, _ in problems}
            findings += listed(boxes.name, problems)
        unreadable += bad
        tried += len(rows)
        # Some of the broken ones were not decoded: of these only the size in the file was compared.
        decoded += len(set(rows.tolist()) - broken)
    total = len(both.train) + len(both.test)
    if not copies:
        message = f"duplicate images were not searched: {total:,} files would be read (--copies)"
        findings.append(Finding("note", message))
    named = {
        # Numbers to predict have names and no tally.
        name: dict(zip(part.target.classes, tally, strict=False))
        for name, part, tally in zip(("train", "test"), (both.train, both.test), tallies, strict=True)
    }
    return CheckedParts(opened, tuple(by_level(findings)), named, tried, decoded, tuple(unreadable), copies, reading)


def picture_findings(part: Source, found: loader.Survey) -> list[Finding]:
    """Return findings about channels and conversions of decoded images."""
    total = sum(map(len, found.channels.values()))
    findings = [
        Finding("note", f"{part.name}: {counted(n, 'image')} of {total:,}: {conversion}")
        for conversion, n in sorted(found.conversions.items())
    ]
    listed = some([f"{part.images.path(rows[0])} has {number}" for number, rows in found.channels.items()])
    if len(found.channels) > 1:
        findings.append(Finding("error", f"{part.name}: images of different numbers of channels: {listed}"))
    elif set(found.channels) - {_RGB}:
        (number,) = found.channels
        which = "|".join(str(i + 1) for i in range(_RGB if number > _RGB else 1))
        findings.append(
            Finding(
                "warning",
                f"{listed} channels: networks of 3 channels refuse it. Give one of {number}, such as --backbone "
                f"resnet50,in_chans={number}, or take some of them by ?channels={which} behind the location",
            )
        )
    return findings


def spread(n: int, wanted: int | None) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return `wanted` evenly spaced positions of n samples; all of them if None."""
    if wanted is None or wanted >= n:
        return np.arange(n, dtype=np.int64)
    return np.unique(np.linspace(0, n - 1, wanted).astype(np.int64))


_LISTED = 10


@dataclasses.dataclass(frozen=True)
class CheckedValues:
    """Result of a check.

    Attributes:
        lines: one per split.
        findings: errors first.
    """

    lines: tuple[str, ...]
    findings: tuple[Finding, ...]


def check_values(parts: Mapping[str, Source], quantity: Quantity, read: int | None) -> CheckedValues:
    """Read depth or normals and return what they hold and what is wrong with them.

    `read`: number of images of each split, evenly spaced; None: all.
    """
    lines, findings = [], list[Finding]()
    for source in parts.values():
        line, found = _checked(source, quantity, read)
        lines.append(line)
        findings += [*found, *(Finding("note", note) for note in source.notes)]
    return CheckedValues(tuple(lines), tuple(by_level(findings)))


def _checked(source: Source, quantity: Quantity, read: int | None) -> tuple[str, list[Finding]]:
    problems, without, ranges, pixels, unknown = list[str](), list[str](), list[tuple[float, float, float]](), 0, 0
    rows = spread(len(source), read).tolist()
    for index in rows:
        try:
            size = size_and_turn(source.images, index)[0]
            values = ReadValues.of(source.target).pixels.read_values(index, size=size)
        except (SslbenchError, UnreadableImage) as error:
            problems.append(error.message if isinstance(error, SslbenchError) else str(error))
            continue
        known = values[~np.isnan(values).any(axis=2)]
        pixels, unknown = pixels + values[..., 0].size, unknown + values[..., 0].size - len(known)
        if not len(known):
            without.append(source.ids[index])
        elif quantity == "depth":
            ranges.append((float(known.min()), float(known.max()), float(np.median(known))))
    decoded = loader.survey(source, np.array(rows, dtype=np.int64), 0)
    problems += [f"{path}: {reason}" for _, path, reason in decoded.unreadable]
    findings = [Finding("error", problem) for problem in problems[:_LISTED]] + picture_findings(source, decoded)
    if (turned := unknown_orientation(source.name, source.images, sized=True)) is not None:
        findings.append(Finding("warning", turned))
    if len(problems) > _LISTED:
        findings.append(Finding("error", f"{source.name}: and {len(problems) - _LISTED} more that cannot be used"))
    if without and not pixels - unknown:
        findings.append(Finding("error", f"{source.name}: no pixel of the {len(rows):,} images read has a known value"))
    elif without:
        names = f"{counted(len(without), 'image')} without a known {quantity} are not scored: {some(without, 5)}"
        findings.append(Finding("warning", f"{source.name}: {names}"))
    line = f"{source.name}: {len(source):,} images with {quantity}, {len(rows):,} read"
    if pixels:
        line += f"; {unknown / pixels:.1%} of the pixels unknown"
    if ranges:
        lows, highs, medians = zip(*ranges, strict=True)
        median = float(np.median(medians))
        line += f"; {min(lows):.3g} to {max(highs):.3g} m, median {median:.3g} m"
        if wrong := implausible_unit(min(lows), max(highs), median):
            findings.append(Finding("error", f"{source.name}: {wrong}"))
    return line, findings
