"""Checks of labels and splits for problems that make a score wrong or surprising."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from sslbench.data.checks.duplicates import Finding, by_level, exact_copies
from sslbench.data.clips import noun_of
from sslbench.data.labels import DECIMALS
from sslbench.data.maps.types import size_and_turn
from sslbench.data.source import Source
from sslbench.data.splits import absent_from_test, label_problems, untrained_remedy
from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.preprocessing import Preprocessing
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Images, OfClasses

FEW = 20
"""Minimum number of images for the check of labels that look like names."""


def check(train: Source, test: Source, *, labels: bool = True, copies: bool = True) -> list[Finding]:
    """Return all findings about two parts, errors first; works before and after `match_classes`.

    `labels`: check the classes; `copies`: look for duplicates, for which files not hashed yet are read.
    """
    empty = [part for part in (train, test) if not len(part)]
    if empty:
        return [Finding("error", f"{part.name} has no images") for part in empty]
    problems = [Finding("error", problem) for problem in (label_problems(train, test) if labels else ())]
    # The first images of pairs are in several of them by right; in both parts none is.
    findings = [*problems, *(exact_copies(train.every_image(), test.every_image()) if copies else ())]
    for part in (train, test):
        findings += _case(part) if part.target.labelled else []
    if labels and not problems:
        note = absent_from_test(train, test)
        findings += [Finding("note", note)] if note else []
        of_kind = next((check for kind, check in _LABEL_CHECKS.items() if isinstance(train.target, kind)), None)
        findings += [] if of_kind is None else of_kind(train, test)
    notes = _grouped((*train.notes, *test.notes))
    findings += [Finding("warning" if DECIMALS in note else "note", note) for note in notes]
    return by_level(findings)


def _grouped(notes: Sequence[str]) -> list[str]:
    """Return notes 'PLACE: TEXT' with the places of one text in one note.

    >>> _grouped(("a/: 3 empty", "b/: 3 empty", "b/: odd"))
    ['a/, b/: 3 empty', 'b/: odd']
    """
    places: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        place, _, text = note.partition(": ")
        places.setdefault(text, []).append(place)
    return [", ".join(found) + (f": {text}" if text else "") for text, found in places.items()]


def raise_on_errors(findings: Sequence[Finding]) -> None:
    """Raise if there are errors among the findings."""
    errors = [finding.message for finding in findings if finding.level == "error"]
    if errors:
        raise DataError("\n".join(errors))


def _named_counts(source: Source) -> dict[str, int]:
    return dict(zip(source.target.classes, OfClasses.of(source.target).counts().tolist(), strict=True))


def _single_classes(train: Source, test: Source) -> list[Finding]:
    counts, in_test = _named_counts(train), _named_counts(test)
    there = {name: n for name, n in counts.items() if n}
    findings = []
    if len(there) == 1:
        name = next(iter(there))
        message = f"{train.name} has one class only, '{name}': nothing can be distinguished"
        # Probably the folder above the one of classes was given, so that the latter became the only class.
        inside = {tuple(sample.split("/")[:2]) if sample.count("/") > 1 else () for sample in train.ids}
        if len(inside) > 1 and {parts[:1] for parts in inside} == {(name,)}:
            folders = some(sorted(parts[1] for parts in inside))
            message += f". '{name}' has folders inside ({folders}): give that folder"
        findings.append(Finding("error", message))
    untrained = [name for name, n in in_test.items() if n and not counts.get(name) and name in counts]
    if untrained:
        message = f"{test.name} has {noun_of(test)}s of classes that are not in {train.name}: {some(untrained, 5)}"
        findings.append(Finding("error", f"{message}. {untrained_remedy(train, test)}"))
    singletons = [name for name, n in there.items() if n == 1]
    if len(singletons) == len(there) > 1:
        findings.append(Finding("warning", f"{train.name} has one {noun_of(train)} per class"))
    elif singletons:
        findings.append(Finding("note", f"{train.name} has one {noun_of(train)} only of: {some(singletons, 5)}"))
    findings += _names_as_labels(train, len(there))
    leads = "balanced accuracy leads; benchmarks and presets keep their metric"
    return [
        *findings,
        *(dataclasses.replace(each, message=f"{each.message}: {leads}") for each in _imbalance(train, there)),
    ]


def _names_as_labels(source: Source, classes: int) -> list[Finding]:
    """Return a warning if the labels look like ids or file names."""
    if len(source) < FEW:
        return []
    files = [sample_id.rpartition("/")[2] for sample_id in source.ids]
    same = sum(source.target.text(i) in (file, file.rpartition(".")[0]) for i, file in enumerate(files))
    if same > len(source) / 2:
        message = f"{source.name}: {same:,} of {len(source):,} labels equal the file's name: no class can be learnt"
        return [Finding("warning", message)]
    if classes > len(source) / 2 and not any(DECIMALS in note for note in source.notes):
        message = f"{source.name} has {classes:,} classes for {len(source):,} {noun_of(source)}s"
        return [Finding("warning", f"{message}: they look like ids, not classes")]
    return []


def _imbalance(source: Source, counts: dict[str, int]) -> list[Finding]:
    if not OfClasses.of(source.target).is_imbalanced():
        return []
    largest, smallest = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    larger = f"{counts[largest]:,} {noun_of(source)}s of '{largest}'"
    message = f"{source.name} is imbalanced: {larger}, {counts[smallest]:,} of '{smallest}'"
    return [Finding("note", message)]


def _multi_classes(train: Source, test: Source) -> list[Finding]:
    counts, in_test = _named_counts(train), _named_counts(test)
    if not any(counts.values()):
        return [Finding("error", f"{train.name} has no image of any class")]
    findings = []
    untrained = [name for name, n in in_test.items() if n and not counts.get(name)]
    if untrained:
        message = (
            f"no image in {train.name} for classes that {test.name} has: {some(untrained, 5)}; they cannot be learnt"
        )
        findings.append(Finding("warning", message))
    nowhere = [name for name, n in counts.items() if not n and not in_test.get(name)]
    if nowhere:
        findings.append(Finding("note", f"classes without an image in either part, not scored: {some(nowhere, 5)}"))
    there = {name: n for name, n in counts.items() if n}
    everywhere = [name for name, n in there.items() if n == len(train)]
    if everywhere:
        findings.append(Finding("warning", f"every image of {train.name} has the class: {some(everywhere, 5)}"))
    return findings + _imbalance(train, there)


def _case(source: Source) -> list[Finding]:
    seen, pairs = dict[str, str](), list[str]()
    for name in source.target.classes:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            pairs.append(f"'{other}' and '{name}'")
    if not pairs:
        return []
    return [Finding("warning", f"{source.name} has classes that differ only in case: {some(pairs, 5)}")]


def _numbers(train: Source, test: Source) -> list[Finding]:
    """Return findings about constant targets: they cannot be predicted, and R2 is undefined if constant in test."""
    findings = []
    levels: tuple[tuple[Literal["error", "warning"], Source], ...] = (("error", train), ("warning", test))
    for level, part in levels:
        columns = zip(part.target.classes, part.target.values.T, strict=True)
        same = [name for name, column in columns if np.ptp(column) == 0]
        if same:
            findings.append(Finding(level, f"{part.name}: every image has the same value of {some(same)}"))
    return findings


# None of other kinds: `sslbench check-data` reads all maps and boxes, pairs and videos are checked on opening.
_LABEL_CHECKS = {Classes: _single_classes, MultiLabel: _multi_classes, Numbers: _numbers}


_LOOKED_AT = 9
_FACTOR = 2


def enlargement(images: Images, preprocessing: Preprocessing) -> str | None:
    """Return a warning if a default resize more than doubles the images; None otherwise.

    A network that was trained on 32 pixels scores far lower, and many times slower, on the same images of 224. Sizes
    that weights, a preset or a flag name are wanted. Only the heads of a few files are read.
    """
    is_default = "default" in preprocessing.origin and "resize" not in preprocessing.origin
    if not is_default or not isinstance(preprocessing.resize, int):
        return None
    indices = np.unique(np.linspace(0, max(len(images) - 1, 0), min(len(images), _LOOKED_AT)).astype(int))
    sizes = [size for index in indices if (size := size_and_turn(images, int(index))[0])]
    if not sizes:
        return None
    height, width = (int(side) for side in np.median(sizes, axis=0))
    side = min(height, width)
    if preprocessing.resize <= _FACTOR * side:
        return None
    return (
        f"the images ({width} x {height} pixels) are enlarged to {preprocessing.resize}, a default; for a network "
        f"trained on such images give --resize {side} --crop {side}"
    )
