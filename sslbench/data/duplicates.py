"""Images that are there more than once: exactly, by their content's hash, and nearly, by vectors that describe them."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sslbench.data import loader
from sslbench.data.decoder import Reading
from sslbench.data.findings import Finding
from sslbench.data.images import EMPTY_DIGEST, UNREADABLE_DIGEST
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.preprocessing import Preprocessing

_Contents = tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]


def exact_copies(train: Source, test: Source) -> list[Finding]:
    """What is in both parts, and what is in one of them more than once; every file is read that was not hashed yet."""
    in_train, in_test = _contents(train), _contents(test)
    overlap = _overlap(train, in_train, test, in_test)
    return [*overlap, *_duplicates(train, in_train), *_duplicates(test, in_test)]


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


class Pair(NamedTuple):
    """Two images that look alike: their rows in the two arrays, and the cosine of their vectors."""

    first: int
    second: int
    cosine: float


def near_pairs(
    first: npt.NDArray[np.floating],
    second: npt.NDArray[np.floating] | None,
    *,
    threshold: float,
    block: int = 2048,
) -> list[Pair]:
    """For every row of `first` the most similar row of `second`, where the cosine of the centred vectors is high.

    The mean of the rows is taken off first: features behind a ReLU point all in nearly the same direction. Blocks of
    rows are compared by one matrix product each, so memory does not grow with the square of the number of images.

    Args:
        first: (N, D), may be memory-mapped.
        second: (M, D); None compares `first` with itself, every pair once and no row with itself.
        threshold: cosine from which on a pair counts.
        block: rows that are compared at once.

    Returns:
        At most one pair per row of `first`, in order of its rows.
    """
    other = first if second is None else second
    centre = (_sum(first, block) + (0 if second is None else _sum(second, block))) / (
        len(first) + (0 if second is None else len(second))
    )
    pairs: list[Pair] = []
    for start in range(0, len(first), block):
        rows = _unit(first[start : start + block], centre)
        best = np.full(len(rows), -np.inf, dtype=np.float32)
        place = np.zeros(len(rows), dtype=np.int64)
        # With itself: only rows further down, so that a pair is found once.
        for at in range(start if second is None else 0, len(other), block):
            cosines = rows @ _unit(other[at : at + block], centre).T
            if second is None and at == start:
                cosines[np.tril_indices(len(rows))] = -np.inf
            top = cosines.argmax(axis=1)
            value = cosines[np.arange(len(rows)), top]
            better = value > best
            best[better], place[better] = value[better], at + top[better]
        hits = np.flatnonzero(best >= threshold)
        pairs += [Pair(start + i, int(place[i]), float(best[i])) for i in hits.tolist()]
    return pairs


def _sum(vectors: npt.NDArray[np.floating], block: int) -> npt.NDArray[np.float64]:
    total = np.zeros(vectors.shape[1], dtype=np.float64)
    for start in range(0, len(vectors), block):
        total += vectors[start : start + block].sum(axis=0, dtype=np.float64)
    return total


def _unit(vectors: npt.NDArray[np.floating], centre: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Centred, of length 1; a vector that is the mean itself stays zero and is similar to nothing."""
    centred = np.asarray(vectors, dtype=np.float64) - centre
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    flat = lengths < 1e-6 * max(float(np.linalg.norm(centre)), 1e-30)
    unit: npt.NDArray[np.float32] = (centred / np.where(flat, np.inf, lengths)).astype(np.float32)
    return unit


def near_copies(
    train: Source,
    test: Source,
    vectors: tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]],
    *,
    threshold: float,
    by: str,
) -> list[Finding]:
    """What looks nearly alike in both parts or in one of them, and is no exact copy.

    Args:
        train: N images.
        test: M images.
        vectors: (N, D) and (M, D), what describes them.
        threshold: cosine from which on two images count as alike.
        by: what the vectors are, for the message.
    """
    in_train, in_test = vectors
    keys = [part.images.digests() for part in (train, test)]
    across = [p for p in near_pairs(in_test, in_train, threshold=threshold) if (keys[1][p[0]] != keys[0][p[1]]).any()]
    findings = []
    if across:
        shown = [_alike(test, train, pair) for pair in _closest(across)]
        message = f"{counted(len(across), 'image')} of {test.name} nearly the same as one of {train.name} by {by}: "
        findings.append(Finding("warning", message + _listed(shown, len(across))))
    for part, rows, key in zip((train, test), vectors, keys, strict=True):
        inside = [p for p in near_pairs(rows, None, threshold=threshold) if (key[p[0]] != key[p[1]]).any()]
        if inside:
            shown = [_alike(part, part, pair) for pair in _closest(inside)]
            message = f"{part.name}: {counted(len(inside), 'image')} nearly the same as another by {by}: "
            findings.append(Finding("note", message + _listed(shown, len(inside))))
    return findings


def _closest(pairs: list[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: -pair.cosine)[:3]


def _alike(first: Source, second: Source, pair: Pair) -> str:
    return f"{first.images.path(pair.first)} ~ {second.images.path(pair.second)} ({pair.cosine:.3f})"


def _listed(shown: list[str], n: int) -> str:
    return some(shown, 5) + (f" and {n - len(shown):,} more" if n > len(shown) else "")


def small_pictures(source: Source, *, workers: int, reading: Reading, side: int = 16) -> npt.NDArray[np.float32]:
    """Every image as side x side RGB pixels: what still looks alike after another encoding or another size.

    Args:
        source: N images; all are decoded.
        workers: processes that decode.
        reading: the decoder and its limit.
        side: pixels.

    Returns:
        (N, side * side * 3); an image that cannot be read is the mean of the others, and so like no other.
    """
    preprocessing = Preprocessing(
        resize=(side, side), crop=None, decoder=reading.decoder or ("reference",), max_pixels=reading.max_pixels
    )
    vectors = np.zeros((len(source), side * side * 3), dtype=np.float32)
    missing = np.zeros(len(source), dtype=np.bool_)
    for batch in loader.batches(source, np.arange(len(source)), preprocessing, batch_size=64, workers=workers):
        if len(batch.indices):
            vectors[batch.indices] = batch.images.reshape(len(batch.indices), -1).float().numpy()
        missing[[index for index, _, _ in batch.unreadable]] = True
    if missing.any() and not missing.all():
        vectors[missing] = vectors[~missing].mean(axis=0)
    return vectors
