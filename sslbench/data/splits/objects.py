"""Train and test parts of images with objects."""

import dataclasses
from collections.abc import Mapping

from sslbench.data.groups import group_numbers
from sslbench.data.labels import multi_labels
from sslbench.data.objects.types import Objects, ObjectSource
from sslbench.data.open import open_objects
from sslbench.data.source import Source
from sslbench.data.splits import TrainTest, choose_test, choose_train, holdout, nearest_class
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.targets.objects import Boxes

_FEWEST = 2


@dataclasses.dataclass(frozen=True)
class TrainTestObjects:
    """A train and a test part with the same classes.

    Attributes:
        train: to fit on.
        test: to score on.
        how: origin of the two parts, for messages and results.
        notes: surprising facts about the parts, one sentence each, beside the notes of the sources.
        seeded: the parts were drawn with a seed.
    """

    train: ObjectSource
    test: ObjectSource
    how: str
    notes: tuple[str, ...] = ()
    seeded: bool = False


def split_objects(
    data: str, test_data: str | None = None, *, seed: int = 0, test_fraction: float = 0.2
) -> TrainTestObjects:
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
    others = None if test_data is None else open_objects(test_data)
    sources = open_objects(data)
    if others is not None and test_data is not None:
        train = choose_train(data, sources)
        test = choose_test(test_data, others)
        parts = TrainTestObjects(train, test, f"{train.name} against {test.name}")
    elif len(sources) == 1:
        parts = _seeded(next(iter(sources.values())), seed, test_fraction)
    else:
        parts = _own(data, sources)
    return _matched(parts)


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


def _own(spec: str, sources: Mapping[str, ObjectSource]) -> TrainTestObjects:
    candidates = [name for name in ("test", "val") if name in sources]
    if "train" not in sources or not candidates:
        raise UsageError(
            f"{spec} has the splits {', '.join(sources)}: "
            + ("none of them is train" if "train" not in sources else "no test or val"),
            "Give the training part as data, and the other with --test-data.",
        )
    notes: list[str] = []
    if len(candidates) > 1 and not sources["test"].counts().any():
        notes.append(f"{sources['test'].name} has no objects, so val is scored")
        candidates.remove("test")
    chosen = candidates[0]
    unused = [f"{name} ({counted(len(s), 'image')})" for name, s in sources.items() if name not in ("train", chosen)]
    if unused:
        notes.append(f"not used: {', '.join(unused)}")
    return TrainTestObjects(sources["train"], sources[chosen], f"train/ against {chosen}/", tuple(notes))


def _seeded(source: ObjectSource, seed: int, fraction: float) -> TrainTestObjects:
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
    return TrainTestObjects(train, test, how, seeded=True)


def _matched(parts: TrainTestObjects) -> TrainTestObjects:
    """Return both parts with the classes of train that have objects, in train's order.

    Raises:
        DataError: a part is too small or empty, or test has a class without an object in train.
    """
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
