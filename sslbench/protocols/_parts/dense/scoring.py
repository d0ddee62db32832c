"""Scores of trained heads: whole images, in sliding windows, at several scales, with their mirror images."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from sslbench.data.decode.transforms import normalise
from sslbench.data.loading.joint import PixelTarget, WholeImage, whole_images
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense.heads import DenseHead, MapEncoder, Sizes
from sslbench.protocols._parts.dense.task import DenseTask
from sslbench.solvers.dense.heads import centre_padded, resized, sliding_logits, window_starts


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
    views = [
        _View(each.flip(-1) if flipped else each, flipped)
        for each in _scaled(images, inference)
        for flipped in ((False, True) if inference.flip else (False,))
    ]
    maps = [_maps_of_windows(view.images, encode, inference) for view in views]
    for row, size in enumerate(sizes):
        own_views = [_View(view.images[row : row + 1], view.flipped) for view in views]
        own_maps = [[{name: x[row : row + 1] for name, x in each.items()} for each in of_view] for of_view in maps]
        yield _outputs_of_heads(own_views, own_maps, size, heads, encode.multiple, task, inference)


def _outputs_of_heads(
    views: Sequence["_View"],
    maps: Sequence[Sequence[dict[str, Tensor]]],
    size: tuple[int, int],
    heads: Sequence[DenseHead],
    multiple: int,
    task: DenseTask[Any],
    inference: Inference,
) -> Iterator[Tensor]:
    """Yield the output (K, h, w) of each head for one image from the maps of the windows of its views."""
    window, stride = inference.sizes.window, inference.sizes.stride
    for head in heads:
        outputs = (  # one at a time: those of large scales take most of the memory
            _assembled(view.images, of_windows, head, multiple, task, window, stride)
            for view, of_windows in zip(views, maps, strict=True)
        )
        yield (next(outputs) if len(views) == 1 else _averaged(views, outputs, size, task))[0]


def _averaged(
    views: Sequence["_View"], outputs: Iterator[Tensor], size: tuple[int, int], task: DenseTask[Any]
) -> Tensor:
    """Return the mean (1, K, H, W) of the outputs of several views."""
    total = torch.zeros(())
    for view, output in zip(views, outputs, strict=True):
        each = task.averaged(output)
        each = task.mirrored(each.flip(-1)) if view.flipped else each
        total = total.to(each) + resized(each, size)
    return total / len(views)


@dataclasses.dataclass(frozen=True)
class _View:
    """Images (N, C, H, W) at one scale, mirrored or not."""

    images: Tensor
    flipped: bool


def _scaled(images: Tensor, inference: Inference) -> Iterator[Tensor]:
    largest = max(inference.scales)
    for scale in inference.scales:
        # With a size the images came at the largest scale, else at their own.
        factor = scale / largest if inference.sizes.short_side is not None else scale
        if factor == 1:
            yield images
            continue
        size = [max(1, round(side * factor)) for side in images.shape[-2:]]
        yield functional.resize(images, size, antialias=True)


def _maps_of_windows(images: Tensor, encode: MapEncoder, inference: Inference) -> list[dict[str, Tensor]]:
    """Return the maps (N, c, rows, columns) of each window of images of one shape."""
    windows = _windows(images, inference.sizes.window, inference.sizes.stride)
    found: list[dict[str, Tensor]] = []
    at_once, n = max(1, inference.batch // len(images)), len(images)
    while parts := [centre_padded(part, encode.multiple)[0] for part in itertools.islice(windows, at_once)]:
        maps = encode(torch.cat(parts))
        found += [{name: x[i * n : (i + 1) * n] for name, x in maps.items()} for i in range(len(parts))]
    return found


def _windows(images: Tensor, window: tuple[int, int] | None, stride: tuple[int, int]) -> Iterator[Tensor]:
    """Yield the windows of images in the order of `sliding_logits`."""
    if window is None:
        yield images
        return
    for top in window_starts(images.shape[2], window[0], stride[0]):
        for left in window_starts(images.shape[3], window[1], stride[1]):
            yield images[..., top : top + window[0], left : left + window[1]]


def _assembled(
    image: Tensor,
    maps: Sequence[dict[str, Tensor]],
    head: DenseHead,
    multiple: int,
    task: DenseTask[Any],
    window: tuple[int, int] | None,
    stride: tuple[int, int],
) -> Tensor:
    """Return the output (1, K, H, W) of a head for a view from the maps of its windows, at the size of the view."""
    # `sliding_logits` asks for windows in the order of `_windows`, so the next maps are those of its window.
    found = iter(maps)

    def forward(part: Tensor) -> Tensor:
        # One channel is enough: only the shape is needed, the maps of the window are there.
        padded, (rows, columns) = centre_padded(part[:, :1], multiple)
        output = task.activated(head(next(found)))
        return resized(output, (padded.shape[2], padded.shape[3]))[..., rows, columns]

    if window is None:
        return forward(image)
    return sliding_logits(forward, image, window=window, stride=stride)


def outputs(
    heads: Sequence[DenseHead],
    encode: MapEncoder,
    source: Source,
    task: DenseTask[Any],
    preprocessing: Preprocessing,
    inference: Inference,
    engine: ExtractSettings,
    *,
    unreadable: Callable[[], DataError],
) -> Iterator[tuple[PixelTarget, Iterator[Tensor]]]:
    """Yield the target of every image and the output (K, h, w) of each head; the outputs of one image are in memory."""
    for head in heads:
        head.eval()
    transform = inference.preprocessing(preprocessing)
    stream: Iterator[WholeImage] = whole_images(
        source, task.read, transform, workers=engine.workers, start_method=engine.start_method
    )
    for group in _of_one_shape(stream, inference, unreadable):
        together = torch.cat([whole.image for whole in group]).to(encode.device, non_blocking=True)
        sizes = [(int(whole.target.shape[1]), int(whole.target.shape[2])) for whole in group]
        found = outputs_of(normalise(together, preprocessing), sizes, heads, encode, task, inference)
        for whole, each in zip(group, found, strict=True):
            yield whole.target, each


def _of_one_shape(
    stream: Iterator[WholeImage], inference: Inference, unreadable: Callable[[], DataError]
) -> Iterator[list[WholeImage]]:
    """Yield images of one shape that follow each other, as many as have windows for one forward pass."""
    group: list[WholeImage] = []
    for whole in stream:
        if whole.unreadable:
            raise unreadable()
        one_kind = not group or (whole.image.shape, whole.image.dtype) == (group[0].image.shape, group[0].image.dtype)
        # An image of more windows than a batch goes alone: the quotient is 0.
        if group and (not one_kind or len(group) >= inference.batch // _number_of_windows(group[0].image, inference)):
            yield group
            group = []
        group.append(whole)
    if group:
        yield group


def _number_of_windows(image: Tensor, inference: Inference) -> int:
    window, stride = inference.sizes.window, inference.sizes.stride
    if window is None:
        return 1
    rows, columns = (
        len(window_starts(side, size, step)) for side, size, step in zip(image.shape[-2:], window, stride, strict=True)
    )
    return rows * columns
