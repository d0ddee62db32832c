"""Image files of a source; images inside containers are extracted to a folder."""

import io
import os
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.members import is_image, safe_name
from sslbench.data.formats.coco.asset_images import AssetImages
from sslbench.data.images import Files
from sslbench.data.joined import located, sources_of
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.paths import not_written
from sslbench.targets.target import Images

_SIGNATURES = (
    *((b"\xff\xd8\xff", ".jpg"), (b"\x89PNG", ".png"), (b"GIF8", ".gif"), (b"BM", ".bmp"), (b"II*\0", ".tif")),
    *((b"MM\0*", ".tif"), (b"RIFF", ".webp"), (b"\x93NUMPY", ".npy"), (b"PK\x03\x04", ".npz"), (b"P5", ".pgm")),
    (b"P6", ".ppm"),
)


class Extractor:
    """Provider of the file of each image, which extracts those that have none.

    Attributes:
        written: number of extracted files.
    """

    def __init__(self, folder: Path | None, *, start: Path | None) -> None:
        """Set the folder of extracted images, and the base of relative paths; absolute paths without one."""
        self._folder, self._start = folder, start
        self._taken: set[str] = set()
        self.written = 0

    def check(self, name: str, split: str, images: Images) -> None:
        """Raise if images have to be extracted and cannot be.

        Raises:
            UsageError: no folder is given, or it already holds the split.
        """
        if isinstance(images, AssetImages) or all(isinstance(part, Files) for part in sources_of(images)):
            return
        if self._folder is None:
            raise UsageError(
                f"the images of {name} are not single files, and a manifest lists files",
                "Extract them to a folder with --extract FOLDER.",
            )
        target = self._folder / split
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{target} exists already and is not empty", "Give another folder.")

    def file(self, source: Source, split: str, index: int) -> str:
        """Return the path of an image's file in the manifest, extracting it if necessary.

        Raises:
            DataError: the image cannot be read, or the file cannot be written.
        """
        images, row = located(source.images, index)
        if isinstance(images, Files):
            return self.shown(Path(images.root) / images.paths[row])
        folder = self._folder or Path()
        try:
            content, suffix = _content(images.read(row))
        except OSError as error:
            raise DataError(f"{images.path(row)} cannot be read: {error.strerror or error}") from error
        target = folder / split / self._name(split, source.ids[index], suffix)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except OSError as error:
            raise DataError(not_written(target, error)) from error
        self.written += 1
        return self.shown(target)

    def _name(self, split: str, sample: str, suffix: str) -> str:
        """Return the id as a unique path below the folder, with a suffix that fits the content."""
        name = safe_name(sample) or sample.replace("/", "_").replace("..", "_")
        if not (is_image(name) or name.lower().endswith((".npy", ".npz"))):
            name += suffix
        stem, kept = PurePosixPath(name).with_suffix(""), PurePosixPath(name).suffix
        k = 1
        while f"{split}/{name}".casefold() in self._taken:  # some file systems ignore case
            k += 1
            name = f"{stem}-{k}{kept}"
        self._taken.add(f"{split}/{name}".casefold())
        return name

    def shown(self, file: Path) -> str:
        """Return the path of a file in the manifest."""
        if self._start is None:
            return os.path.abspath(file)  # noqa: PTH100 - links stay as they are
        return Path(os.path.relpath(file, self._start)).as_posix()


def _content(image: bytes | npt.NDArray[np.uint8]) -> tuple[bytes, str]:
    """Return the content of the file to write, and its suffix."""
    if isinstance(image, bytes):
        return image, next((suffix for start, suffix in _SIGNATURES if image.startswith(start)), ".img")
    file = io.BytesIO()
    if image.ndim == 2 or image.shape[2] in (1, 3, 4):
        from PIL import Image

        Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image).save(file, "png")
        return file.getvalue(), ".png"
    np.save(file, image)
    return file.getvalue(), ".npy"
