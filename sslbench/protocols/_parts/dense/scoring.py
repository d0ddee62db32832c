"""Scores of trained heads: whole images one by one, in sliding windows, at several scales, with their mirror images."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from sslbench.data.decode.transforms import normalise
from sslbench.data.loading.joint import Target, WholeImage, whole_images
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.features.extract import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense.heads import DenseHead, MapEncoder, Sizes
from sslbench.protocols._parts.dense.task import DenseTask
from sslbench.solvers.dense.windows import centre_padded, resized, sliding_logits, window_starts


@dataclasses.dataclass(frozen=True)
class Inference:
    """Manner of scoring an image.

    Attributes:
        sizes: of images and windows.
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
    image: Tensor,
    size: tuple[int, int],
    heads: Sequence[DenseHead],
    encode: MapEncoder,
    task: DenseTask,
    inference: Inference,
) -> Iterator[Tensor]:
    """Yield the output (K, h, w) of each head for one image; the backbone sees each window once.

    Args:
        image: (1, C, H, W), normalised, at the largest scale.
        size: height and width of its target, at which flips and scales are averaged.
        heads: in evaluation mode.
        encode: the frozen backbone.
        task: activation, and what is averaged.
        inference: windows, scales and flips.
    """
    views = [
        _View(each.flip(-1) if flipped else each, flipped)
        for each in _scaled(image, inference)
        for flipped in ((False, True) if inference.flip else (False,))
    ]
    window, stride = inference.sizes.window, inference.sizes.stride
    maps = [_maps_of_windows(view.image, encode, inference) for view in views]
    for head in heads:
        outputs = (  # one at a time: those of large scales take most of the memory
            _assembled(view.image, of_windows, head, encode.multiple, task, window, stride)
            for view, of_windows in zip(views, maps, strict=True)
        )
        yield (next(outputs) if len(views) == 1 else _averaged(views, outputs, size, task))[0]


def _averaged(views: Sequence["_View"], outputs: Iterator[Tensor], size: tuple[int, int], task: DenseTask) -> Tensor:
    """Return the mean (1, K, H, W) of the outputs of several views."""
    total = torch.zeros(())
    for view, output in zip(views, outputs, strict=True):
        each = task.averaged(output)
        each = task.mirrored(each.flip(-1)) if view.flipped else each
        total = total.to(each) + resized(each, size)
    return total / len(views)


@dataclasses.dataclass(frozen=True)
class _View:
    """Image at one scale, mirrored or not."""

    image: Tensor
    flipped: bool


def _scaled(image: Tensor, inference: Inference) -> Iterator[Tensor]:
    largest = max(inference.scales)
    for scale in inference.scales:
        # With a size the image came at the largest scale, else at its own.
        factor = scale / largest if inference.sizes.short_side is not None else scale
        if factor == 1:
            yield image
            continue
        size = [max(1, round(side * factor)) for side in image.shape[-2:]]
        yield functional.resize(image, size, antialias=True)


def _maps_of_windows(image: Tensor, encode: MapEncoder, inference: Inference) -> list[dict[str, Tensor]]:
    """Return the maps of each window of an image."""
    windows = _windows(image, inference.sizes.window, inference.sizes.stride)
    found: list[dict[str, Tensor]] = []
    while parts := [centre_padded(part, encode.multiple)[0] for part in itertools.islice(windows, inference.batch)]:
        maps = encode(torch.cat(parts))
        found += [{name: values[i : i + 1] for name, values in maps.items()} for i in range(len(parts))]
    return found


def _windows(image: Tensor, window: tuple[int, int] | None, stride: tuple[int, int]) -> Iterator[Tensor]:
    """Yield the windows of an image in the order of `sliding_logits`."""
    if window is None:
        yield image
        return
    for top in window_starts(image.shape[2], window[0], stride[0]):
        for left in window_starts(image.shape[3], window[1], stride[1]):
            yield image[..., top : top + window[0], left : left + window[1]]


def _assembled(
    image: Tensor,
    maps: Sequence[dict[str, Tensor]],
    head: DenseHead,
    multiple: int,
    task: DenseTask,
    window: tuple[int, int] | None,
    stride: tuple[int, int],
) -> Tensor:
    """Return the output (1, K, H, W) of a head for a view from the maps of its windows, at the size of the view."""
    found = iter(maps)

    def forward(part: Tensor) -> Tensor:
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
    task: DenseTask,
    preprocessing: Preprocessing,
    inference: Inference,
    engine: ExtractSettings,
    *,
    unreadable: Callable[[], DataError],
) -> Iterator[tuple[Target, Iterator[Tensor]]]:
    """Yield the target of every image and the output (K, h, w) of each head; memory is that of one image.

    Args:
        heads: trained.
        encode: the frozen backbone.
        source: images with targets.
        task: see there.
        preprocessing: mean and std of the images.
        inference: sizes, scales and flips.
        engine: workers are used.
        unreadable: makes the error about unreadable images.

    Raises:
        DataError: an image cannot be read.
    """
    for head in heads:
        head.eval()
    transform = inference.preprocessing(preprocessing)
    stream: Iterator[WholeImage] = whole_images(
        source, task.read, transform, workers=engine.workers, start_method=engine.start_method
    )
    for whole in stream:
        if whole.unreadable:
            raise unreadable()
        image = normalise(whole.image.to(encode.device, non_blocking=True), preprocessing)
        yield whole.target, outputs_of(image, _size(whole.target), heads, encode, task, inference)


def _size(target: Target) -> tuple[int, int]:
    return int(target.shape[1]), int(target.shape[2])
