"""Data sets that are only unpacked: archives with the layout of the benchmarks, up to a folder's name."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sslbench.data.prepare.layout import LayoutPlan, archive_space, members
from sslbench.data.prepare.official import Official
from sslbench.errors import DataError


@dataclasses.dataclass(frozen=True)
class UnpackedSet:
    """Data set that is only unpacked.

    Attributes:
        folder: below the user's data folder.
        archives: all of them.
        roots: folder at the beginning of the members' names -> folder in place of it; '' is the data set's own.
    """

    folder: str
    archives: tuple[Official, ...]
    roots: Mapping[str, str]

    def plan(self, archives: Mapping[str, Path]) -> LayoutPlan:
        """Plan all members below one of the roots."""
        return LayoutPlan(self._files(archives), archive_space(*archives.values()))

    def _files(self, archives: Mapping[str, Path]) -> Iterator[tuple[str, Callable[[], bytes]]]:
        for path in archives.values():
            found = False
            for name, content in members(path):
                root = next((root for root in self.roots if name.startswith(root)), None)
                if root is not None:
                    found = True
                    yield self.roots[root] + name.removeprefix(root), content
            if not found:
                raise DataError(f"{path} holds nothing below {' or '.join(self.roots)}")


SETS: Mapping[str, UnpackedSet] = {
    "coco14": UnpackedSet(
        "coco",
        tuple(map(Official, ("annotations_trainval2014.zip", "train2014.zip", "val2014.zip"))),
        {"annotations/": "annotations/", "train2014/": "train2014/", "val2014/": "val2014/"},
    ),
    "imagenet_a": UnpackedSet("imagenet-a", (Official("imagenet-a.tar"),), {"imagenet-a/": ""}),
    "imagenet_r": UnpackedSet("imagenet-r", (Official("imagenet-r.tar"),), {"imagenet-r/": ""}),
    "imagenet_sketch": UnpackedSet("imagenet-sketch", (Official("ImageNet-Sketch.zip"),), {"sketch/": ""}),
    "imagenet_v2": UnpackedSet(
        "imagenetv2-matched-frequency-format-val",
        (Official("imagenetv2-matched-frequency.tar.gz"),),
        {"imagenetv2-matched-frequency-format-val/": ""},
    ),
    "inaturalist18": UnpackedSet(
        "inaturalist18",
        tuple(map(Official, ("train_val2018.tar.gz", "train2018.json.tar.gz", "val2018.json.tar.gz"))),
        {"train_val2018/": "train_val2018/", "train2018.json": "train2018.json", "val2018.json": "val2018.json"},
    ),
    "voc07": UnpackedSet(
        "VOCdevkit/VOC2007",
        (
            Official("VOCtrainval_06-Nov-2007.tar", "c52e279531787c972589f7e41ab4ae64"),
            Official("VOCtest_06-Nov-2007.tar", "b6e924de25625d8de591ea690078ad9f"),
        ),
        {"VOCdevkit/VOC2007/": ""},
    ),
}
"""Data set -> its archives and folders."""
