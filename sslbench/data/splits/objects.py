"""Train and test parts of images with objects."""

import dataclasses

from sslbench.data.groups import group_numbers
from sslbench.data.labels import multi_labels
from sslbench.data.objects.types import Objects, ObjectSource
from sslbench.data.open import open_objects
from sslbench.data.source import Source
from sslbench.data.splits import Parts, TrainTest, holdout, nearest_class, parts_of
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.targets.objects import Boxes

_FEWEST = 2


def split_objects(
    data: str, test_data: str | None = None, *, seed: int = 0, test_fraction: float = 0.2
) -> Parts[ObjectSource]:
    """Return the train and test part of one data location, or of two.

    Args:
        data: as `open_objects` takes it. Its train split if it has one, else all of it.
        test_data: of this the test split, else val, else all. Without it, `data`'s own test split (else val); if `data`
            has no splits, a seeded split by image that keeps the share of every class.
        seed: of the split.
        test_fraction: share of the images that becomes the test part in a seeded split.

    Returns:
        The two parts with the same classes in the same order; `how` says how they came about.

    Raises:
        UsageError: a location does not exist or has no part that could serve, or the fraction is not in (0, 1).
        DataError: a part has fewer than two images or no objects, or test has a class that train does not know.
    """
    return _matched(
        parts_of(
            open_objects,
            data,
            test_data,
            cut=lambda whole: _seeded(whole, seed, test_fraction),
            lacks=lambda part: "" if part.counts().any() else "objects",
        )
    )


def train_test_objects(data: str, test_data: str | None = None, *, seed: int, test_fraction: float) -> TrainTest:
    """Return the parts as samples with their objects; arguments and errors as for `split_objects`."""
    found = split_objects(data, test_data, seed=seed, test_fraction=test_fraction)
    train, test = (
        Source(
            part.name,
            part.ids,
            Boxes(part.classes, part),
            part.images,
            part.notes,
            attributes=part.attributes,
            grouped_by=part.grouped_by,
        )
        for part in (found.train, found.test)
    )
    return TrainTest(train, test, found.how, found.notes, seeded=found.seeded)


def objects_of(source: Source) -> ObjectSource:
    """Return the images of a source with their objects."""
    objects = Boxes.of(source.target).objects
    if not isinstance(objects, ObjectSource):
        raise TypeError(f"{source.name} has other objects")
    return objects


def _seeded(source: ObjectSource, seed: int, fraction: float) -> Parts[ObjectSource]:
    present = [{source.classes[c] for c in objects.classes} for objects in source.objects]
    least = _FEWEST / len(source) if len(source) >= 2 * _FEWEST else 0.0
    groups = group_numbers(source.attributes.get(source.grouped_by, ()))
    grouped = groups is not None
    labels = multi_labels(present, classes=source.classes)
    fit, held = holdout(labels, max(fraction, least), seed, groups=groups)
    if min(len(fit), len(held)) < _FEWEST:
        raise DataError(
            f"{source.name} has {counted(len(source), 'image')}, too few to split into train and test"
            + (f" without separating one {source.grouped_by}" if grouped else ""),
            "Both parts need two images or more; or give the test images with --test-data.",
        )
    percent = round(100 * len(held) / len(source))
    by = source.grouped_by if grouped else "image"
    how = f"seeded split by {by}: {100 - percent} % train, {percent} % test (seed {seed})"
    train = source.select(fit, f"{source.name} (train, {100 - percent} %)")
    test = source.select(held, f"{source.name} (test, {percent} %)")
    return Parts(train, test, how, seeded=True)


def _matched(parts: Parts[ObjectSource]) -> Parts[ObjectSource]:
    """Return both parts with the classes of train that have objects, in train's order."""
    train, test = parts.train, parts.test
    for part in (train, test):
        if len(part) < _FEWEST:
            raise DataError(
                f"{part.name} has {counted(len(part), 'image')}; detection needs two or more",
                "Neither training nor average precision is meaningful with one image.",
            )
        if not part.counts().any():
            raise DataError(f"{part.name} has no objects (crowds apart)", "Detection needs boxes in both parts.")
    there = {name for name, n in zip(train.classes, train.counts(), strict=True) if n}
    tested = {name for name, n in zip(test.classes, test.counts(crowds=True), strict=True) if n}
    unknown = sorted(tested - there)
    if unknown:
        lines = [
            f"the class '{name}' of {test.name} has no object in {train.name}. {nearest_class(name, there)}"
            for name in unknown[:5]
        ]
        more = [f"... and {len(unknown) - 5} more classes of {test.name}"] if len(unknown) > 5 else []
        raise DataError("\n".join([*lines, *more]))
    pairs = zip(train.classes, train.class_numbers, strict=True)
    names, numbers = zip(*(pair for pair in pairs if pair[0] in there), strict=True)
    absent = [name for name in names if name not in tested]
    notes = parts.notes
    if absent:
        notes = (*notes, f"{counted(len(absent), 'class')} of train without an object in test: {some(absent, 5)}")
    # Result files use the class names of test's manifest.
    numbers_of_test = dict(zip(test.classes, test.class_numbers, strict=True))
    own = tuple(numbers_of_test.get(name, number) for name, number in zip(names, numbers, strict=True))
    return dataclasses.replace(
        parts, train=_kept(train, names, numbers), test=test.with_classes(names, own), notes=notes
    )


def _kept(train: ObjectSource, names: tuple[str, ...], numbers: tuple[int, ...]) -> ObjectSource:
    """Return train without the crowds of classes that have no other objects."""
    known = {i for i, name in enumerate(train.classes) if name in names}
    objects: list[Objects] = []
    changed = False
    for one in train.objects:
        rows = [i for i, c in enumerate(one.classes) if int(c) in known]
        objects.append(one if len(rows) == len(one) else one.select(rows))
        changed = changed or len(rows) < len(one)
    kept = dataclasses.replace(train, objects=tuple(objects)) if changed else train
    return kept.with_classes(names, numbers)
