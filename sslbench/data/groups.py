"""Splits and folds that keep groups of samples together (frames of a video, crops of an image), stratified by class."""

from collections.abc import Iterator, Sequence

import numpy as np

from sslbench.arrays import BoolArray, IntArray
from sslbench.data.source import Source
from sslbench.data.wording import some
from sslbench.targets.classes import Classes
from sslbench.targets.target import OfClasses, SeveralImages, Target

_ATTEMPTS = 10
# Mean deviation of the classes' shares from the target at which the search ends
_CLOSE = 0.02


def source_groups(source: Source) -> IntArray | None:
    """Return the group of each sample of a source, int64 (N,) (`Source.grouped_by`); None if no two share one."""
    return group_numbers(source.attributes.get(source.grouped_by, ()))


def inseparable(source: Source) -> IntArray | None:
    """Return the groups that a split may not part, (N,): samples of one group, or that share an image; None: none do.

    Pairs A-B and B-C share B, so that A, B and C are of one group.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    groups, target = source_groups(source), source.target
    if not isinstance(target, SeveralImages):
        return groups
    rows = [target.rows(index) for index in range(len(source))]
    # Nodes of a graph are the samples, then the images, then the groups.
    samples = np.repeat(np.arange(len(source)), [len(row) for row in rows])
    images = len(source) + np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    nodes = len(source) + len(target.images)
    if groups is not None:  # each group is a node that its samples are tied to
        samples, images = np.append(samples, np.arange(len(source))), np.append(images, nodes + groups)
        nodes += int(groups.max()) + 1
    ties = coo_array((np.ones(len(samples), dtype=np.int8), (samples, images)), shape=(nodes, nodes))
    _, found = connected_components(ties, directed=False)
    return group_numbers([str(number) for number in found[: len(source)]])


def group_numbers(names: Sequence[str]) -> IntArray | None:
    """Return the group of each sample, int64 (N,); None if no two share one. An empty name is a group of its own."""
    known: dict[str, int] = {}
    numbers = np.empty(len(names), dtype=np.int64)
    for i, name in enumerate(names):
        numbers[i] = known.setdefault(name, len(known)) if name else -1
    singletons = np.flatnonzero(numbers < 0)
    numbers[singletons] = len(known) + np.arange(len(singletons))
    return None if len(known) + len(singletons) == len(names) else numbers


def choose_groups(labels: Target, groups: IntArray, n: int, rng: np.random.Generator) -> BoolArray:
    """Choose whole groups with about `n` of N samples together; return a mask, (N,) bool.

    Classes are dealt rarest first (by groups), as for several labels per sample (Sechidis et al. 2011, On the
    stratification of multi-label data); a group is taken if that brings the class nearer to its share of the samples.
    Of several deals the one is kept that leaves the fewest classes out of the chosen part, then the one with shares
    nearest to the wanted one. A class is never chosen with all of its groups: what is not chosen has every class.
    """
    groups = groups_by_first_sample(groups)
    table = _GroupCounts(labels.numbered_by_samples(), groups)
    share = n / max(len(groups), 1)
    # A greedy deal can end badly, since groups are not divisible: several are tried and the best one is kept.
    best, best_score = np.zeros(table.n, dtype=bool), (np.inf, np.inf)
    for _ in range(_ATTEMPTS):
        chosen = _deal(table, share, rng)
        score = table.score(chosen, share)
        if score < best_score:
            best, best_score = chosen, score
        if not score[0] and score[1] < _CLOSE:
            break
    return best[groups]


def groups_by_first_sample(groups: IntArray) -> IntArray:
    """Return the groups numbered in the order of their first samples."""
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    # The argsort of an argsort is the rank.
    return np.argsort(np.argsort(first))[number]


class _GroupCounts:
    """Sparse table of the number of samples by group and class.

    Attributes:
        n: groups.
        sizes: int64 (n,), samples of each.
        totals: int64 (C,), samples of each class.
        spread: int64 (C,), groups of each class.
    """

    def __init__(self, labels: Target, groups: IntArray) -> None:
        self.sizes = np.bincount(groups)
        self.n = len(self.sizes)
        # Sample and class of every label that is present.
        rows = classes = np.zeros(0, dtype=np.int64)
        if isinstance(labels, Classes):
            rows, classes = np.arange(len(labels)), labels.values
        elif isinstance(labels, OfClasses):
            rows, classes = np.nonzero(labels.flags() == 1)
        width = max(len(labels.classes), 1)
        # A pair of group and class as one number, by which np.unique sorts groups first.
        keys, self._counts = np.unique(groups[rows] * width + classes, return_counts=True)
        self._groups, self._classes = np.divmod(keys, width)
        self.totals = np.bincount(self._classes, self._counts, width).astype(np.int64)
        self.spread = np.bincount(self._classes, minlength=width)
        self._starts = np.searchsorted(self._groups, np.arange(self.n + 1))
        self._by_class = np.split(np.argsort(self._classes, kind="stable"), np.cumsum(self.spread)[:-1])

    def groups_of(self, c: int) -> tuple[IntArray, IntArray]:
        """Return the groups that have a class, and the number of samples of it in each."""
        pairs = self._by_class[c]
        return self._groups[pairs], self._counts[pairs]

    def of_class(self, c: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        """Return the same as pairs, shuffled."""
        pairs = rng.permutation(self._by_class[c])
        return zip(self._groups[pairs].tolist(), self._counts[pairs].tolist(), strict=True)

    def classes_of(self, group: int) -> IntArray:
        """Return the classes of a group."""
        found: IntArray = self._classes[self._starts[group] : self._starts[group + 1]]
        return found

    def score(self, chosen: BoolArray, share: float) -> tuple[float, float]:
        """Return the number of avoidably missing classes, and the mean deviation of the shares."""
        inside = chosen[self._groups]
        # A class in one group only cannot be on both sides, so it is not counted as missing.
        found = np.bincount(self._classes[inside], self._counts[inside], len(self.totals))
        there = self.totals > 0
        missing = int((there & (self.spread > 1) & (found == 0)).sum())
        shares = found[there] / self.totals[there] if there.any() else np.zeros(0)
        whole = float(self.sizes[chosen].sum()) / max(int(self.sizes.sum()), 1)
        return missing, float(np.abs(np.append(shares, whole) - share).mean())


def group_folds(labels: Target, groups: IntArray, number: int) -> IntArray:
    """Return the fold of each sample, (N,), 0 to number - 1; all samples of a group are in one fold.

    Classes are dealt rarest first (by groups): each of its groups, the largest first, goes to the fold that has least
    of the class so far, then least of all samples. A class with as many groups as there are folds is in every fold.
    """
    groups = groups_by_first_sample(groups)
    table = _GroupCounts(labels.numbered_by_samples(), groups)
    folds = np.full(table.n, -1)
    filled = np.zeros(number, dtype=np.int64)
    for c in np.argsort(table.spread, kind="stable"):
        found, counts = table.groups_of(int(c))
        have = np.bincount(folds[found][folds[found] >= 0], counts[folds[found] >= 0], number)
        for i in np.argsort(-counts, kind="stable"):
            if folds[found[i]] < 0:
                # The last key of lexsort decides first.
                fold = int(np.lexsort((filled, have))[0])
                folds[found[i]] = fold
                have[fold] += counts[i]
                filled[fold] += table.sizes[found[i]]
    for group in np.flatnonzero(folds < 0):
        folds[group] = np.argmin(filled)
        filled[folds[group]] += table.sizes[group]
    return np.asarray(folds[groups])


def _deal(table: _GroupCounts, share: float, rng: np.random.Generator) -> BoolArray:
    chosen, free = np.zeros(table.n, dtype=bool), np.ones(table.n, dtype=bool)
    spare = table.spread.copy()  # groups of each class that are not selected
    # Classes of as many groups come in random order, since the last key of lexsort decides first.
    for c in np.lexsort((rng.random(len(spare)), table.spread)):
        members = list(table.of_class(int(c), rng))
        have, wanted = sum(k for group, k in members if chosen[group]), share * table.totals[c]
        for group, k in members:
            if (
                free[group]
                and abs(have + k - wanted) < abs(have - wanted)
                and (spare[table.classes_of(group)] > 1).all()
            ):
                chosen[group] = True
                spare[table.classes_of(group)] -= 1
                have += k
        if not have:  # the smallest group exceeds the share, but the class must be present
            allowed = [(k, g) for g, k in members if free[g] and (spare[table.classes_of(g)] > 1).all()]
            if allowed:
                group = min(allowed)[1]
                chosen[group] = True
                spare[table.classes_of(group)] -= 1
        # A group is decided by its rarest class alone.
        free[[group for group, _ in members]] = False
    # Groups without a class follow until the share of all samples is reached; two or more groups end on both sides.
    sizes, rest = table.sizes, np.flatnonzero(free)
    wanted, have, left = share * sizes.sum(), int(sizes[chosen].sum()), len(chosen) - int(chosen.sum())
    for group in rng.permutation(rest).tolist():
        if left > 1 and abs(have + sizes[group] - wanted) < abs(have - wanted):
            chosen[group] = True
            have, left = have + int(sizes[group]), left - 1
    if not chosen.any() and len(rest) > 1:
        chosen[rest[np.argmin(sizes[rest])]] = True
    return chosen


def torn_classes(source: Source, test: Source, *, grouped: bool) -> tuple[str, ...]:
    """Return a note on the classes that a seeded split could not bring to both sides."""
    if not isinstance(source.target, OfClasses):
        return ()
    counts = source.target.counts()
    if grouped:
        missing = (counts > 0) & ~OfClasses.of(test.target).present()
        singletons = [name for name, is_missing in zip(source.target.classes, missing, strict=True) if is_missing]
        what = f"classes that lie in too few groups ({source.grouped_by}) are in train only"
        return (f"{what}: {some(singletons, 5)}",) if singletons else ()
    singletons = [name for name, n in zip(source.target.classes, counts, strict=True) if n == 1]
    if singletons and isinstance(source.target, Classes):
        return (f"classes with one image are in train only: {some(singletons, 5)}",)
    return (f"classes with one image are on one side only: {some(singletons, 5)}",) if singletons else ()
