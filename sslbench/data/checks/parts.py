"""A whole check of a data location: both parts opened, what was found, and counts per class."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from sslbench.data.checks.duplicates import Suspect, named, suspects
from sslbench.data.checks.findings import Finding, by_level
from sslbench.data.checks.near import Pair
from sslbench.data.checks.objects import as_source, check_objects
from sslbench.data.checks.samples import check
from sslbench.data.checks.sheets import Boxes
from sslbench.data.decode.handlers import Reading
from sslbench.data.labels import class_counts
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.data.splits import TrainTest, train_test
from sslbench.data.splits.objects import TrainTestObjects, split_objects


@dataclasses.dataclass(frozen=True)
class Opened:
    """The parts of a data location.

    Attributes:
        spec: what the user gave.
        data: train and test; classes of boxes are several labels of an image.
        objects: the same with boxes, if they were asked for.
    """

    spec: str
    data: TrainTest
    objects: TrainTestObjects | None = None


@dataclasses.dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes:
        opened: what was checked.
        findings: errors first.
        counts: 'train' and 'test' -> class -> images (with boxes: objects).
        decoded: images that were decoded, of all.
        unreadable: those that cannot be: path, reason.
        copies: equal images were looked for.
        reading: how images are decoded.
        near: rows of test and train that are nearly the same, as far as that was looked for.
    """

    opened: Opened
    findings: tuple[Finding, ...]
    counts: dict[str, dict[str, int]]
    decoded: int
    unreadable: tuple[tuple[str, str], ...]
    copies: bool
    reading: Reading
    near: tuple[Pair, ...] = ()

    @property
    def parts(self) -> dict[str, Source]:
        """Train and test by these names."""
        return {"train": self.opened.data.train, "test": self.opened.data.test}

    def boxes(self, part: str) -> Boxes | None:
        """Per image of a part, if boxes were asked for."""
        objects = self.opened.objects
        if objects is None:
            return None
        return [image.boxes for image in (objects.train if part == "train" else objects.test).objects]

    def with_near(self, more: Sequence[Finding], near: Iterable[Pair]) -> "Checked":
        """The same with what was found about images that are nearly the same."""
        findings = tuple(by_level([*self.findings, *more]))
        return dataclasses.replace(self, findings=findings, near=(*self.near, *near))

    def overlaps(self) -> list[Suspect]:
        """Images of test that are suspected to be in train too."""
        train, test = self.opened.data.train, self.opened.data.test
        return suspects(train, test, named(self.near, test.ids, train.ids), exact=self.copies)


def open_parts(
    data: str,
    test_data: str | None,
    *,
    seed: int,
    test_fraction: float,
    image_column: str | None = None,
    label_column: str | None = None,
) -> Opened:
    """Both parts, as `splits.train_test` finds them."""
    parts = train_test(
        data,
        test_data,
        seed=seed,
        test_fraction=test_fraction,
        image_column=image_column,
        label_column=label_column,
    )
    return Opened(data, parts)


def open_with_boxes(data: str, test_data: str | None, *, seed: int, test_fraction: float) -> Opened:
    """Both parts with their boxes, as `objects.split_objects` finds them."""
    objects = split_objects(data, test_data, seed=seed, test_fraction=test_fraction)
    return Opened(data, TrainTest(as_source(objects.train), as_source(objects.test), objects.how), objects)


def check_parts(opened: Opened, *, copies: bool, decode: int | None, workers: int, reading: Reading) -> Checked:
    """Checks labels, splits and boxes, and decodes images.

    Args:
        opened: the parts.
        copies: look for images of equal content; every file is read that was not hashed before.
        decode: images of each part that are decoded, spread over it; None for all.
        workers: processes that decode.
        reading: the decoder and its limit.
    """
    both, objects = opened.data, opened.objects
    if objects is not None:
        findings = check_objects(objects.train, objects.test, copies=copies)
        tallies = [part.counts().tolist() for part in (objects.train, objects.test)]
    else:
        unlabelled = both.train.labels.kind == both.test.labels.kind == "none"
        findings = check(both.train, both.test, labels=not unlabelled, copies=copies)
        if unlabelled:
            findings.append(Finding("note", "no labels: it can be used to pretrain and to extract, not to evaluate"))
        tallies = [_counts(part) for part in (both.train, both.test)]
    findings += [Finding("note", note) for note in both.notes]
    decoded, unreadable = 0, []
    for part in (both.train, both.test):
        rows = spread(len(part), decode)
        unreadable += loader.scan(part, rows, workers, reading=reading)
        decoded += len(rows)
    total = len(both.train) + len(both.test)
    findings += [Finding("error", f"{path}: {reason}") for _, path, reason in unreadable]
    if not copies:
        message = f"images of equal content were not looked for: {total:,} files would be read (--copies)"
        findings.append(Finding("note", message))
    named = {
        name: dict(zip(part.labels.classes, tally, strict=False))
        for name, part, tally in zip(("train", "test"), (both.train, both.test), tallies, strict=True)
    }
    pairs = tuple((path, reason) for _, path, reason in unreadable)
    return Checked(opened, tuple(by_level(findings)), named, decoded, pairs, copies, reading)


def _counts(part: Source) -> list[int]:
    return class_counts(part.labels).tolist() if part.labels.kind in ("single", "multi") else []


def spread(n: int, wanted: int | None) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Positions of `wanted` of n samples, spread over them; None for all."""
    if wanted is None or wanted >= n:
        return np.arange(n, dtype=np.int64)
    return np.unique(np.linspace(0, n - 1, wanted).astype(np.int64))
