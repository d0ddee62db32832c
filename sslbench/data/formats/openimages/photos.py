"""Images of Open Images: named by their ids, in folders, archives or shards."""

import contextlib
import dataclasses
import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from sslbench.arrays import IntArray
from sslbench.data.containers.members import is_image
from sslbench.data.decode.files import orientation, upright_size
from sslbench.data.hashes import stamp_of
from sslbench.data.images import Files
from sslbench.data.objects.boxes import size_in_file
from sslbench.data.open import open_data
from sslbench.data.regular import matching
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.targets.target import Images

FOLDERS = {"train": ("train", "training"), "val": ("validation", "val"), "test": ("test",)}
"""Split -> names of its folders."""


@dataclasses.dataclass(frozen=True)
class Photos:
    """Images of a split that lie here.

    Attributes:
        images: all of them.
        names: one per image: that of its file.
        row_of: id of Open Images -> position.
        shown: their location, for messages.
    """

    images: Images
    names: tuple[str, ...]
    row_of: Mapping[str, int]
    shown: str

    def __len__(self) -> int:
        return len(self.names)

    def stamp(self) -> str:
        """Return a hash of the names and states of all files; '' for images in archives."""
        if not isinstance(self.images, Files):
            return ""
        state = hashlib.blake2b(digest_size=16)
        for path in self.images.paths:
            file = os.path.join(self.images.root, path)  # noqa: PTH118 - a Path per file is slow
            with contextlib.suppress(OSError):
                state.update(f"{path}\0{stamp_of(os.stat(file))}\0".encode("utf-8", "surrogatepass"))  # noqa: PTH116
        return state.hexdigest()

    def rows(self, ids: Sequence[str]) -> IntArray:
        """Return the positions of images, -1 for those that do not lie here."""
        return np.fromiter((self.row_of.get(one, -1) for one in ids), dtype=np.int64, count=len(ids))

    def size(self, row: int) -> tuple[int, int]:
        """Read height and width of an upright image from the head of its file; zeros if that fails."""
        if isinstance(self.images, Files):
            return size_in_file(Path(self.images.root) / self.images.paths[row])
        try:
            content = self.images.read(row)
            if not isinstance(content, bytes):
                return int(content.shape[0]), int(content.shape[1])
            with Image.open(io.BytesIO(content)) as image:
                return upright_size(image, orientation(image))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return 0, 0


def photos_of(spec: str, root: Path, split: str, given: str) -> Photos:
    """Return the images of a split: below the usual folders, or in the folder or archive of `?images=`."""
    base = Path(spec) if Path(spec).is_dir() else Path(spec).parent
    if given and not (base / given).is_dir():
        return _packed(str(base / given), split)
    tops = [base / given] if given else [root, root / "images", root / "data"]
    variants = FOLDERS.get(split) or tuple(name for names in FOLDERS.values() for name in names)
    folders = [folder for top in tops for name in variants for folder in (top / name, top / name / "data")]
    # train_0.tar.gz to train_f.tar.gz unpack into folders of these names.
    folders += [folder for top in tops for name in variants for folder in matching(top, f"{name}_?")]
    folders = list(dict.fromkeys(folder for folder in folders if folder.is_dir()))
    for chosen in (folders, *([folder] for folder in reversed(tops) if folder.is_dir())):
        files = [file for folder in chosen for file in matching(folder, "*") if is_image(file.name)]
        if files:
            shown = some([str(folder) for folder in chosen], 2)
            names = [file.relative_to(root) if file.is_relative_to(root) else file for file in files]
            return _of_names(Files(tuple(map(str, names)), str(root)), [f.name for f in files], shown)
    looked = some([str(folder) for folder in dict.fromkeys([*(top / variants[0] for top in tops), *tops])], 6)
    raise DataError(f"{spec}: no images were found in {looked}", "Name their folder or archive: ?images=PLACE.")


def _packed(location: str, split: str) -> Photos:
    sources = open_data(location)
    source = sources.get(split) or sources.get("all")
    if source is None:
        if len(sources) > 1:
            raise DataError(f"{location} has no {split} split, but {some(sorted(sources))}")
        (source,) = sources.values()
    return _of_names(source.images, [PurePosixPath(one).name for one in source.ids], location)


def _of_names(images: Images, names: Sequence[str], shown: str) -> Photos:
    row_of = {(PurePosixPath(name).stem if is_image(name) else name): row for row, name in enumerate(names)}
    if len(row_of) < len(names):
        kept = set(row_of.values())
        twice = [name for row, name in enumerate(names) if row not in kept]
        raise DataError(f"{shown}: {counted(len(twice), 'image')} there twice: {some(twice)}")
    return Photos(images, tuple(names), row_of, shown)
