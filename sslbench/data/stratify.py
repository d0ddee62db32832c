"""Stratified choice of samples: every class keeps its share."""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, IntArray
from sslbench.data.groups import choose_groups
from sslbench.errors import UsageError
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.target import Target

_ATTEMPTS = 10


def holdout(
    labels: Target, fraction: float, seed: int, *, groups: IntArray | None = None, rank: IntArray | None = None
) -> tuple[IntArray, IntArray]:
    """Split samples into a fit and a held-out part, stratified by class.

    Every class keeps its share up to rounding; a class with two samples or more is in both parts, a class with one in
    the fit part. Multi-label: classes are assigned rarest first (Sechidis et al. 2011, On the stratification of
    multi-label data), and are in both parts where possible.

    Args:
        labels: of the N samples.
        fraction: share of the held-out part, in (0, 1).
        seed: of the split.
        groups: int64 (N,), group of each sample; a group stays in one part, and every class is in the fit part. None:
            no groups.
        rank: (N,) order of the samples in the draw (`Source.rank`); None: as they lie.

    Returns:
        (fit, held out), int64 positions, each ascending.

    Examples:
        >>> from sslbench.data.labels import single_labels
        >>> fit, held = holdout(single_labels(["cat"] * 8 + ["dog"] * 4), 0.25, seed=0)
        >>> len(fit), len(held), int((held >= 8).sum())  # 2 cats and 1 dog are held out
        (9, 3, 1)
    """
    if not 0 < fraction < 1:
        raise UsageError(f"the fraction of a split must lie between 0 and 1, not {fraction}")
    wanted, rng, held = round(fraction * len(labels)), np.random.default_rng(seed), np.zeros(len(labels), np.bool_)
    order = np.arange(len(labels)) if rank is None else np.argsort(rank)
    if groups is None:
        held[order] = choose(labels.select(order), wanted, rng, both_sides=True)
    else:
        held[order] = choose_groups(labels.select(order), groups[order], wanted, rng)
    return np.flatnonzero(~held), np.flatnonzero(held)


def choose(labels: Target, n: int, rng: np.random.Generator, *, both_sides: bool) -> BoolArray:
    """Return the mask of the chosen samples: (N,) bool.

    With `both_sides`, a class with at least two samples has one chosen and one not, and the only sample of a class is
    not chosen; the number may then differ from `n`. Otherwise exactly `n` are chosen, at least one per class if `n`
    allows.
    """
    labels = labels.numbered_by_samples()
    if isinstance(labels, Classes):
        return _choose_single(labels, n, rng, both_sides=both_sides)
    if isinstance(labels, MultiLabel) and labels.values.shape[1]:
        return _choose_multi(labels.values == 1, n, rng, both_sides=both_sides)
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[rng.permutation(len(labels))[:n]] = True
    return chosen


def interleaved(labels: Target, rng: np.random.Generator, *, balanced: bool) -> IntArray:
    """Return a random order of the samples, any part of which has the classes by their shares, give or take a sample.

    `balanced`: the classes in turn, equally often as long as each has samples left. Without one class for each sample
    the order is random alone.

    >>> labels = Classes(("few", "many"), np.array([0, 1, 1, 1] * 2))
    >>> order = interleaved(labels, np.random.default_rng(0), balanced=False)
    >>> [int(labels.values[order[start : start + 4]].sum()) for start in (0, 4)]
    [3, 3]
    """
    shuffled = rng.permutation(len(labels))
    labels = labels.numbered_by_samples()
    if not isinstance(labels, Classes):
        return shuffled
    classes = labels.values[shuffled]
    counts = np.bincount(classes, minlength=len(labels.classes))
    turns = np.zeros(len(classes))
    turns[np.argsort(classes, kind="stable")] = np.concatenate([np.arange(count) for count in counts])
    # A random place within its turn for each class, so that the first classes are not preferred.
    places = turns + rng.random(len(counts))[classes]
    return shuffled[np.argsort(places if balanced else places / counts[classes], kind="stable")]


def _choose_single(labels: Target, n: int, rng: np.random.Generator, *, both_sides: bool) -> BoolArray:
    counts = np.bincount(labels.values, minlength=len(labels.classes))
    some = counts > 0
    low = np.where(counts > 1, 1, 0) if both_sides else np.where(some & (n >= some.sum()), 1, 0)
    high = np.where(counts > 0, counts - 1, 0) if both_sides else counts
    quota = _apportion(counts, n, low, high, rng)
    chosen = np.zeros(len(labels), dtype=bool)
    # Stable, so that the members of a class stay in the order of the samples.
    by_class = np.split(np.argsort(labels.values, kind="stable"), np.cumsum(counts)[:-1])
    for members, k in zip(by_class, quota, strict=True):
        chosen[rng.permutation(members)[:k]] = True
    return chosen


def _apportion(
    counts: npt.NDArray[np.int64],
    n: int,
    low: npt.NDArray[np.int64],
    high: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Return the number to choose of each class: in proportion to `counts`, within [low, high], `n` in sum if possible.

    Largest-remainder method; random tie-breaking, which does not favour the first classes.
    """
    exact = counts * (n / max(counts.sum(), 1))
    quota: npt.NDArray[np.int64] = np.clip(np.floor(exact).astype(np.int64), low, high)
    while (short := n - int(quota.sum())) != 0:
        adjustable = quota < high if short > 0 else quota > low
        if not adjustable.any():
            break
        # Far below the differences of shares, so that the random numbers decide ties only.
        priority = (exact - quota if short > 0 else quota - exact) + rng.random(len(counts)) * 1e-9
        priority[~adjustable] = -np.inf
        quota[np.argsort(-priority)[: min(abs(short), int(adjustable.sum()))]] += np.sign(short)
    return quota


def _choose_multi(positives: BoolArray, n: int, rng: np.random.Generator, *, both_sides: bool) -> BoolArray:
    best, best_missing = np.zeros(len(positives), dtype=bool), np.inf
    several = positives.sum(axis=0) > 1
    for _ in range(_ATTEMPTS):
        chosen = _assign(positives, n, rng)
        if not both_sides:
            # Random samples are added or removed until n are chosen.
            excess = int(chosen.sum()) - n
            chosen[rng.permutation(np.flatnonzero(chosen == (excess > 0)))[: abs(excess)]] = excess < 0
        sides = positives[chosen].any(axis=0) & positives[~chosen].any(axis=0)
        missing = int((several & ~sides).sum())
        if missing < best_missing:
            best, best_missing = chosen, missing
        if not missing:
            break
    return best


def _assign(positives: BoolArray, n: int, rng: np.random.Generator) -> BoolArray:
    """Assign samples class by class, rarest first, so that each class gets its share of the chosen ones."""
    share = n / max(len(positives), 1)
    totals = positives.sum(axis=0)
    chosen, free = np.zeros(len(positives), dtype=bool), np.ones(len(positives), dtype=bool)
    # Classes of as many samples come in random order, since the last key of lexsort decides first.
    for c in np.lexsort((rng.random(len(totals)), totals)):
        members = rng.permutation(np.flatnonzero(positives[:, c] & free))
        wanted = np.clip(round(share * totals[c]), min(1, totals[c] - 1), max(totals[c] - 1, 0)) if totals[c] else 0
        have = int((positives[:, c] & chosen).sum())
        chosen[members[: max(0, wanted - have)]] = True
        # A sample is decided by its rarest class alone.
        free[members] = False
    rest = rng.permutation(np.flatnonzero(free))
    chosen[rest[: max(0, n - int(chosen.sum()))]] = True
    return chosen
