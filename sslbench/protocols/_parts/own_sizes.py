"""Maps of features of images at their own sizes, for tasks without training."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  torch's customary name
from torch import Tensor

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.data.decode.transforms import normalise, resize_and_crop, resized
from sslbench.data.loading import loader
from sslbench.errors import DataError
from sslbench.protocols._parts.images import unreadable_images
from sslbench.protocols._parts.map_settings import Fit
from sslbench.protocols._parts.untrained import MapRun

MOST_CELLS = 10_000
"""Largest number of cells of a map; all pairs of them take 800 MB per matrix of float64."""
_CHUNK = 8


@dataclasses.dataclass(frozen=True)
class MappedImage:
    """Maps of one image.

    Attributes:
        index: of the image in its source.
        size: height and width in its file.
        scale: factor from pixels of the file to pixels that were encoded, without padding.
        encoded: float32 (channels, H, W), the normalised pixels with their padding.
        maps: name of an input -> float32 (C, h, w).
    """

    index: int
    size: tuple[int, int]
    scale: tuple[float, float]
    encoded: Tensor
    maps: dict[str, Tensor]

    def cell(self, grid: tuple[int, int]) -> tuple[float, float]:
        """Return height and width of a cell of a map with these rows and columns, in pixels of the file."""
        down, across = (
            side / cells / factor for side, cells, factor in zip(self.encoded.shape[1:], grid, self.scale, strict=True)
        )
        return down, across


def mapped_images(run: MapRun[Any], *, fit: Fit, longest_side: int, title: str) -> Iterator[MappedImage]:
    """Yield the maps of every test image, in any order, in memory for a few images.

    Args:
        run: images, encoder, workers and progress; of the preprocessing decoder, mean and std are used.
        fit: see `Fit`.
        longest_side: larger images are reduced to this longer side; 0: none is.
        title: for progress.

    Raises:
        DataError: images that cannot be read, or maps of more than `MOST_CELLS` cells.
    """
    source, encoder, preprocessing, engine = run.test, run.encoder, run.preprocessing, run.engine
    whole = dataclasses.replace(preprocessing, resize=None, crop=None, squash=None)
    rows, done = np.arange(len(source)), 0
    for batch in loader.batches(
        source,
        rows,
        whole,
        batch_size=_CHUNK,
        workers=engine.workers,
        start_method=engine.start_method,
        mixed_sizes=True,
    ):
        if batch.unreadable:
            raise unreadable_images(source, preprocessing, engine)
        if not len(batch.indices):
            continue
        size = int(batch.images.shape[2]), int(batch.images.shape[3])
        kept, padded = _sizes(size, encoder.multiple, fit, longest_side)
        images = batch.images
        if kept != size:
            how = "lanczos" if fit == "resize" else preprocessing.interpolation
            changed = dataclasses.replace(whole, resize=kept, interpolation=how)
            images = torch.stack([resize_and_crop(image, changed) for image in images])
        encoded = F.pad(normalise(images, preprocessing), (0, padded[1] - kept[1], 0, padded[0] - kept[0]))
        maps = {name: found.cpu() for name, found in encoder(encoded).items()}
        for name, found in maps.items():
            if found.shape[2] * found.shape[3] > MOST_CELLS:
                path = source.images.path(int(batch.indices[0]))
                raise DataError(
                    f"{path}: {size[1]} x {size[0]} pixels are a map of {found.shape[3]} x {found.shape[2]} cells of "
                    f"{name}, more than {MOST_CELLS:,}",
                    "Reduce large images: longest_side=640.",
                )
        scale = kept[0] / size[0], kept[1] / size[1]
        for i, index in enumerate(batch.indices.tolist()):
            yield MappedImage(index, size, scale, encoded[i], {name: found[i] for name, found in maps.items()})
        done += len(batch.indices)
        if run.progress is not None:
            run.progress(title, done, len(source))


def _sizes(
    size: tuple[int, int], multiple: int, fit: Fit, longest_side: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return height and width before and after the padding."""
    if longest_side and max(size) > longest_side:
        size = resized(*size, longest_side, "longer")
    if fit == "resize":
        height, width = (max(1, round(side / multiple)) * multiple for side in size)
        return (height, width), (height, width)
    height, width = (-(-side // multiple) * multiple for side in size)
    return size, (height, width)


def attention_block(backbone: Backbone, layer: Layer) -> str | None:
    """Return the block whose attention a layer holds: a block itself, or the last one for the tokens behind it.

    None for layers of networks without attention.
    """
    paths = set(dict(backbone.module.named_modules()))
    if f"{layer.path}.attn.qkv" in paths:
        return layer.path
    blocks = [path for path in paths if f"{path}.attn.qkv" in paths and path.startswith("blocks.")]
    inside = layer.path.startswith("blocks.")
    return None if inside or not blocks else max(blocks, key=lambda path: int(path.rpartition(".")[2]))
