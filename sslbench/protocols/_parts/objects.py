"""One object per image by LOST, TokenCut or DINO-seg, in maps of a frozen backbone of images at their own sizes."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  torch's customary name
from torch import Tensor, nn

from sslbench.arrays import FloatArray
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.dense import DenseInput, layer_inputs
from sslbench.backbones.layers import Layer, resolve_layers
from sslbench.data.decode.transforms import normalise, resize_and_crop, resized
from sslbench.data.groups import source_groups
from sslbench.data.loading import loader
from sslbench.errors import DataError, UsageError
from sslbench.metrics.summary import without_intervals
from sslbench.protocols._parts.images import unreadable_images
from sslbench.protocols._parts.pictures import Drawing, chosen_by_score, sheet
from sslbench.protocols._parts.untrained import Fit, MapRun, SearchSettings
from sslbench.results import Outcome
from sslbench.solvers.discovery import DiscoveredObject, Mask, dino_seg

# Left, upper, right and lower end in pixels of an image.
Box = tuple[float, float, float, float]

# Largest number of cells of a map; all pairs of them take 800 MB per matrix of float64.
MOST_CELLS = 10_000
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

    `run`: images, encoder, workers and progress; of the preprocessing decoder, mean and std are used; `longest_side`:
    larger images are reduced to this longer side; 0: none is.
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
            # TokenCut's code for saliency resizes to whole patches with Lanczos.
            how = "lanczos" if fit == "resize" else preprocessing.interpolation
            changed = dataclasses.replace(whole, resize=kept, interpolation=how)
            images = torch.stack([resize_and_crop(image, changed) for image in images])
        # Zeros after the normalisation, as LOST pads: not black pixels.
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


@dataclasses.dataclass(frozen=True)
class SearchedMap:
    """Map in which objects are searched: one row of results.

    Attributes:
        name: of the row.
        inputs: maps of the encoder that it takes: one, or for DINO-seg keys and queries.
        heads: number of heads of the attention; 0 if it is not used.
    """

    name: str
    inputs: tuple[DenseInput, ...]
    heads: int = 0

    def object_of(self, image: MappedImage, search: SearchSettings) -> tuple[DiscoveredObject | None, tuple[int, int]]:
        """Return the object of an image, None if there is none, and rows and columns of the map."""
        found = image.maps[self.inputs[0].name]
        grid = int(found.shape[1]), int(found.shape[2])
        if self.heads:
            attention = class_attention(found, image.maps[self.inputs[1].name], self.heads, search.head)
            return dino_seg(attention, grid, mass=search.mass), grid
        features = found.flatten(1).T.double().numpy()
        return search.in_features(features if self.inputs[0].facet != "token" else standardised(features), grid), grid

    def object_in_pixels(self, image: MappedImage, search: SearchSettings) -> DiscoveredObject | None:
        """Return the object that LOST or TokenCut finds in the mean colours of the same cells; None for DINO-seg."""
        if self.heads:
            return None
        height, width = image.maps[self.inputs[0].name].shape[1:]
        colours = nn.functional.adaptive_avg_pool2d(image.encoded, (height, width)).flatten(1).T.double().numpy()
        return search.in_features(colours - colours.mean(axis=0), (int(height), int(width)))


def searched_maps(backbone: Backbone, layers: Sequence[Layer], settings: SearchSettings) -> tuple[SearchedMap, ...]:
    """Return a map per layer.

    `settings`: method and features; 'auto' takes keys of the last block with attention up to the layer, where there is
    one, and else the layer's own map.
    """
    features = settings.features
    found: dict[str, SearchedMap] = {}
    for layer in layers:
        block = attention_block(backbone, layer)
        if settings.method == "dino_seg":
            each = _attention_map(backbone, layer, block, settings.head)
        elif features == "token" or (features == "auto" and block is None):
            (own,) = layer_inputs(backbone, [layer])
            each = SearchedMap(own.name, (own,))
        else:
            facet = "key" if features == "auto" else features
            chosen = [layer] if block is None else resolve_layers(backbone, [block])
            (own,) = layer_inputs(backbone, chosen, facet=facet)
            each = SearchedMap(own.name, (own,))
        found[each.name] = each
    return tuple(found.values())


@dataclasses.dataclass(frozen=True)
class Region:
    """Region of an image.

    Attributes:
        box: around it; None if nothing is found.
        mask: its pixels, (H, W).
    """

    box: Box | None
    mask: Mask


def regions_of_images(
    run: MapRun[Any], *, fit: Fit, title: str
) -> Iterator[tuple[MappedImage, dict[str, dict[str, Region]]]]:
    """Yield every test image with the regions of each row: '' the one found in the map, and those of the floors."""
    settings = run.settings
    searched = searched_maps(run.backbone, run.layers, settings)
    for image in mapped_images(run, fit=fit, longest_side=settings.longest_side, title=title):
        height, width = image.size
        rows = {}
        for row in searched:
            found, grid = row.object_of(image, settings)
            rows[row.name] = {"": _region(found, image, grid)}
            if not row.heads:
                rows[row.name]["pixels"] = _region(row.object_in_pixels(image, settings), image, grid)
            rows[row.name]["whole image"] = _filled((0.0, 0.0, float(width), float(height)), image.size)
            rows[row.name]["centred box"] = _filled(centred_box(image.size), image.size)
        yield image, rows


def _region(found: DiscoveredObject | None, image: MappedImage, grid: tuple[int, int]) -> Region:
    if found is None:
        return Region(None, np.zeros(image.size, np.bool_))
    cell = image.cell(grid)
    return Region(found.box(cell, *image.size), found.pixels(cell, *image.size))


def _filled(box: Box, size: tuple[int, int]) -> Region:
    mask = np.zeros(size, np.bool_)
    left, top, right, bottom = (round(side) for side in box)
    mask[top:bottom, left:right] = True
    return Region(box, mask)


def outcome_of_regions(
    values: Mapping[str, FloatArray], run: MapRun[Any], notes: Sequence[str], overlap: FloatArray, draw: Drawing
) -> Outcome:
    """Return the outcome of a row, with a sheet of the images of best, median and worst IoU, these below them.

    `values`: '' and floors -> values (N, K) of the regions of the test images; `overlap`: their IoU (N,).
    """
    shown = chosen_by_score(overlap)
    captions = {i: f"IoU {overlap[i]:.2f}" for rows in shown.values() for i in rows}
    target = run.test.target
    return Outcome.of(
        target,
        values[""],
        seed=run.seed,
        groups=source_groups(run.test),
        notes=tuple(notes),
        floors={name: without_intervals(type(target), target.values, each) for name, each in values.items() if name},
        picture=sheet(run.test, shown, captions, draw, run.preprocessing),
    )


def _attention_map(backbone: Backbone, layer: Layer, block: str | None, head: int) -> SearchedMap:
    """Return the attention of the class token in a block."""
    if block is None:
        raise UsageError(
            f"dino_seg takes the attention of a class token; layer '{layer.text}' of {backbone.name} has none",
            "Use a vision transformer, or method=lost.",
        )
    modules = dict(backbone.module.named_modules())
    attention = modules[f"{block}.attn"]
    heads = int(vars(attention).get("num_heads", 0))
    # Normalised or rotated queries have another attention than the product of the recorded ones.
    plain = isinstance(modules.get(f"{block}.attn.q_norm", nn.Identity()), nn.Identity) and "rope" not in modules
    if not heads or not plain:
        raise UsageError(
            f"dino_seg: the attention of {backbone.name} is more than the product of queries and keys",
            "Use method=lost or method=tokencut.",
        )
    if head >= heads:
        raise UsageError(f"dino_seg: head={head}, but {block} of {backbone.name} has the heads 0 to {heads - 1}")
    chosen = resolve_layers(backbone, [block])
    keys = layer_inputs(backbone, chosen, facet="key")
    queries = layer_inputs(backbone, chosen, facet="query", cls=True)
    return SearchedMap(f"{block}@attention", (*keys, *queries), heads)


def class_attention(keys: Tensor, queries: Tensor, heads: int, head: int) -> FloatArray:
    """Return the attention of the class token to the patches (P,) in one head, as a share of all patches.

    >>> keys = torch.tensor([[[0.0, 0.0]], [[0.0, 5.0]]])
    >>> class_attention(keys, torch.ones(4, 1, 2), heads=2, head=1).round(3).tolist()
    [0.007, 0.993]

    `keys`: (C, h, w).
    """
    width = keys.shape[0]
    part = slice(head * (width // heads), (head + 1) * (width // heads))
    # The class token was joined behind the channels of the patches, the same in every cell.
    query = queries[width:, 0, 0][part].double()
    scores = query @ keys[part].flatten(1).double() / (width // heads) ** 0.5
    return np.asarray(torch.softmax(scores, dim=0).numpy())


def standardised(features: FloatArray) -> FloatArray:
    """Return features (P, C) of mean 0 and variance 1 over the whole map, as LOST does with ResNets.

    Behind a ReLU all products are positive, so that no patch could be told from another.

    >>> standardised(np.array([[0.0, 2.0], [2.0, 0.0]])).round(3).tolist()
    [[-1.0, 1.0], [1.0, -1.0]]
    """
    return np.asarray((features - features.mean()) / np.sqrt(features.var() + 1e-5))


def centred_box(size: tuple[int, int]) -> Box:
    """Return a box in the centre of an image of this height and width, with half of its area.

    >>> [round(side) for side in centred_box((100, 200))]
    [29, 15, 171, 85]
    """
    height, width = size
    margin = (1 - math.sqrt(0.5)) / 2
    return margin * width, margin * height, (1 - margin) * width, (1 - margin) * height


def attention_block(backbone: Backbone, layer: Layer) -> str | None:
    """Return the block whose attention a layer holds: a block itself, or the last one for the tokens behind it.

    None for layers of networks without attention.
    """
    paths = set(dict(backbone.module.named_modules()))
    if f"{layer.path}.attn.qkv" in paths:
        return layer.path
    blocks = [path for path in paths if f"{path}.attn.qkv" in paths and path.startswith("blocks.")]
    inside = layer.path.startswith("blocks.")
    # By number: as text, blocks.9 comes after blocks.11.
    return None if inside or not blocks else max(blocks, key=lambda path: int(path.rpartition(".")[2]))
