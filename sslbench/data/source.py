"""Samples of every format: ids, labels, and images that are read one by one."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from sslbench.targets.classes import Classes
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Images, SeveralImages, Target
from sslbench.text import all_printable, printable
from sslbench.text_rows import Texts, packed, select_texts

ORIGIN = "origin"
"""Attribute of a joined source: the name of the source that each sample is from."""
_IDS = 100_000  # hashed at a time: the text of all is as large as they are


def ranked(
    ids: Sequence[str], target: Target, digests: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.uint8]] | None = None
) -> npt.NDArray[np.int64]:
    """Return the place of each sample by its file name, without folders, (N,): no name or number of a class counts.

    Files of one name in several folders (1.png in each) are ordered by the sizes of the folders and, of equal ones, by
    the content of the first file of each, then by their ids. Samples without one class each have the order of their
    ids: their folders are no classes.

    Args:
        ids: of the N samples, ascending.
        target: their targets; only their kind counts, not their values, which noise changes.
        digests: rows, ascending -> a hash of the content of each, (n, 16); None: the content is not known.

    >>> content = np.array([[9], [8], [7], [6]], dtype=np.uint8)
    >>> classes = Classes(("cat", "dog"), np.array([0, 0, 1, 1]))
    >>> ranked(("cat/1.png", "cat/3.png", "dog/1.png", "dog/2.png"), classes, content.__getitem__).tolist()
    [1, 3, 0, 2]
    """
    if not isinstance(target, Classes):
        return np.arange(len(ids))
    names = [sample.rpartition("/")[2] for sample in ids]
    order = np.asarray(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    name = np.cumsum([False, *(names[a] != names[b] for a, b in itertools.pairwise(order.tolist()))])
    if len(order) and name[-1] < len(order) - 1:
        known = dict[str, int]()
        folder = np.array([known.setdefault(sample.rpartition("/")[0], len(known)) for sample in ids])[order]
        _, first, sizes = np.unique(folder, return_index=True, return_counts=True)
        # Big-endian bytes sort like the numbers.
        keys = sizes.astype(">i8").view(np.uint8).reshape(len(sizes), -1)
        if digests is not None:
            # `digests` takes ascending rows only; the second argsort puts the answers back into place.
            by_row = np.argsort(order[first])
            keys = np.hstack([keys, digests(order[first][by_row])[np.argsort(by_row)]])
        # By the version of numpy, the inverse of rows is flat or a column.
        of_folder = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
        # The last key, the name, decides first; lexsort is stable, so ids decide the rest.
        order = order[np.lexsort((of_folder[folder], name))]
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


@dataclasses.dataclass(frozen=True)
class Source:
    """N samples in order of their id.

    Attributes:
        name: the location as the user wrote it, with the split: 'photos/ (train)'.
        ids: unique, ascending, stable between machines (for files: the path relative to the data's root); many of
            them in one piece, which paths of files share where they are the same.
        target: of the same length.
        images: of the same length; of samples that are several images each, the first ones.
        notes: remarks on what was left out or changed ("2 hidden folders left out"), one sentence each.
        attributes: further columns of the manifest, name -> one text per sample ('' where there is none); metrics can
            be broken down by them.
        grouped_by: the attribute whose equal values a seeded split keeps on one side: 'video' for frames of videos,
            'image' for crops; empty if every sample stands for itself.
        weights: of a joined source (`joined.join`): name of each member -> its sampling frequency in pretraining,
            relative to the others; empty: every image equally often.
    """

    name: str
    ids: Sequence[str]
    target: Target
    images: Images
    notes: tuple[str, ...] = ()
    attributes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    grouped_by: str = ""
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.target) == len(self.images):
            raise ValueError(f"{len(self.ids)} ids, {len(self.target)} targets, {len(self.images)} images")
        for name, column in self.attributes.items():
            if len(column) != len(self.ids):
                raise ValueError(f"{len(self.ids)} ids, {len(column)} values of the attribute '{name}'")
        ids, paths = packed(self.ids), getattr(self.images, "paths", None)
        object.__setattr__(self, "ids", paths if isinstance(ids, Texts) and paths == ids else ids)
        attributes = {printable(name): tuple(all_printable(column)) for name, column in self.attributes.items()}
        object.__setattr__(self, "attributes", attributes)
        if self.grouped_by and self.grouped_by not in self.attributes:
            raise ValueError(f"grouped by '{self.grouped_by}', which is not an attribute")

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, indices: Sequence[int] | npt.NDArray[np.int64], name: str | None = None) -> Self:
        """Return a source of the samples at `indices`, which must ascend, as ids do."""
        chosen = np.asarray(indices, dtype=np.int64)
        if len(chosen) and np.any(np.diff(chosen) <= 0):
            raise ValueError("indices must be strictly ascending")
        return self._at(chosen, name)

    def _at(self, chosen: npt.NDArray[np.int64], name: str | None = None) -> Self:
        ids = select_texts(self.ids, chosen)
        images, target = self.images.select(chosen), self.target.select(chosen)
        attributes = {key: tuple(column[i] for i in chosen) for key, column in self.attributes.items()}
        return dataclasses.replace(
            self, name=name or self.name, ids=ids, target=target, images=images, attributes=attributes
        )

    @property
    def sized(self) -> bool | None:
        """True if annotations say the size of their images, as maps do, False if not; None: they are of no places."""
        if self.target.sized is not None or isinstance(self.target, SeveralImages):
            return self.target.sized
        of_images: bool | None = getattr(self.images, "sized", None)  # crops of boxes
        return of_images

    def every_image(self) -> "Source":
        """Return all images, unlabelled, of samples that are several images each; otherwise the source itself.

        Ids are positions: paths would make the keys of features depend on the place of the data.
        """
        if not isinstance(self.target, SeveralImages):
            return self
        images = self.target.images
        return Source(self.name, tuple(f"{i:08d}" for i in range(len(images))), Unlabelled(len(images)), images)

    def in_rank(self) -> "Source":
        """Return the same samples in the order of their rank, for trainings, which draw by position."""
        order = np.argsort(self.rank)
        return self if np.all(np.diff(order) > 0) else self._at(order)

    @functools.cached_property
    def rank(self) -> npt.NDArray[np.int64]:
        """(N,) place of each sample in an order that draws follow, so that no name of a class folder moves them."""
        return ranked(self.ids, self.target, lambda rows: self.images.select(rows).digests())

    def as_hashed(self) -> "Source":
        """Return the parts that `fingerprint` holds, for protocols: without notes, weights and further attributes."""
        grouping = {name: column for name, column in self.attributes.items() if name == self.grouped_by}
        return dataclasses.replace(self, attributes=grouping, notes=(), weights={})

    def images_fingerprint(self) -> str:
        """Return a hash of all that features depend on: ids and image contents; 32 hex digits."""
        return self.fingerprint_of(self.images.digests())

    def fingerprint_of(self, digests: npt.NDArray[np.uint8]) -> str:
        """Return the same for images with these digests, (N, 16)."""
        digest = hashlib.sha256()
        for start in range(0, len(self.ids), _IDS):
            digest.update(("\n" if start else "").encode() + "\n".join(self.ids[start : start + _IDS]).encode())
        digest.update(digests.tobytes())
        return digest.hexdigest()[:32]

    def fingerprint(self) -> str:
        """Return a hash of ids, image contents, targets and groups, for keys; 32 hex digits."""
        digest = hashlib.sha256(self.images_fingerprint().encode())
        digest.update(self.target.key())
        if self.grouped_by:  # hold-outs and folds keep a group together
            digest.update("\n".join(("groups", *self.attributes[self.grouped_by])).encode())
        digest.update(self.content_key())
        return digest.hexdigest()[:32]

    def content_key(self) -> bytes:
        """Return the key of targets that are files or annotations."""
        return self.target.content_key()
