"""Train and test parts of images with objects."""

import dataclasses

import numpy as np

from sslbench.data.groups import group_numbers
from sslbench.data.labels import multi_labels
from sslbench.data.objects import ObjectSource
from sslbench.data.open import open_objects
from sslbench.data.splits import Parts, nearest_class, parts_of
from sslbench.data.stratify import holdout
from sslbench.data.wording import counted, some
from sslbench.errors import DataError

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
    """
    return _matched(
        parts_of(
            open_objects,
            data,
            test_data,
            cut=lambda whole: _seeded(whole, seed, test_fraction),
            lacks=lambda part: "" if part.target.counts().any() else "objects",
        )
    )


def _seeded(source: ObjectSource, seed: int, fraction: float) -> Parts[ObjectSource]:
    present = [{source.target.classes[c] for c in objects.classes} for objects in source.target.objects]
    # The test part needs two images, also where its share would give fewer.
    least = _FEWEST / len(source) if len(source) >= 2 * _FEWEST else 0.0
    groups = group_numbers(source.attributes.get(source.grouped_by, ()))
    grouped = groups is not None
    labels = multi_labels(present, classes=source.target.classes)
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
        if not part.target.counts().any():
            raise DataError(f"{part.name} has no objects (crowds apart)", "Detection needs boxes in both parts.")
    there = {name for name, n in zip(train.target.classes, train.target.counts(), strict=True) if n}
    tested = {name for name, n in zip(test.target.classes, test.target.counts(crowds=True), strict=True) if n}
    unknown = sorted(tested - there)
    if unknown:
        lines = [
            f"the class '{name}' of {test.name} has no object in {train.name}. {nearest_class(name, there)}"
            for name in unknown[:5]
        ]
        more = [f"... and {len(unknown) - 5} more classes of {test.name}"] if len(unknown) > 5 else []
        raise DataError("\n".join([*lines, *more]))
    pairs = zip(train.target.classes, train.target.class_numbers, strict=True)
    names, numbers = zip(*(pair for pair in pairs if pair[0] in there), strict=True)
    absent = [name for name in names if name not in tested]
    notes = parts.notes
    if absent:
        notes = (*notes, f"{counted(len(absent), 'class')} of train without an object in test: {some(absent, 5)}")
    # Result files use the class names of test's manifest.
    numbers_of_test = dict(zip(test.target.classes, test.target.class_numbers, strict=True))
    own = tuple(numbers_of_test.get(name, number) for name, number in zip(names, numbers, strict=True))
    # The crowds of classes that have no other objects do not train.
    is_kept = np.array([name in names for name in train.target.classes], dtype=np.bool_)
    if not is_kept[train.target.column("classes")].all():
        objects = tuple(one.select(np.flatnonzero(is_kept[one.classes]).tolist()) for one in train.target.objects)
        train = dataclasses.replace(train, target=train.target.changed(objects=objects))
    train, test = train.with_classes(names, numbers), test.with_classes(names, own)
    return dataclasses.replace(parts, train=train, test=test, notes=notes)
