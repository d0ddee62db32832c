"""Duplicate images: exact ones by the digest of their content, near ones by vectors that describe them."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sslbench.data.clips import noun_of
from sslbench.data.decode.handlers import Reading
from sslbench.data.images import EMPTY_DIGEST, UNREADABLE_DIGEST
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.preprocessing import Preprocessing
from sslbench.text import csv_text

THRESHOLD = 0.85
"""Minimum cosine of the whitened vectors of near duplicates."""

RATIO = 0.5
"""Maximum ratio of the distance of a duplicate to that of the nearest other image."""

PLAIN = 0.8
"""Minimum cosine of the centred, not whitened vectors of near duplicates."""

_NEIGHBOURS = 8
_COMPONENTS = 64
_ROWS_PER_COMPONENT = 4
_SAMPLE = 10_000
_SAMPLE_VALUES = 20_000_000
WIDEST = _SAMPLE_VALUES // 1000
"""Columns of the vectors that are compared; longer ones, features of places, are folded to as many."""
_FLAT = 1e-6  # relative standard deviation below which a component is rounding error
_BLOCK = (512, 32_768)
_CHUNK = 8192
_CHUNK_BYTES = 1 << 27


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        level: an error stops the evaluation, a warning means that its number may mislead.
        message: one sentence for the user.
        leak: test samples lie in train.
    """

    level: Literal["error", "warning", "note"]
    message: str
    leak: bool = False


def by_level(findings: list[Finding]) -> list[Finding]:
    """Return the distinct findings, errors first and notes last."""
    return sorted(dict.fromkeys(findings), key=lambda finding: ("error", "warning", "note").index(finding.level))


class Pair(NamedTuple):
    """Near duplicates: their rows in the two arrays, and the cosine of their whitened vectors."""

    first: int
    second: int
    cosine: float


@dataclasses.dataclass(frozen=True)
class NearDuplicates:
    """Result of a search for near duplicates.

    Attributes:
        pairs: at most one per row of the first array, in its order.
        problem: reason of a failed search; otherwise empty.
    """

    pairs: tuple[Pair, ...] = ()
    problem: str = ""


def near_pairs(
    first: npt.NDArray[np.floating],
    second: npt.NDArray[np.floating] | None,
    *,
    threshold: float = THRESHOLD,
    device: str = "cpu",
) -> NearDuplicates:
    """Find for every row of `first` the row of `second` that it may duplicate.

    The vectors are whitened: reduced to their 64 principal components at most, each divided by its standard deviation.
    Properties of most images (a bright sky, features behind a ReLU) then have no more weight than rare ones. On
    8,068 train and 1,017 test images of CIFAR-10, as 8 x 8 pixels, ten test images that were resized and encoded again
    as JPEG had at least 0.99 with their copies; five more pairs were found, which show the same picture twice. Features
    that know classes tell copies less well: those of a supervised ResNet-20 found none of the ten.

    The nearest row counts as a duplicate if its cosine reaches the threshold and its distance is at most half of that
    of the nearest row that does not duplicate it in turn (cf. Lowe 2004, section 7.1), since whole classes or
    collections may be similar. Rows whose eight nearest ones are all similar are left undecided. Both must be
    similar without whitening too, since the components of a few images cover a part of each only.

    Vectors of more than 20,000 numbers are folded first: numbers with the same remainder of their place by 20,000 are
    added with random signs, which changes cosines by about 0.01 (Charikar et al. 2002, count sketch). Memory is
    bounded: 1 GB, 260 bytes per row, and one row.

    Args:
        first: (N, D), may be memory-mapped; rows with non-finite values match nothing.
        second: (M, D); None compares `first` with itself, every pair once and no row with itself.
        threshold: minimum cosine of a pair.
        device: torch device of the comparison.

    Returns:
        The pairs; or the problem: all vectors are equal, or most rows are crowded.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> train = rng.normal(size=(200, 16))
        >>> test = rng.normal(size=(5, 16))
        >>> test[3] = train[7]
        >>> [(pair.first, pair.second) for pair in near_pairs(test, train).pairs]
        [(3, 7)]
    """
    arrays = [first] if second is None else [first, second]
    fitted = _whitening(arrays)
    if fitted is None:
        return NearDuplicates(problem="their vectors are all equal or not finite")
    rows = _whitened(first, *fitted)
    other = rows if second is None else _whitened(second, *fitted)
    if not len(rows) or len(other) < (2 if second is None else 1):
        return NearDuplicates()
    cosines, places = _nearest(rows, other, itself=second is None, device=device)
    hits, crowded = _copies(cosines, places, other, threshold)
    if crowded.sum() > 0.5 * len(rows):
        problem = f"{crowded.mean():.0%} of the images are similar to all of their {_NEIGHBOURS} nearest neighbours"
        return NearDuplicates(problem=problem)
    chosen = np.flatnonzero(hits)
    chosen = chosen[
        _similar_unwhitened(first, first if second is None else second, chosen, places[chosen, 0], fitted[0])
    ]
    found = [Pair(row, int(places[row, 0]), float(cosines[row, 0])) for row in chosen.tolist()]
    if second is None:
        once = {(min(pair[:2]), max(pair[:2])): pair.cosine for pair in found}
        found = [Pair(*both, cosine) for both, cosine in sorted(once.items())]
    return NearDuplicates(tuple(found))


