"""Checks of labels and splits before anything is scored: what would make a number wrong, or surprising."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.data.images import EMPTY_DIGEST, UNREADABLE_DIGEST
from sslbench.data.labels import class_counts
from sslbench.data.source import Source
from sslbench.data.splits import absent_from_test, label_problems
from sslbench.data.wording import counted, some
from sslbench.errors import DataError

_Contents = tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]

IMBALANCE = 10
"""From this ratio of the largest to the smallest class on, it is worth a note."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was found: an error stops the evaluation, a warning may make its number misleading."""

    level: Literal["error", "warning", "note"]
    message: str


def check(train: Source, test: Source) -> list[Finding]:
    """Everything found about two parts, errors first; works before and after `match_classes`.

    Args:
        train: to fit on.
        test: to score on.
    """
    empty = [part for part in (train, test) if not len(part)]
    if empty:
        return [Finding("error", f"{part.name} has no images") for part in empty]
    problems = [Finding("error", problem) for problem in label_problems(train, test)]
    in_train, in_test = _contents(train), _contents(test)
    findings = [*problems, *_overlap(train, in_train, test, in_test)]
    findings += [*_duplicates(train, in_train), *_duplicates(test, in_test)]
    for part in (train, test):
        findings += [*_case(part)] if part.labels.kind != "none" else []
    if not problems:
        findings += _classes(train, test)
        findings += _multi_classes(train, test) if train.labels.kind == "multi" else _single_classes(train, test)
    findings += [Finding("note", note) for note in dict.fromkeys((*train.notes, *test.notes))]
    unique = dict.fromkeys(findings)
    return sorted(unique, key=lambda finding: ("error", "warning", "note").index(finding.level))


def raise_on_errors(findings: Sequence[Finding]) -> None:
    """Stop if there is an error among the findings.

    Raises:
        DataError: with all of them, one per line.
    """
    errors = [finding.message for finding in findings if finding.level == "error"]
    if errors:
        raise DataError("\n".join(errors))


def _classes(train: Source, test: Source) -> list[Finding]:
    note = absent_from_test(train, test)
    return [Finding("note", note)] if note else []


def _named_counts(source: Source) -> dict[str, int]:
    return dict(zip(source.labels.classes, class_counts(source.labels).tolist(), strict=True))


def _single_classes(train: Source, test: Source) -> list[Finding]:
    counts, in_test = _named_counts(train), _named_counts(test)
    there = {name: n for name, n in counts.items() if n}
    findings = []
    if len(there) == 1:
        name = next(iter(there))
        message = f"{train.name} has one class, '{name}': with nothing to tell apart there is nothing to measure"
        findings.append(Finding("error", message))
    untrained = [name for name, n in in_test.items() if n and not counts.get(name) and name in counts]
    if untrained:
        message = f"{test.name} has images of classes without an image in {train.name}: {some(untrained, 5)}"
        findings.append(Finding("error", message))
    alone = [name for name, n in there.items() if n == 1]
    if len(alone) == len(there) > 1:
        findings.append(Finding("warning", f"{train.name} has one image per class"))
    elif alone:
        findings.append(Finding("note", f"{train.name} has one image only of: {some(alone, 5)}"))
    findings += _imbalance(train, there)
    return findings


def _imbalance(source: Source, counts: dict[str, int]) -> list[Finding]:
    if not counts or max(counts.values()) < IMBALANCE * min(counts.values()):
        return []
    largest, smallest = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    message = (
        f"{source.name} is imbalanced: {counts[largest]:,} images of '{largest}', {counts[smallest]:,} of "
        f"'{smallest}'; look at the mean per-class accuracy too"
    )
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
    seen: dict[str, str] = {}
    pairs = []
    for name in source.labels.classes:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            pairs.append(f"'{other}' and '{name}'")
    if not pairs:
        return []
    return [Finding("warning", f"{source.name} has classes that differ only in case: {some(pairs, 5)}")]


def _contents(source: Source) -> _Contents:
    """Positions and digests of the images that have content, a digest as one value of two 64-bit numbers."""
    digests = source.images.digests()
    keys = np.ascontiguousarray(digests).view([("a", "<u8"), ("b", "<u8")]).reshape(-1)
    nothing = np.frombuffer(EMPTY_DIGEST + UNREADABLE_DIGEST, dtype=keys.dtype)
    kept = np.flatnonzero((keys != nothing[0]) & (keys != nothing[1]))
    return kept, keys[kept]


def _overlap(train: Source, in_train: _Contents, test: Source, in_test: _Contents) -> list[Finding]:
    (train_rows, train_keys), (test_rows, test_keys) = in_train, in_test
    unique, first = np.unique(train_keys, return_index=True)
    if not len(unique) or not len(test_keys):
        return []
    place = np.minimum(np.searchsorted(unique, test_keys), len(unique) - 1)
    shared = np.flatnonzero(unique[place] == test_keys)
    if not len(shared):
        return []
    if len(shared) == len(test_keys):
        message = f"all {len(test):,} images of {test.name} are in {train.name} too: a score would be from memory"
        return [Finding("error", message)]
    pairs = [
        f"{test.images.path(test_rows[i])} = {train.images.path(train_rows[first[place[i]]])}"
        for i in shared[:3].tolist()
    ]
    message = f"{len(shared):,} of {counted(len(test), 'image')} of {test.name} also in {train.name}: {some(pairs, 5)}"
    if len(shared) > len(pairs):
        message += f" and {len(shared) - len(pairs):,} more"
    return [Finding("warning", message)]


def _duplicates(source: Source, contents: _Contents) -> list[Finding]:
    positions, keys = contents
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if not len(same):
        return []
    values = source.labels.values
    pairs = [(int(positions[order[i]]), int(positions[order[i + 1]])) for i in same]
    differ = [pair for pair in pairs if not np.array_equal(values[pair[0]], values[pair[1]])]
    findings = [
        Finding("note", f"{source.name}: {counted(len(pairs), 'image')} more than once: {_pairs(source, pairs)}")
    ]
    if differ:
        message = (
            f"{source.name}: {counted(len(differ), 'copy')} of an image with another label: {_pairs(source, differ)}"
        )
        findings.append(Finding("warning", message))
    return findings


def _pairs(source: Source, pairs: list[tuple[int, int]]) -> str:
    def show(index: int) -> str:
        label = f" ({source.labels.text(index)})" if source.labels.kind != "none" else ""
        return source.images.path(index) + label

    named = [f"{show(a)} = {show(b)}" for a, b in pairs[:3]]
    return some(named, 5) + (f" and {len(pairs) - 3:,} more" if len(pairs) > 3 else "")
