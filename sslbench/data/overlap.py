"""Images of test that are suspected to be in train too: pairs, and the CSV that lists them."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from sslbench.data.duplicates import exact_pairs
from sslbench.data.near import Pair
from sslbench.data.source import Source
from sslbench.text import csv_text

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