def _blocks(
    array: npt.NDArray[np.floating], rows: npt.NDArray[np.int64] | None = None
) -> Iterator[tuple[slice, npt.NDArray[np.float64]]]:
    """Iterate over some or all rows of an array: places in `rows`, and float64 (B, WIDEST at most), folded if wider."""
    number, width = len(array) if rows is None else len(rows), array.shape[1]
    size = max(1, min(_CHUNK, _CHUNK_BYTES // (8 * max(width, 1))))
    # The same signs in every call: both arrays have to be folded alike.
    drawn = np.random.default_rng(0).integers(0, 2, width if width > WIDEST else 0, dtype=np.int8)
    signs = np.asarray(drawn, np.float64) * 2 - 1
    for start in range(0, number, size):
        part = slice(start, min(start + size, number))
        block = array[part] if rows is None else array[rows[part]]
        if not len(signs):
            yield part, np.asarray(block, np.float64)
            continue
        folded = np.zeros((len(block), WIDEST))
        for at in range(0, width, WIDEST):
            piece = block[:, at : at + WIDEST]
            folded[:, : piece.shape[1]] += piece * signs[at : at + WIDEST]
        yield part, folded


def memory_of(rows: int, width: int) -> int:
    """Return the bytes that a search among so many vectors of a width takes, without the vectors.

    Example:
        >>> memory_of(1000, 20_000) > 50 * memory_of(1000, 100), memory_of(1000, 10**9) < 2 * 10**9
        (True, True)
    """
    columns = min(width, WIDEST)
    sample = min(rows, _SAMPLE, max(1000, _SAMPLE_VALUES // max(columns, 1)))
    chunk = min(8 * columns * min(rows, _CHUNK), _CHUNK_BYTES)
    return 4 * 8 * sample * columns + 3 * chunk + 8 * _COMPONENTS * rows


def _similar_unwhitened(
    first: npt.NDArray[np.floating],
    second: npt.NDArray[np.floating],
    rows: npt.NDArray[np.int64],
    others: npt.NDArray[np.int64],
    centre: npt.NDArray[np.float64],
) -> npt.NDArray[np.bool_]:
    """Return the mask of the pairs with a high cosine before whitening."""
    alike = np.zeros(len(rows), dtype=np.bool_)
    for (part, a), (_, b) in zip(_blocks(first, rows), _blocks(second, others), strict=True):
        a, b = a - centre, b - centre
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        alike[part] = (a * b).sum(axis=1) >= PLAIN * lengths
    return alike


_Whitening = tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]


def _whitening(arrays: list[npt.NDArray[np.floating]]) -> _Whitening | None:
    """Return the centre (D,) and the whitening projection (D, K) of a sample of the rows; None if nothing varies."""
    total, dimension = sum(map(len, arrays)), min(arrays[0].shape[1], WIDEST)
    wanted = min(_SAMPLE, max(1000, _SAMPLE_VALUES // max(dimension, 1)))
    share = min(1.0, wanted / max(total, 1))
    parts = [
        block
        for array in arrays
        if len(array)
        for _, block in _blocks(array, np.linspace(0, len(array) - 1, max(1, int(len(array) * share))).astype(np.int64))
    ]
    sample = np.concatenate(parts) if parts else np.zeros((0, dimension))
    sample = sample[np.isfinite(sample).all(axis=1)]
    # With few images more components would only spread noise.
    components = min(_COMPONENTS, dimension, max(2, len(sample) // _ROWS_PER_COMPONENT), len(sample))
    if components < 1:
        return None
    centre = sample.mean(axis=0)
    # Randomised (Halko, Martinsson & Tropp 2011) with a fixed seed. By torch: to import scikit-learn for it would take
    # a second of every evaluation. svd_lowrank draws from the global generator, on whose state others rely.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # Ten more than wanted, the oversampling that Halko et al. advise.
        spare = min(components + 10, *sample.shape)
        _, values, vectors = torch.svd_lowrank(torch.from_numpy(sample - centre), spare, niter=4)
    spread, directions = values[:components].numpy(), vectors[:, :components].numpy()
    # Beside a large mean, the rounding of x - centre looks like a component, too.
    kept = spread > max(_FLAT * spread[0], _FLAT * float(np.linalg.norm(centre)))
    if not kept.any():
        return None
    scale = np.sqrt(len(sample)) / spread[kept]
    return centre, (directions[:, kept] * scale).astype(np.float32)


def _whitened(
    vectors: npt.NDArray[np.floating], centre: npt.NDArray[np.float64], projection: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return the whitened vectors, (N, K) of length 1; zero for a vector equal to the centre or not finite."""
    unit = np.zeros((len(vectors), projection.shape[1]), dtype=np.float32)
    for part, block in _blocks(vectors):
        chunk = block - centre
        fine = np.asarray(np.isfinite(chunk).all(axis=1))
        projected = np.where(fine[:, None], chunk, 0.0).astype(np.float32) @ projection
        lengths = np.linalg.norm(projected, axis=1, keepdims=True)
        # A vector at the centre has no direction: divided by infinity it is zero and matches nothing.
        unit[part] = projected / np.where(lengths > _FLAT, lengths, np.inf)
    return unit


def _nearest(
    rows: npt.NDArray[np.float32], other: npt.NDArray[np.float32], *, itself: bool, device: str
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the most similar rows of `other`, best first: (N, k) cosines and rows; in memory independent of N x M."""
    k = min(_NEIGHBOURS, len(other) - itself)
    all_rows = torch.from_numpy(rows).to(device)
    columns = torch.from_numpy(other).to(device)
    cosines, places = [], []
    for start in range(0, len(rows), _BLOCK[0]):
        block = all_rows[start : start + _BLOCK[0]]
        best = torch.full((len(block), 0), -2.0, device=device)
        where = torch.zeros((len(block), 0), dtype=torch.int64, device=device)
        for at in range(0, len(other), _BLOCK[1]):
            found = block @ columns[at : at + _BLOCK[1]].T
            if itself:
                own = torch.arange(len(block), device=device)
                inside = (own + start >= at) & (own + start < at + found.shape[1])
                # Below every cosine, so that no row is its own neighbour.
                found[own[inside], own[inside] + start - at] = -2.0
            top = found.topk(min(k, found.shape[1]), dim=1)
            merged, order = torch.cat([best, top.values], 1).topk(min(k, best.shape[1] + top.values.shape[1]), dim=1)
            best, where = merged, torch.cat([where, top.indices + at], 1).gather(1, order)
        cosines.append(best.cpu().numpy())
        places.append(where.cpu().numpy())
    return np.concatenate(cosines), np.concatenate(places)


def _copies(
    cosines: npt.NDArray[np.float32], places: npt.NDArray[np.int64], other: npt.NDArray[np.float32], threshold: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the masks of the rows with a duplicate and of the crowded rows."""
    hits, crowded = np.zeros((2, len(cosines)), dtype=np.bool_)
    near = np.flatnonzero(cosines[:, 0] >= threshold)
    for start in range(0, len(near), _CHUNK):
        chosen = near[start : start + _CHUNK]
        found = other[places[chosen]]
        alike = np.einsum("nkd,nd->nk", found, found[:, 0]) >= threshold
        # Of vectors of length 1; rounding may bring a cosine above 1.
        distances = np.sqrt(np.maximum(2.0 - 2.0 * cosines[chosen], 0.0))
        others = np.where(alike, np.inf, distances).min(axis=1)
        crowded[chosen] = np.isinf(others)
        hits[chosen] = np.isfinite(others) & (distances[:, 0] <= RATIO * others)
    return hits, crowded


_Contents = tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]


def exact_copies(train: Source, test: Source) -> list[Finding]:
    """Return findings about images that are in both parts, or repeated in one; files not hashed yet are read."""
    in_train, in_test = _contents(train), _contents(test)
    shared, overlap = _shared(in_train, in_test), list[Finding]()
    if shared and len(shared) == len(in_test[0]):
        message = f"all {len(test):,} {noun_of(test)}s of {test.name} are in {train.name} too"
        overlap = [Finding("error", f"{message}: scores would measure memorisation", leak=True)]
    elif shared:
        pairs = some([f"{test.images.path(i)} = {train.images.path(j)}" for i, j in shared[:3]], total=len(shared))
        message = f"{len(shared):,} of {counted(len(test), noun_of(test))} of {test.name} also in {train.name}: {pairs}"
        overlap = [Finding("warning", message, leak=True)]
    return [*overlap, *_duplicates(train, in_train), *_duplicates(test, in_test)]


def _contents(source: Source) -> _Contents:
    """Return the positions and digests (as two 64-bit numbers) of the images with content."""
    digests = source.images.digests()
    # One record per digest, so that np.unique and == take it as a whole.
    keys = np.ascontiguousarray(digests).view([("a", "<u8"), ("b", "<u8")]).reshape(-1)
    nothing = np.frombuffer(EMPTY_DIGEST + UNREADABLE_DIGEST, dtype=keys.dtype)
    kept = np.flatnonzero((keys != nothing[0]) & (keys != nothing[1]))
    return kept, keys[kept]


def _shared(in_train: _Contents, in_test: _Contents) -> list[tuple[int, int]]:
    """Return (position in test, first position in train) of every test image whose content is in train too."""
    (train_rows, train_keys), (test_rows, test_keys) = in_train, in_test
    unique, first = np.unique(train_keys, return_index=True)
    if not len(unique) or not len(test_keys):
        return []
    # For a key behind all others searchsorted returns the length, which is no index.
    place = np.minimum(np.searchsorted(unique, test_keys), len(unique) - 1)
    shared = np.flatnonzero(unique[place] == test_keys)
    return list(zip(test_rows[shared].tolist(), train_rows[first[place[shared]]].tolist(), strict=True))


def _duplicates(source: Source, contents: _Contents) -> list[Finding]:
    positions, keys = contents
    order = np.argsort(keys, kind="stable")
    # Sorted, equal contents are neighbours.
    same = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if not len(same):
        return []
    values = source.target.values
    pairs = [(int(positions[order[i]]), int(positions[order[i + 1]])) for i in same]
    differ = [pair for pair in pairs if not np.array_equal(values[pair[0]], values[pair[1]])]
    findings = [
        Finding(
            "note", f"{source.name}: {counted(len(pairs), noun_of(source))} more than once: {_pairs(source, pairs)}"
        )
    ]
    if differ:
        message = f"{source.name}: {counted(len(differ), 'copy')} with another label: {_pairs(source, differ)}"
        findings.append(Finding("warning", message))
    return findings


def _pairs(source: Source, pairs: list[tuple[int, int]]) -> str:
    def show(index: int) -> str:
        label = f" ({source.target.text(index)})" if source.target.labelled else ""
        return source.images.path(index) + label

    return some([f"{show(a)} = {show(b)}" for a, b in pairs[:3]], total=len(pairs))


def near_copies(
    train: Source,
    test: Source,
    vectors: tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]],
    *,
    threshold: float,
    by: str,
) -> tuple[list[Finding], tuple[Pair, ...]]:
    """Find near duplicates across the parts and within each, without the exact ones; see `near.near_pairs`.

    `vectors`: descriptors of the images, (N, D) of train and (M, D) of test; `by`: their name in messages. Returns the
    findings, and the pairs of rows in test and train, including exact duplicates.
    """
    in_train, in_test = vectors
    near = near_pairs(in_test, in_train, threshold=threshold)
    if near.problem:
        return [Finding("note", f"near duplicates cannot be found by {by}: {near.problem}")], ()
    keys = [part.images.digests() for part in (train, test)]
    across = [p for p in near.pairs if (keys[1][p.first] != keys[0][p.second]).any()]
    findings = []
    if across:
        message = (
            f"{counted(len(across), noun_of(test))} of {test.name} nearly the same as one of {train.name} by {by}: "
        )
        findings.append(Finding("warning", message + _alike(test, train, across)))
    for part, rows, key in zip((train, test), vectors, keys, strict=True):
        within = near_pairs(rows, None, threshold=threshold).pairs
        inside = [p for p in within if (key[p.first] != key[p.second]).any()]
        if inside:
            message = f"{part.name}: {counted(len(inside), noun_of(part))} nearly the same as another by {by}: "
            findings.append(Finding("note", message + _alike(part, part, inside)))
    return findings, near.pairs


def _alike(first: Source, second: Source, pairs: list[Pair]) -> str:
    """Return the closest pairs, with the number of the others."""
    closest = sorted(pairs, key=lambda pair: -pair.cosine)[:3]
    paths = [(first.images.path(pair.first), second.images.path(pair.second)) for pair in closest]
    shown = [f"{one} ~ {other} ({pair.cosine:.3f})" for (one, other), pair in zip(paths, closest, strict=True)]
    return some(shown, total=len(pairs))


def small_pictures(source: Source, *, workers: int, reading: Reading) -> npt.NDArray[np.float16]:
    """Return every image as 16 x 16 RGB pixels, which another encoding or size hardly changes.

    (N, 768) float16; NaN for an unreadable image.
    """
    preprocessing = Preprocessing(
        resize=(16, 16), crop=None, decoder=reading.decoder or ("reference",), max_pixels=reading.max_pixels
    )
    # float16 holds whole numbers up to 2,048 exactly.
    vectors = np.full((len(source), 16 * 16 * 3), np.nan, dtype=np.float16)
    for batch in loader.batches(source, np.arange(len(source)), preprocessing, batch_size=64, workers=workers):
        if len(batch.indices):
            # Of videos the mean of their frames.
            pictures = batch.images.reshape(len(batch.indices), -1, 3, 16, 16).float().mean(1)
            vectors[batch.indices] = pictures.flatten(1).numpy()
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

    `near`: (id in test, id in train, cosine) of near duplicates; `exact`: look for equal content too, for which files
    not hashed yet are read.
    """
    found = {}
    in_test, in_train = ({name: i for i, name in enumerate(part.ids)} for part in (test, train))
    for of_test, of_train, cosine in near:
        paths = test.images.path(in_test[of_test]), train.images.path(in_train[of_train])
        found[of_test] = Suspect(of_test, of_train, "near", round(cosine, 4), *paths)
    # After the near ones, whose place exact copies take.
    for i, j in _shared(_contents(train), _contents(test)) if exact else ():
        found[test.ids[i]] = Suspect(test.ids[i], train.ids[j], "exact", 1.0, test.images.path(i), train.images.path(j))
    return [found[name] for name in sorted(found)]


def named(pairs: Iterable[Pair], test_ids: Sequence[str], train_ids: Sequence[str]) -> list[tuple[str, str, float]]:
    """Return pairs of rows as (test id, train id, cosine)."""
    return [(test_ids[pair.first], train_ids[pair.second], pair.cosine) for pair in pairs]


def as_csv(found: Iterable[Suspect]) -> str:
    """Return the pairs as CSV, one line each."""
    return csv_text([HEADER, *found])
