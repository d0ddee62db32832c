"""Train and test parts of data: their own splits, or a seeded stratified split."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.containers.exports import NOT_READ
from sslbench.data.groups import inseparable, torn_classes
from sslbench.data.labels import DECIMALS, NO_LABEL_COLUMN, NUMBERED_FOLDERS, among_classes, single_labels
from sslbench.data.maps.layout import FOLDER
from sslbench.data.open import open_data
from sslbench.data.source import ORIGIN, Source
from sslbench.data.stratify import choose, holdout, interleaved
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.classes import Classes
from sslbench.targets.label_maps import Foreground, LabelMaps
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.pixel_values import ReadValues
from sslbench.targets.target import OfClasses, SeveralImages

S = TypeVar("S", bound=Source, covariant=True)


@dataclasses.dataclass(frozen=True)
class Parts(Generic[S]):
    """A train and a test part.

    Attributes:
        train: to fit on.
        test: to score on.
        how: origin of the two parts, for messages and results: 'train/ against val/'.
        notes: surprising facts about the parts, one sentence each.
        whole: the source that both were cut from, if any: its features serve both, at any seed of the split.
        seeded: the parts were drawn with a seed.
    """

    train: S
    test: S
    how: str
    notes: tuple[str, ...] = ()
    whole: S | None = None
    seeded: bool = False


TrainTest = Parts[Source]


def train_test(  # noqa: PLR0913  the arguments of `open_data`, and how to split
    data: str,
    test_data: str | None = None,
    *,
    seed: int = 0,
    test_fraction: float = 0.2,
    image_column: str | None = None,
    label_column: str | None = None,
    attribute_columns: Sequence[str] = (),
    value_columns: Sequence[str] = (),
    decoder: Sequence[str] = (),
) -> TrainTest:
    """Open one data location, or two, and return the train and the test part; every process of a group calls this.

    Args:
        data: see `open_data`. Its train split if it has one, otherwise all of it.
        test_data: its test split, otherwise val, otherwise all. Without it, `data`'s own test split (otherwise val);
            if `data` has no splits, a seeded split that is stratified by class and keeps groups together
            (`Source.grouped_by`).
        seed: of the split, which otherwise depends on ids, labels and groups only.
        test_fraction: share of the test part in a seeded split.
        image_column: as in `open_data`.
        label_column: as in `open_data`.
        attribute_columns: as in `open_data`, of the location of the test part.
        value_columns: as in `open_data`.
        decoder: as in `open_data`.
    """
    further: dict[str, Any] = {"attribute_columns": attribute_columns}
    columns: dict[str, Any] = {"image_column": image_column, "label_column": label_column}
    columns |= {"value_columns": value_columns, "together": True, "decoder": decoder}
    scored = data if test_data is None else test_data

    def opener(place: str) -> Mapping[str, Source]:
        return open_data(place, **columns, **(further if place == scored else {}))

    return train_test_of(opener, data, test_data, seed=seed, test_fraction=test_fraction)


def train_test_of(
    opener: Callable[[str], Mapping[str, Source]],
    data: str,
    test_data: str | None = None,
    *,
    seed: int = 0,
    test_fraction: float = 0.2,
) -> TrainTest:
    """Open one location, or two, by a function from a location to its splits; see `train_test`."""
    return parts_of(
        opener,
        data,
        test_data,
        cut=lambda whole: _seeded(whole, seed, test_fraction),
        lacks=lambda part: "" if part.target.labelled else "labels",
    )


def parts_of(
    opener: Callable[[str], Mapping[str, S]],
    data: str,
    test_data: str | None,
    *,
    cut: Callable[[S], Parts[S]],
    lacks: Callable[[S], str],
) -> Parts[S]:
    """Return the parts of one location, or of two; errors as for `train_test`.

    `cut` splits data without parts of their own; `lacks` names what a part lacks to be scored, '' for nothing.
    """
    sources = opener(data)
    if test_data is not None:
        train, test = choose_train(data, sources), choose_test(test_data, opener(test_data))
        return Parts(train, test, f"{train.name} against {test.name}")
    if len(sources) == 1:
        return cut(next(iter(sources.values())))
    candidates = [name for name in ("test", "val") if name in sources]
    if "train" not in sources or not candidates:
        raise UsageError(
            f"{data} has the splits {', '.join(sources)}: "
            + ("none of them is train" if "train" not in sources else "no test or val"),
            "Give the training part as data, and the other with --test-data.",
        )
    notes: list[str] = []
    train = sources["train"]
    # The test part of a challenge is often published without labels; then val is what can be scored.
    if len(candidates) > 1 and not lacks(train) and (lacking := lacks(sources["test"])):
        notes.append(f"{sources['test'].name} has no {lacking}, so val is scored")
        candidates.remove("test")
    chosen = candidates[0]
    unused = [
        f"{name} ({counted(len(part), 'image')})" for name, part in sources.items() if name not in ("train", chosen)
    ]
    if unused:
        notes.append(f"not used: {', '.join(unused)}")
    return Parts(train, sources[chosen], f"train/ against {chosen}/", tuple(notes))


def choose_train(spec: str, sources: Mapping[str, S]) -> S:
    """Return the split to fit on, where another location has the test part: train, or all."""
    return _part(spec, sources, ("train", "all"))


def choose_test(spec: str, sources: Mapping[str, S]) -> S:
    """Return the split to score on, where another location has the train part: test, else val, else all."""
    return _part(spec, sources, ("test", "val", "all"))


def _part(spec: str, sources: Mapping[str, S], wanted: tuple[str, ...]) -> S:
    for name in wanted:
        if name in sources:
            return sources[name]
    if len(sources) == 1:
        return next(iter(sources.values()))
    raise UsageError(f"{spec} has the splits {', '.join(sources)}, but none called {' or '.join(wanted[:-1])}")


def _seeded(source: Source, seed: int, test_fraction: float) -> TrainTest:
    groups = inseparable(source)
    # By rank, so that the split is the same whatever the class folders are called.
    fit, held = holdout(source.target, test_fraction, seed, groups=groups, rank=source.rank)
    several = isinstance(source.target, SeveralImages)
    by = " or ".join(part for part in (source.grouped_by, "image" if several else "") if part)
    if groups is not None and several and not (len(fit) and len(held)):
        raise DataError(
            f"{source.name}: its {len(source)} samples of several images cannot be split: one {by} would be on both "
            f"sides, since images that samples share tie them to {counted(int(groups.max()) + 1, 'group')}",
            "Say the parts in a column 'split' of the table, without samples of images of both; or give the test part "
            "with --test-data.",
        )
    if groups is not None and not (len(fit) and len(held)):
        raise DataError(
            f"{source.name}: its {len(source)} images cannot be split without separating one "
            f"{source.grouped_by} (of these it has {groups.max() + 1:,})",
            "Every class of the test part needs two groups; or give the test images with --test-data.",
        )
    if not len(fit) or not len(held):
        usual = "A class needs two images to be on both sides; or give the test images with --test-data."
        raise DataError(
            f"{source.name} has {len(source)} images, too few of each class to split into train and test",
            next((note for note in source.notes if DECIMALS in note), usual),
        )
    kind = "stratified" if source.target.of_classes else "random"
    percent = round(100 * len(held) / len(source))
    kept = "" if groups is None else f" by {by}"
    how = f"seeded {kind} split{kept}: {100 - percent} % train, {percent} % test (seed {seed})"
    train = source.select(fit, f"{source.name} (train, {100 - percent} %)")
    test = source.select(held, f"{source.name} (test, {percent} %)")
    notes = [*torn_classes(source, test, grouped=groups is not None), *_parted_folders(source, fit)]
    return TrainTest(train, test, how, tuple(notes), whole=source, seeded=True)


def _parted_folders(source: Source, fit: IntArray) -> list[str]:
    """Return a note on folders of images with maps that a split parts, since they may be scenes; [] for other data."""
    if source.grouped_by or not isinstance(source.target, LabelMaps | Foreground | ReadValues):
        return []
    folders = [name.rpartition("/")[0] for name in source.ids]
    chosen = set(fit.tolist())
    both = {folders[i] for i in chosen} & {folders[i] for i in range(len(source)) if i not in chosen}
    if len(set(folders)) < 2 or not both:
        return []
    return [
        f"images of {counted(len(both), 'folder')}, such as {some(sorted(both), 2)}, are on both sides of the split: "
        f"if these are scenes or videos, ?group={FOLDER} keeps each on one side"
    ]


def limit(source: Source, n: int, seed: int) -> Source:
    """Return `n` samples, stratified by class, in order; the source itself if it has no more than `n`."""
    if n < 1:
        raise UsageError(f"the limit must be at least 1 image, not {n}")
    if n >= len(source):
        return source
    order = np.argsort(source.rank)
    chosen = choose(source.target.select(order), n, np.random.default_rng(seed), both_sides=False)
    # Drawn by rank; `select` takes ascending positions.
    limited = source.select(np.sort(order[chosen]), f"{source.name}, {n} of {len(source)}")
    return dataclasses.replace(limited, notes=(*source.notes, f"limited to {n:,} of {len(source):,} images"))


def part_of_order(source: Source, n: int, seed: int, *, skip: int, balanced: bool) -> Source:
    """Return `n` samples after the first `skip` of a seeded order, in the order of the source; see `interleaved`.

    Parts of one order that do not overlap have no sample in common.

    Raises:
        UsageError: there are fewer samples, of a class fewer than the others if `balanced`, or no classes for it.
    """
    if skip + n > len(source):
        raise UsageError(f"limit_skip={skip} and --limit {n} need {skip + n:,} images, and there are {len(source):,}")
    if balanced and not isinstance(source.target, Classes):
        raise UsageError(
            f"limit_balanced=true needs one class for each image, and {source.name} has {source.target.title}",
            "Leave it out.",
        )
    by_rank = np.argsort(source.rank)
    order = interleaved(source.target.select(by_rank), np.random.default_rng(seed), balanced=balanced)
    chosen = by_rank[order[skip : skip + n]]
    if balanced:
        of_class = np.bincount(source.target.values)
        fewest = int(np.where(of_class > 0, of_class, len(source)).argmin())
        classes = int((of_class > 0).sum())
        if skip + n > int(of_class[fewest]) * classes:
            raise UsageError(
                f"limit_balanced=true: {source.name} has {of_class[fewest]} images of the class "
                f"'{source.target.classes[fewest]}', too few to take {skip + n:,} images of {classes} classes in turn",
                f"--limit and limit_skip together are at most {of_class[fewest] * classes:,}.",
            )
    return source.select(np.sort(chosen), f"{source.name}, {n} of {len(source)}")


def match_classes(train: Source, test: Source, *, subset: bool = False) -> tuple[Source, Source]:
    """Return both sources with train's classes in train's order, matched by name; only the test labels change.

    Classes without a test sample become a note of `test`. A multi-label class that test does not list is ignored there,
    as in joined sources (`labels.among_classes`).

    With `subset`, test keeps only the classes that it has samples of, in train's order; no other class is predicted.
    """
    problems = label_problems(train, test)
    if problems:
        raise DataError("\n".join(problems))
    if train is test:
        return train, test
    notes = [note for note in (absent_from_test(train, test), not_listed(train, test)) if note is not None]
    if train.target.of_pixels:
        return train, test
    if train.target.of_numbers:
        order = [test.target.classes.index(name) for name in train.target.classes]
        numbers = test.target.changed(classes=train.target.classes, values=test.target.values[:, order])
        return train, dataclasses.replace(test, target=numbers)
    known = {name: i for i, name in enumerate(train.target.classes)}
    values: npt.NDArray[np.int64] | npt.NDArray[np.int8]
    if isinstance(train.target, Classes):
        # A class listed by test without samples may be unknown to train: its number is never used.
        places = np.array([known.get(name, -1) for name in test.target.classes], dtype=np.int64)
        values = places[test.target.values]
    else:
        shared = [i for i, name in enumerate(test.target.classes) if name in known]
        places = np.array([known[test.target.classes[i]] for i in shared], dtype=np.int64)
        values = among_classes(test.target.values[:, shared], places, len(known))
    target = OfClasses.of(test.target).changed(classes=train.target.classes, values=values)
    if subset:
        target = target.among(np.flatnonzero(target.present()))
    return train, dataclasses.replace(test, target=target, notes=(*test.notes, *notes))


def unite_classes(train: Source, test: Source) -> tuple[Source, Source]:
    """Return both sources with the classes of both, those of train first; for protocols that learn no classes.

    Train may be unlabelled (images that only whitening learns from): its images get a class of their own.
    """
    if not train.target.labelled:
        train = dataclasses.replace(train, target=single_labels(["unlabelled"] * len(train)))
    if not isinstance(train.target, Classes) or not isinstance(test.target, Classes):
        raise DataError("\n".join(label_problems(train, test)))
    names = tuple(dict.fromkeys((*train.target.classes, *test.target.classes)))
    number = {name: i for i, name in enumerate(names)}
    places = np.array([number[name] for name in test.target.classes], dtype=np.int64)
    own = train.target.changed(classes=names)
    other = test.target.changed(classes=names, values=places[test.target.values])
    return dataclasses.replace(train, target=own), dataclasses.replace(test, target=other)


def name_numbered(train: Source, test: Source) -> Source:
    """Return a test source whose classes are numbers (as ImageNetV2's folders are) with train's sorted class names."""
    ordered = sorted(train.target.classes)
    if odd := _misnumbered(train, test):
        raise DataError(
            f"the classes of {test.name} should be numbers from 0 to {len(ordered) - 1}, each once: {some(odd)}",
            f"They number the classes of {train.name}, sorted by name.",
        )
    names = tuple(ordered[int(name)] for name in test.target.classes)
    shown = some([f"{number} is {name}" for number, name in zip(test.target.classes, names, strict=True)])
    notes = (
        *(note for note in test.notes if NUMBERED_FOLDERS not in note),
        f"{test.name}: its classes are the numbers of the sorted class names of {train.name}: {shown}",
    )
    return dataclasses.replace(test, target=test.target.changed(classes=names), notes=notes)


def _misnumbered(train: Source, test: Source) -> list[str]:
    """Return the classes of test that are no numbers of train's classes, each once; [] if all of them are."""
    classes = test.target.classes
    odd = [name for name in classes if not (name.isdecimal() and int(name) < len(train.target.classes))]
    return odd or (list(classes) if len({int(name) for name in classes}) < len(classes) else [])


def label_problems(train: Source, test: Source) -> list[str]:
    """Return the reasons, one sentence each, why train's labels cannot be scored against test's; empty if they can."""
    unlabelled = [part.name for part in (train, test) if not part.target.labelled]
    if unlabelled:
        verb = "has" if len(unlabelled) == 1 else "have"
        remedy = (
            "give a folder with a sub-folder per class, a table or manifest with labels "
            "(--label-col names their column), or in Python (images, labels)"
        )
        noted = dict.fromkeys(
            note for part in (train, test) for note in part.notes if NO_LABEL_COLUMN in note or NOT_READ in note
        )
        if noted:
            remedy = f"{'; '.join(noted)}"
        if ORIGIN in train.attributes:
            remedy = "joined sources have labels only if each has; sslbench check-data lists those without"
        return [f"{' and '.join(unlabelled)} {verb} no labels: {remedy}"]
    if type(train.target) is not type(test.target):
        return [f"{train.name} is {train.target.name}-label, but {test.name} is {test.target.name}-label"]
    if train is test:
        return []
    if train.target.of_pixels:
        same = train.target.classes == test.target.classes
        both = [f"{part.name} has {some(part.target.classes, 5)}" for part in (train, test)]
        return [] if same else [f"the classes of the maps differ: {'; '.join(both)}"]
    if train.target.of_numbers:
        same = sorted(train.target.classes) == sorted(test.target.classes)
        both = [f"{part.name} has {', '.join(part.target.classes)}" for part in (train, test)]
        return [] if same else [f"the numbers to predict differ: {'; '.join(both)}"]
    unknown = [name for name in _present(test) if name not in set(train.target.classes)]
    named = not any(name.isdecimal() for name in train.target.classes)
    if unknown and named and not _misnumbered(train, test):
        numbers = sorted(map(int, _present(test)))
        return [
            f"the classes of {test.name} are numbers from {numbers[0]} to {numbers[-1]}, and those of {train.name} are "
            f"names ({some(sorted(train.target.classes), 2)}). --test-classes numbers takes them for the numbers of "
            "these names in order of the alphabet, from 0 on, as in ImageNetV2's folders."
        ]
    return _unknown_classes(train, test, unknown) if unknown else []


def _unknown_classes(train: Source, test: Source, unknown: Sequence[str]) -> list[str]:
    """Return sentences about classes of test that train lacks; numbers with decimals may be no classes at all."""
    if decimals := next((note for part in (train, test) for note in part.notes if DECIMALS in note), ""):
        absent = f"{counted(len(unknown), 'label')} of {test.name}, such as '{unknown[0]}', not in {train.name}"
        return [f"{absent}. {decimals}."]
    problems = []
    for name in unknown[:5]:
        problems.append(
            f"the class '{name}' of {test.name} is not in {train.name}. {nearest_class(name, train.target.classes)}"
        )
    if len(unknown) > 5:
        problems.append(f"... and {len(unknown) - 5} more classes of {test.name}.")
    problems[-1] += f" {untrained_remedy(train, test)}"
    return problems


def untrained_remedy(train: Source, test: Source) -> str:
    """Return the remedy for classes of test without a sample in train."""
    return f"Put images of these classes into {train.name}, or take theirs out of {test.name}."


def nearest_class(name: str, classes: Iterable[str]) -> str:
    """Return a sentence about the class that a user may have meant, in the style of `did_you_mean`; '' without one."""
    for other in classes:
        if other.casefold() == name.casefold():
            return f"It differs from '{other}' only in case."
    return did_you_mean(name, classes)


def absent_from_test(train: Source, test: Source) -> str | None:
    """Return a sentence that names the classes with samples in train but not in test; None without any."""
    if not train.target.of_classes:
        return None
    there = set(_present(test))
    absent = [name for name in _present(train) if name not in there]
    if not absent:
        return None
    verb = "class is" if len(absent) == 1 else "classes are"
    return f"{len(absent)} {verb} in {train.name} but not in {test.name}: {some(absent, 5)}"


def not_listed(train: Source, test: Source) -> str | None:
    """Return a sentence that names the multi-label classes that test does not list; None without any."""
    listed = set(test.target.classes)
    unlisted = [name for name in train.target.classes if name not in listed]
    if not isinstance(test.target, MultiLabel) or not unlisted:
        return None
    return f"{test.name} does not list {some(unlisted, 5)}, so its images are ignored for these classes"


def _present(source: Source) -> list[str]:
    return [
        name
        for name, is_there in zip(source.target.classes, OfClasses.of(source.target).present(), strict=True)
        if is_there
    ]
