"""Images that are there more than once: exactly, by their content's hash, and nearly, by vectors that describe them."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sslbench.data.checks.findings import Finding
from sslbench.data.checks.near import Pair, near_pairs
from sslbench.data.decode.handlers import Reading
from sslbench.data.images import EMPTY_DIGEST, UNREADABLE_DIGEST
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.preprocessing import Preprocessing
from sslbench.text import csv_text

_Contents = tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]


def exact_copies(train: Source, test: Source) -> list[Finding]:
    """What is in both parts, and what is in one of them more than once; every file is read that was not hashed yet."""
    in_train, in_test = _contents(train), _contents(test)
    overlap = _overlap(train, test, _shared(in_train, in_test), len(in_test[0]))
    return [*overlap, *_duplicates(train, in_train), *_duplicates(test, in_test)]


def exact_pairs(train: Source, test: Source) -> list[tuple[int, int]]:
    """(position in test, first position in train) of every image of test whose content is in train too."""
    return _shared(_contents(train), _contents(test))


def _contents(source: Source) -> _Contents:
    """Positions and digests of the images that have content, a digest as one value of two 64-bit numbers."""
    digests = source.images.digests()
    keys = np.ascontiguousarray(digests).view([("a", "<u8"), ("b", "<u8")]).reshape(-1)
    nothing = np.frombuffer(EMPTY_DIGEST + UNREADABLE_DIGEST, dtype=keys.dtype)
    kept = np.flatnonzero((keys != nothing[0]) & (keys != nothing[1]))
    return kept, keys[kept]


def _shared(in_train: _Contents, in_test: _Contents) -> list[tuple[int, int]]:
    (train_rows, train_keys), (test_rows, test_keys) = in_train, in_test
    unique, first = np.unique(train_keys, return_index=True)
    if not len(unique) or not len(test_keys):
        return []
    place = np.minimum(np.searchsorted(unique, test_keys), len(unique) - 1)
    shared = np.flatnonzero(unique[place] == test_keys)
    return list(zip(test_rows[shared].tolist(), train_rows[first[place[shared]]].tolist(), strict=True))


def _overlap(train: Source, test: Source, shared: list[tuple[int, int]], readable: int) -> list[Finding]:
    if not shared:
        return []
    if len(shared) == readable:
        message = f"all {len(test):,} images of {test.name} are in {train.name} too: a score would be from memory"
        return [Finding("error", message)]
    pairs = [f"{test.images.path(i)} = {train.images.path(j)}" for i, j in shared[:3]]
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


def near_copies(
    train: Source,
    test: Source,
    vectors: tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]],
    *,
    threshold: float,
    by: str,
) -> tuple[list[Finding], tuple[Pair, ...]]:
    """What looks nearly alike in both parts or in one of them, and is no exact copy; see `near.near_pairs`.

    Args:
        train: N images.
        test: M images.
        vectors: (N, D) and (M, D), what describes them.
        threshold: cosine of the whitened vectors from which on two images may be copies.
        by: what the vectors are, for the message.

    Returns:
        What is worth saying, and the pairs of rows in test and train, exact copies among them.
    """
    in_train, in_test = vectors
    near = near_pairs(in_test, in_train, threshold=threshold)
    if near.problem:
        return [Finding("note", f"images nearly the same cannot be told by {by}: {near.problem}")], ()
    keys = [part.images.digests() for part in (train, test)]
    across = [p for p in near.pairs if (keys[1][p.first] != keys[0][p.second]).any()]
    findings = []
    if across:
        shown = [_alike(test, train, pair) for pair in _closest(across)]
        message = f"{counted(len(across), 'image')} of {test.name} nearly the same as one of {train.name} by {by}: "
        findings.append(Finding("warning", message + _listed(shown, len(across))))
    for part, rows, key in zip((train, test), vectors, keys, strict=True):
        within = near_pairs(rows, None, threshold=threshold).pairs
        inside = [p for p in within if (key[p.first] != key[p.second]).any()]
        if inside:
            shown = [_alike(part, part, pair) for pair in _closest(inside)]
            message = f"{part.name}: {counted(len(inside), 'image')} nearly the same as another by {by}: "
            findings.append(Finding("note", message + _listed(shown, len(inside))))
    return findings, near.pairs


def _closest(pairs: list[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: -pair.cosine)[:3]


def _alike(first: Source, second: Source, pair: Pair) -> str:
    return f"{first.images.path(pair.first)} ~ {second.images.path(pair.second)} ({pair.cosine:.3f})"


def _listed(shown: list[str], n: int) -> str:
    return some(shown, 5) + (f" and {n - len(shown):,} more" if n > len(shown) else "")


def small_pictures(source: Source, *, workers: int, reading: Reading, side: int = 16) -> npt.NDArray[np.float16]:
    """Every image as side x side RGB pixels: what still looks alike after another encoding or another size.

    Args:
        source: N images; all are decoded.
        workers: processes that decode.
        reading: the decoder and its limit.
        side: pixels.

    Returns:
        (N, side * side * 3); NaN for an image that cannot be read.
    """
    preprocessing = Preprocessing(
        resize=(side, side), crop=None, decoder=reading.decoder or ("reference",), max_pixels=reading.max_pixels
    )
    vectors = np.full((len(source), side * side * 3), np.nan, dtype=np.float16)
    for batch in loader.batches(source, np.arange(len(source)), preprocessing, batch_size=64, workers=workers):
        if len(batch.indices):
            vectors[batch.indices] = batch.images.reshape(len(batch.indices), -1).float().numpy()
    return vectors


HEADER = ("test", "train", "how", "cosine", "test_path", "train_path")


class Suspect(NamedTuple):
    """One image of test and the image of train that it may be a copy of.

    Attributes:
        test: its id.
        train: the other's id.
        how: 'exact': the same content; 'near': vectors that describe them are alike.
        cosine: of those vectors, whitened; 1 for the same content.
        test_path: where it lies; empty if that is not known.
        train_path: where the other lies.
    """

    test: str
    train: str
    how: Literal["exact", "near"]
    cosine: float
    test_path: str = ""
    train_path: str = ""


def suspects(
    train: Source, test: Source, near: Iterable[tuple[str, str, float]], *, exact: bool = True
) -> list[Suspect]:
    """All pairs, in order of the images of test; each of them once, and by its content if that is the same.

    Args:
        train: N images.
        test: M images.
        near: (id in test, id in train, cosine) of images that look alike.
        exact: look for the same content too; every file is read that was not hashed yet.
    """
    found = {}
    in_test, in_train = ({name: i for i, name in enumerate(part.ids)} for part in (test, train))
    for of_test, of_train, cosine in near:
        paths = test.images.path(in_test[of_test]), train.images.path(in_train[of_train])
        found[of_test] = Suspect(of_test, of_train, "near", round(cosine, 4), *paths)
    for i, j in exact_pairs(train, test) if exact else ():
        found[test.ids[i]] = Suspect(test.ids[i], train.ids[j], "exact", 1.0, test.images.path(i), train.images.path(j))
    return [found[name] for name in sorted(found)]


def named(pairs: Iterable[Pair], test_ids: Sequence[str], train_ids: Sequence[str]) -> list[tuple[str, str, float]]:
    """Pairs of rows as pairs of ids: test first."""
    return [(test_ids[pair.first], train_ids[pair.second], pair.cosine) for pair in pairs]


def as_csv(found: Iterable[Suspect]) -> str:
    """A table with one line per pair."""
    return csv_text([HEADER, *found])
