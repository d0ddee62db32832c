"""Base of targets: what is asked of the samples of a data set, and what everything else has to know of it."""

import dataclasses
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, IntArray, OfRows
from sslbench.metrics.catalog import find
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.metrics.metric import ClassFrequencies
from sslbench.text import all_printable


class Images(Protocol):
    """N images that can be read in any order, from any process (an implementation must be picklable)."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Return the encoded file, or for images that are arrays already uint8 (H, W) or (H, W, channels).

        Raises:
            OSError: the file cannot be read.
        """
        ...

    def path(self, index: int) -> str:
        """Return the name of an image in messages and in index.csv: its file, else a text such as 'digits[17]'."""
        ...

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: a hash of each image's content. Cheap when nothing changed since the last call."""
        ...

    def select(self, indices: npt.NDArray[np.int64]) -> "Images":
        """Return the images at `indices`, in that order."""
        ...


Rows = npt.NDArray[Any]

IMBALANCE = 10
"""Ratio of the largest to the smallest class of train from which classes count as imbalanced."""


class Target(OfRows):
    """Targets of N samples. A kind is a subclass with a name: a frozen dataclass that compares by identity.

    Attributes:
        name: the kind in records and keys; never changed.
        title: the targets in a few words, as after "the samples have".
        metric: name of the leading metric; empty without one.
        beside: names of metrics that are printed beside the leading one.
        of_classes: every sample has classes, whose samples can be counted.
        of_one_class: every sample has exactly one class.
        of_pixels: targets are of places in images (pixels, boxes), not of whole images.
        of_numbers: values are numbers, named by `classes`, by which they are matched between train and test.
        labelled: False for samples without targets.
        given_columns: names of the columns of scores, where these are not of the classes.
        default: location that is used without --data, and its title; empty for kinds that tables and folders label.
        classes: the C class names; of numbers their names; a class is known by its position here.
        values: one row per sample, for metrics and files of scores; (N, 0) where the targets are files.
        sized: True if the targets say the size of their images, as maps do, False if not; None: they are of no places.
    """

    of_rows: ClassVar[tuple[str, ...]] = ("values",)
    name: ClassVar[str]
    title: ClassVar[str]
    metric: ClassVar[str] = ""
    beside: ClassVar[tuple[str, ...]] = ()
    of_classes: ClassVar[bool] = False
    of_one_class: ClassVar[bool] = False
    of_pixels: ClassVar[bool] = False
    of_numbers: ClassVar[bool] = False
    labelled: ClassVar[bool] = True
    given_columns: ClassVar[tuple[str, ...]] = ()
    default: ClassVar[tuple[str, str]] = ("", "")
    classes: tuple[str, ...]
    values: npt.NDArray[Any]
    sized: bool | None = None

    def __post_init__(self) -> None:
        # Names come from files and may hold bytes that no terminal or CSV can show.
        names = tuple(all_printable(self.classes))
        if names is not self.classes:
            object.__setattr__(self, "classes", names)

    @classmethod
    def of(cls, target: "Target") -> Self:
        """Return a target that is known to be of this kind.

        Raises:
            TypeError: it is not: a protocol takes it that cannot.
        """
        if not isinstance(target, cls):
            raise TypeError(f"the samples have {target.title}, not {cls.__name__}")
        return target

    @classmethod
    def from_values(cls, classes: tuple[str, ...], values: Rows) -> Self:
        """Return targets whose classes and values are stored; see `values`."""
        return cls(classes=classes, values=values)  # type: ignore[call-arg]

    def changed(self, **fields: Any) -> Self:
        """Return the same targets with other values of some fields; what is not named (queries) stays."""
        return dataclasses.replace(self, **fields)  # type: ignore[type-var]

    def numbered_by_samples(self) -> "Target":
        """Return the same targets with classes numbered by the samples that have them, where there are classes."""
        return self

    def text(self, index: int) -> str:
        """Return a sample's target as written to a CSV; '' if it is none that a cell can hold."""
        return ""

    def size_text(self) -> str:
        """Return the number of classes, or what else a plan tells of the targets."""
        return f"{len(self.classes)} classes, {self.name} label"

    def key(self) -> bytes:
        """Return the bytes of kind, classes and values, for a fingerprint."""
        return "\n".join((self.name, *self.classes)).encode() + np.ascontiguousarray(self.values).tobytes()

    def content_key(self) -> bytes:
        """Return the part of the key of targets that are files or annotations."""
        return b""

    @classmethod
    def sign(cls) -> int:
        """Return -1 where less of the leading metric is better, otherwise 1."""
        return find(cls.metric).sign

    @classmethod
    def leads_by_right(cls) -> bool:
        """Return True if the leading metric follows from numbers of right predictions, without any scores kept."""
        return False

    @classmethod
    def of_right(cls, right: npt.NDArray[Any], samples: IntArray) -> npt.NDArray[np.floating]:
        """Return the leading metric from the right predictions (..., C) and the samples (C,) of each class."""
        raise NotImplementedError

    @classmethod
    def columns(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the columns of scores, for data with these classes."""
        return cls.given_columns or classes

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the metrics of an evaluation as functions of the weights of the samples.

        Args:
            values: (N, ...), see the attribute.
            scores: (N, columns); higher means more likely, or counts, sums and errors from which metrics follow.
            units: units of the samples.
            how: conversion of scores to probabilities, where there is one.
        """
        raise NotImplementedError

    @classmethod
    def headline(cls, values: Rows, scores: Rows) -> float:
        """Return the leading metric alone."""
        found = next(
            each for each in cls.measures(values, scores, Units.of(len(scores), None)) if cls.metric in each.names
        )
        # Every sample with weight 1: the metric itself, as a resample in which each sample occurs once.
        return float(found.statistic(np.ones((1, len(scores))))[0, found.names.index(cls.metric)])

    @classmethod
    def per_class(cls, values: Rows, scores: Rows, classes: int) -> list[float]:
        """Return the metric of every class (recall, R2 of a number, IoU); [] where there is none."""
        return []


class OfClasses(Target):
    """Targets that are classes: one or any number per sample."""

    of_classes: ClassVar[bool] = True

    def counts(self) -> IntArray:
        """Return the number of samples of each class, (C,)."""
        raise NotImplementedError

    def present(self) -> BoolArray:
        """Return a mask of the classes with at least one sample, (C,)."""
        return self.counts() > 0

    def is_imbalanced(self) -> bool:
        """Return True if the largest class has `IMBALANCE` times the samples of the smallest that has any, or more."""
        counts = self.counts()
        there = counts[counts > 0]
        return len(there) > 0 and bool(there.max() >= IMBALANCE * there.min())

    def by_first_sample(self) -> IntArray:
        """Return the class numbers in the order of the samples that have them, (C,).

        What is drawn class after class in this order depends neither on the names of the classes nor on their order.

        >>> from sslbench.targets.classes import Classes
        >>> Classes(("cat", "dog"), np.array([1, 0, 1])).by_first_sample().tolist()
        [1, 0]
        """
        raise NotImplementedError

    def numbered_by_samples(self) -> Self:
        """Return the same labels with classes numbered by the samples that have them, see `by_first_sample`.

        >>> from sslbench.data.labels import single_labels
        >>> single_labels(["dog", "cat", "dog"]).numbered_by_samples().classes
        ('dog', 'cat')
        """
        return self.among(self.by_first_sample())

    def among(self, kept: IntArray) -> Self:
        """Return the labels with the classes at `kept`, in that order; samples must have no other class."""
        raise NotImplementedError

    def flags(self) -> npt.NDArray[np.int8]:
        """Return the labels with one column per class, (N, C): 1 present, 0 absent, -1 ignored."""
        raise NotImplementedError

    def frequencies(self) -> ClassFrequencies:
        """Return the number of samples of each class, for chance levels."""
        raise NotImplementedError


class WithoutValues(Target):
    """Targets that are files, annotations or nothing: their values are (N, 0)."""

    @property
    def values(self) -> npt.NDArray[Any]:  # type: ignore[override]
        """Return an array (N, 0)."""
        return np.zeros((len(self), 0), dtype=np.int8)


class SeveralImages(Target):
    """Targets of samples that are several images each: pairs, triplets, videos. Images of samples are the first ones.

    Attributes:
        images: images of all samples, each of them once.
    """

    images: Images

    def rows(self, index: int) -> tuple[int, ...]:
        """Return the positions in `images` of the images of a sample."""
        raise NotImplementedError
