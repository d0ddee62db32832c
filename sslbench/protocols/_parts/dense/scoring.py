"""Scores of trained heads: whole images, in sliding windows, at several scales, with their mirror images."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional

from sslbench.arrays import FloatArray
from sslbench.backbones.backbone import Backbone
from sslbench.data.decode.transforms import normalise
from sslbench.data.loading.joint import PixelTarget, ReadTarget, WholeImage, whole_images
from sslbench.data.source import Source
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense.heads import DenseHead, MapEncoder, Sizes
from sslbench.protocols._parts.dense.task import DenseTask
from sslbench.protocols._parts.images import unreadable_images
from sslbench.protocols._parts.pictures import chosen_by_score, sheet
from sslbench.runtime.progress import Progress, stage_progress
from sslbench.solvers.dense import resized
from sslbench.solvers.dense.heads import centre_padded, sliding_logits, window_starts

# Images in each group of the picture.
_SHOWN = 3
# Images (N, C, H, W) at one scale, and whether they are mirrored.
_View = tuple[Tensor, bool]


@dataclasses.dataclass(frozen=True)
class Inference:
    """Manner of scoring an image.

    Attributes:
        scales: factors of the size.
        flip: average with the mirror image.
        batch: windows in one forward pass, at most.
    """

    sizes: Sizes
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    batch: int = 16

    def preprocessing(self, own: Preprocessing) -> Preprocessing:
        """Return the transform of whole images at the largest scale, from which the others are made."""
        side = self.sizes.short_side
        resize = None if side is None else round(side * max(self.scales))
        return dataclasses.replace(own, resize=resize, resized_side="shorter", crop=None, squash=None, scales=(1.0,))


def outputs_of(
    images: Tensor,
    sizes: Sequence[tuple[int, int]],
    heads: Sequence[DenseHead],
    encode: MapEncoder,
    task: DenseTask[Any],
    inference: Inference,
) -> Iterator[Iterator[Tensor]]:
    """Yield the outputs (K, h, w) of the heads for each image; the backbone sees each window once.

    `images`: (N, C, H, W), normalised, at the largest scale.
    """
    views: list[_View] = []
    for scale in inference.scales:
        # With a size the images came at the largest scale, else at their own.
        factor = scale / max(inference.scales) if inference.sizes.short_side is not None else scale
        scaled = images
        if factor != 1:
            shape = [max(1, round(side * factor)) for side in images.shape[-2:]]
            scaled = functional.resize(images, shape, antialias=True)
        views += [
            (scaled.flip(-1), True) if flipped else (scaled, False) for flipped in (False, True)[: 1 + inference.flip]
        ]
    maps = [_maps_of_windows(view, encode, inference) for view, _ in views]
    for row, size in enumerate(sizes):
        own_views = [(view[row : row + 1], flipped) for view, flipped in views]
        own_maps = [[{name: x[row : row + 1] for name, x in each.items()} for each in of_view] for of_view in maps]
        yield _outputs_of_heads(own_views, own_maps, size, heads, encode.multiple, task, inference.sizes)


def _outputs_of_heads(
    views: Sequence[_View],
    maps: Sequence[Sequence[dict[str, Tensor]]],
    size: tuple[int, int],
    heads: Sequence[DenseHead],
    multiple: int,
    task: DenseTask[Any],
    sizes: Sizes,
) -> Iterator[Tensor]:
    """Yield the output (K, h, w) of each head for one image from the maps of the windows of its views."""
    for head in heads:
        outputs = (  # one at a time: those of large scales take most of the memory
            _assembled(view, of_windows, head, multiple, task, sizes)
            for (view, _), of_windows in zip(views, maps, strict=True)
        )
        if len(views) == 1:
            yield next(outputs)[0]
            continue
        total = torch.zeros(())
        for (_, flipped), output in zip(views, outputs, strict=True):
            each = task.averaged(output)
            each = task.mirrored(each.flip(-1)) if flipped else each
            total = total.to(each) + resized(each, size)
        yield (total / len(views))[0]


def _maps_of_windows(images: Tensor, encode: MapEncoder, inference: Inference) -> list[dict[str, Tensor]]:
    """Return the maps (N, c, rows, columns) of each window of images of one shape."""
    windows, n = _windows(images, inference.sizes), len(images)
    maps_of: list[dict[str, Tensor]] = []
    at_once = max(1, inference.batch // n)
    for start in range(0, len(windows), at_once):
        crops = [images[..., rows, columns] for rows, columns in windows[start : start + at_once]]
        maps = encode(torch.cat([centre_padded(crop, encode.multiple)[0] for crop in crops]))
        maps_of += [{name: x[i * n : (i + 1) * n] for name, x in maps.items()} for i in range(len(crops))]
    return maps_of


def _windows(images: Tensor, sizes: Sizes) -> list[tuple[slice, slice]]:
    """Return rows and columns of the windows of images, in the order of `sliding_logits`."""
    if sizes.window is None:
        return [(slice(None), slice(None))]
    rows, columns = (
        [slice(start, start + length) for start in window_starts(side, length, step)]
        for side, length, step in zip(images.shape[-2:], sizes.window, sizes.stride, strict=True)
    )
    return list(itertools.product(rows, columns))


def _assembled(
    image: Tensor, maps: Sequence[dict[str, Tensor]], head: DenseHead, multiple: int, task: DenseTask[Any], sizes: Sizes
) -> Tensor:
    """Return the output (1, K, H, W) of a head for a view from the maps of its windows, at the size of the view."""
    # `sliding_logits` asks for windows in the order of `_windows`, so the next maps are those of its window.
    remaining = iter(maps)

    def forward(part: Tensor) -> Tensor:
        # One channel is enough: only the shape is needed, the maps of the window are there.
        padded, (rows, columns) = centre_padded(part[:, :1], multiple)
        output = task.activated(head(next(remaining)))
        return resized(output, (padded.shape[2], padded.shape[3]))[..., rows, columns]

    if sizes.window is None:
        return forward(image)
    return sliding_logits(forward, image, window=sizes.window, stride=sizes.stride)


@dataclasses.dataclass(frozen=True)
class Scoring:
    """Parts that all scorings of a run share."""

    backbone: Backbone
    encode: MapEncoder
    task: DenseTask[Any]
    inference: Inference
    engine: ExtractSettings
    progress: Progress | None

    def outputs(self, heads: Sequence[DenseHead], source: Source) -> Iterator[tuple[PixelTarget, Iterator[Tensor]]]:
        """Yield the target of every image and the output (K, h, w) of each head; those of one image are in memory."""
        for whole, of_heads in self.every(heads, source, self.task.read):
            if whole.unreadable:
                raise unreadable_images(source, self.backbone.preprocessing, self.engine)
            yield whole.target, of_heads

    def every(
        self, heads: Sequence[DenseHead], source: Source, read: ReadTarget
    ) -> Iterator[tuple[WholeImage, Iterator[Tensor]]]:
        """Yield every image with its target and the output (K, h, w) of each head; none of one that cannot be read."""
        for head in heads:
            head.eval()
        transform = self.inference.preprocessing(self.backbone.preprocessing)
        stream: Iterator[WholeImage] = whole_images(
            source, read, transform, workers=self.engine.workers, start_method=self.engine.start_method
        )
        for group in self._of_one_shape(stream):
            if group[0].unreadable:
                yield group[0], iter(())
                continue
            images = torch.cat([whole.image for whole in group]).to(self.encode.device, non_blocking=True)
            sizes = [(int(whole.target.shape[1]), int(whole.target.shape[2])) for whole in group]
            normalised = normalise(images, self.backbone.preprocessing)
            of_images = outputs_of(normalised, sizes, heads, self.encode, self.task, self.inference)
            yield from zip(group, of_images, strict=True)

    def _of_one_shape(self, stream: Iterator[WholeImage]) -> Iterator[list[WholeImage]]:
        """Yield images of one shape that follow each other, as many as have windows for one forward pass."""
        group: list[WholeImage] = []
        for whole in stream:
            if group and group[0].unreadable:
                yield group
                group = []
            if group:
                first = group[0].image
                # An image of more windows than a batch goes alone: the quotient is 0.
                full = len(group) >= self.inference.batch // len(_windows(first, self.inference.sizes))
                if full or (whole.image.shape, whole.image.dtype) != (first.shape, first.dtype):
                    yield group
                    group = []
            group.append(whole)
        if group:
            yield group

    def score(
        self, heads: Sequence[DenseHead], source: Source, title: str, fixed: Mapping[str, FloatArray] | None = None
    ) -> tuple[dict[int, FloatArray], dict[str, FloatArray]]:
        """Return the rows (N, R) of heads by number, and of outputs that are the same for every image by name."""
        report = stage_progress(self.progress, f"{self.backbone.name}: {title} {source.name}")
        constant = {name: torch.from_numpy(np.asarray(x, dtype=np.float32)) for name, x in (fixed or {}).items()}
        rows: dict[int, list[FloatArray]] = {head.number: [] for head in heads}
        of_fixed: dict[str, list[FloatArray]] = {name: [] for name in constant}
        with torch.inference_mode():
            for done, (target, of_heads) in enumerate(self.outputs(heads, source), start=1):
                for head, output in zip(heads, of_heads, strict=True):
                    rows[head.number].append(self.task.row(output, target))
                for name, output in constant.items():
                    of_fixed[name].append(self.task.row(output, target))
                if report is not None:
                    report(done, len(source))
        return {n: np.stack(each) for n, each in rows.items()}, {n: np.stack(each) for n, each in of_fixed.items()}

    def picture(self, head: DenseHead, rows: FloatArray, test: Source) -> bytes:
        """Return a sheet of the best, median and worst test images, each with its truth and its prediction."""
        values = np.array([self.task.value(row[None]) for row in rows])
        known = np.flatnonzero(np.isfinite(values))
        if not len(known):
            return b""
        groups = {name: known[at].tolist() for name, at in chosen_by_score(values[known], _SHOWN).items()}
        # In the order in which their outputs come.
        shown = sorted(index for group in groups.values() for index in group)
        drawn = {}
        with torch.inference_mode():
            outputs = self.outputs([head], test.select(np.array(shown)))
            for index, (target, of_head) in zip(shown, outputs, strict=True):
                drawn[index] = [Image.fromarray(pixels) for pixels in self.task.drawn(next(of_head), target)]

        def draw(picture: Image.Image, index: int, factor: float) -> Image.Image:
            paper = Image.new("RGB", (3 * picture.width, picture.height))
            for column, image in enumerate((picture, *drawn[index])):
                small = image.resize(picture.size, Image.Resampling.NEAREST)
                paper.paste(small, (column * picture.width, 0))
            return paper

        captions = {index: f"image, truth, prediction: {self.task.caption(float(values[index]))}" for index in shown}
        return sheet(test, groups, captions, draw, self.backbone.preprocessing)
