"""Duplicate images: exact ones by the digest of their content, near ones by vectors that describe them."""

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
    """Return findings about images that are in both parts, or repeated in one; files not hashed yet are read."""
    in_train, in_test = _contents(train), _contents(test)
    overlap = _overlap(train, test, _shared(in_train, in_test), len(in_test[0]))
    return [*overlap, *_duplicates(train, in_train), *_duplicates(test, in_test)]


def exact_pairs(train: Source, test: Source) -> list[tuple[int, int]]:
    """Return (position in test, first position in train) of every test image whose content is in train too."""
    return _shared(_contents(train), _contents(test))


def _contents(source: Source) -> _Contents:
    """Return the positions and digests (as two 64-bit numbers) of the images with content."""
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
        message = f"all {len(test):,} images of {test.name} are in {train.name} too: scores would measure memorisation"
        return [Finding("error", message, leak=True)]
    pairs = [f"{test.images.path(i)} = {train.images.path(j)}" for i, j in shared[:3]]
    message = f"{len(shared):,} of {counted(len(test), 'image')} of {test.name} also in {train.name}: {some(pairs, 5)}"
    if len(shared) > len(pairs):
        message += f" and {len(shared) - len(pairs):,} more"
    return [Finding("warning", message, leak=True)]


def _duplicates(source: Source, contents: _Contents) -> list[Finding]:
    positions, keys = contents
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if not len(same):
        return []
    values = source.target.values
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
        label = f" ({source.target.text(index)})" if source.target.labelled else ""
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
    """Find near duplicates across the parts and within each, without the exact ones; see `near.near_pairs`.

    Args:
        train: N images.
        test: M images.
        vectors: (N, D) and (M, D), descriptors of the images.
        threshold: minimum cosine of the whitened vectors of near duplicates.
        by: name of the descriptors in messages.

    Returns:
        The findings, and the pairs of rows in test and train, including exact duplicates.
    """
    in_train, in_test = vectors
    near = near_pairs(in_test, in_train, threshold=threshold)
    if near.problem:
        return [Finding("note", f"near duplicates cannot be found by {by}: {near.problem}")], ()
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
    """Return every image as side x side RGB pixels, which another encoding or size hardly changes.

    Args:
        source: N images, which are all decoded.
        workers: number of decoding processes.
        reading: the decoder and its limit.
        side: in pixels.

    Returns:
        (N, side * side * 3); NaN for an unreadable image.
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
    """Test image and the train image that it may duplicate.

    Attributes:
        test: id of the test image.
        train: id of the train image.
        how: 'exact': equal content; 'near': similar vectors.
        cosine: of the whitened vectors; 1 for equal content.
        test_path: path of the test image; '' if unknown.
        train_path: path of the train image.
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
    """Return one pair per suspected test image, in order of the test ids; exact duplicates take precedence.

    Args:
        train: N images.
        test: M images.
        near: (id in test, id in train, cosine) of near duplicates.
        exact: look for equal content too; files not hashed yet are read.
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
    """Return pairs of rows as (test id, train id, cosine)."""
    return [(test_ids[pair.first], train_ids[pair.second], pair.cosine) for pair in pairs]


def as_csv(found: Iterable[Suspect]) -> str:
    """Return the pairs as CSV, one line each."""
    return csv_text([HEADER, *found])
