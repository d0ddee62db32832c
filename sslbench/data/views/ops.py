"""Computation of one augmented view of a picture on one core.

The resize is torchvision's on the tensor; colour and blur are OpenCV's on interleaved bytes. For a view of 224 pixels
on one core that was 10 times faster than Pillow for hue, 4 to 20 times for blur (by sigma) and nearly 3 times for the
resize; tensors were slower than Pillow for hue and blur. The blur is also nearer to a Gaussian than Pillow's, which
imitates one by box filters; hue is about as near as Pillow's.

This holds for 8-bit RGB. Other channels, and 16-bit samples (float32 from 0 to 255), are changed each separately. On
RGB the results would be equal within one level, except for contrast: it scales the distances from the mean grey of RGB,
and of others those from the mean of each channel, since bands of a satellite or stains of a microscope have no common
grey.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode, functional

from sslbench.arrays import ByteArray
from sslbench.data.views import COLOURS, OF_TORCHVISION, View, code_names, colours, entry_name
from sslbench.data.views.colours import Uniform
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, find_object
from sslbench.runtime.seeds import preserved_random_states

Transform = Callable[[Tensor], Tensor]
Box = tuple[float, float, float, float]
"""Edges of a view in its picture, in pixels: top, left, bottom, right; right is below left for a mirrored view."""


class Crop(NamedTuple):
    """Views of one crop.

    Attributes:
        views: one, or one per cell of a grid; each (C, size, size).
        box: edges of the crop.
        colours: changes of the view that are left to the training device, see `draw_colours`; else empty.
    """

    views: tuple[torch.Tensor, ...]
    box: Box
    colours: Sequence[float] = ()


_MODES = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}
_CROP_ATTEMPTS = 10
_LEVELS = np.arange(256)


def augment(view: View, changes: "Changes", image: torch.Tensor) -> torch.Tensor:
    """Return one view of a picture: (C, H, W) to (C, size, size) of the same dtype, channels interleaved in memory."""
    return augment_grid(view, changes, image).views[0]


def augment_grid(view: View, changes: "Changes", image: torch.Tensor) -> Crop:
    """Return the views in the cells of one crop's grid, column by column.

    A crop of side * (size + gap) pixels is cut after or, with grid.augment=views, before flip and colour changes. A
    grid of one cell gives the view of `augment`.
    """
    draw = Uniform()
    if view.grid.side == 1:
        pixels, box = _crop(view, image, draw)
        pixels, mirrored = _changed(view, changes, pixels, draw)
        return Crop((_as_tensor(pixels),), _mirrored(box) if mirrored else box)
    # Beside the draws of the view, whose number is the same with and without a grid.
    places = Uniform(2 * view.cells)
    pixels, box = _crop(view, image, draw)
    if view.grid.augment == "crop":
        pixels, mirrored = _changed(view, changes, pixels, draw)
        box = _mirrored(box) if mirrored else box
    offsets = np.array([int(places(0, view.grid.gap + 1)) for _ in range(2 * view.cells)])
    offsets = offsets.reshape(2, view.grid.side, view.grid.side)
    patches = cut_patches(_as_tensor(pixels), view.cells, view.grid.gap, offsets)
    if view.grid.augment == "crop":
        return Crop(patches.unbind(), box)
    cells = [np.ascontiguousarray(patch.permute(1, 2, 0).numpy()) for patch in patches]
    return Crop(tuple(_as_tensor(_changed(view, changes, cell, Uniform())[0]) for cell in cells), box)


def cut_patches(image: Tensor, count: int, jitter: int, offsets: npt.NDArray[np.int64]) -> Tensor:
    """Cut one square patch from each cell of a grid, at an offset within the cell (Noroozi and Favaro 2016; VISSL).

    `image`: (3, H, W) with W >= H; the grid is square, so the rest of a wider image is unused; `offsets`: int (2, side,
    side), each 0 to jitter: x [0, i, j] and y [1, i, j] of the cell in column i, row j; returns (count, 3, p, p) with p
    = H // side - jitter, column by column.
    """
    side = math.isqrt(count)
    cell = image.shape[1] // side if side else 0
    inside = offsets.shape == (2, side, side) and offsets.min() >= 0 and offsets.max() <= jitter
    if side * side != count or image.shape[2] < image.shape[1] or not inside or not 0 <= jitter < cell:
        shape = tuple(image.shape)
        raise ValueError(f"{count} patches, jitter {jitter}, of an image {shape} at offsets {offsets.shape}")
    length, patches = cell - jitter, []
    for column, row in itertools.product(range(side), repeat=2):
        x, y = (cell * at + int(offsets[axis, column, row]) for axis, at in enumerate((column, row)))
        patches.append(image[:, y : y + length, x : x + length])
    return torch.stack(patches)


def augment_but_colours(view: View, image: torch.Tensor) -> Crop:
    """Return the view of `augment` with its colours unchanged, and the changes that are left."""
    draw = Uniform()
    pixels, box = _crop(view, image, draw)
    pixels, mirrored = _changed(view, (), pixels, draw)
    return Crop((_as_tensor(pixels),), _mirrored(box) if mirrored else box, colours.draw_colours(view, draw))


def whole(make: Callable[[torch.Tensor], torch.Tensor], image: torch.Tensor) -> Crop:
    """Return the one view that a function makes of a picture, with the edges of the picture in place of the view's."""
    return Crop((make(image),), (0.0, 0.0, float(image.shape[1]), float(image.shape[2])))


def _mirrored(box: Box) -> Box:
    top, left, bottom, right = box
    return top, right, bottom, left


def _crop(view: View, image: torch.Tensor, draw: Uniform) -> tuple[ByteArray, Box]:
    """Return the resized crop of a picture, (side, side, C), and its edges."""
    top, left, height, width = crop_box(
        image.shape[1], image.shape[2], view.scale, view.ratio, draw, square=view.scale_of == "square"
    )
    side = view.crop_side
    # A copy of the crop with interleaved channels: from a part of a picture, torch makes planes, which takes twice as
    # long and has to be undone. The pixels are equal.
    crop = image[:, top : top + height, left : left + width].permute(1, 2, 0).contiguous().permute(2, 0, 1)
    # With antialiasing, as Pillow resizes; without, small views would be noisy.
    resized = functional.resize(crop, [side, side], interpolation=_MODES[view.interpolation], antialias=True)
    pixels = np.ascontiguousarray(resized.permute(1, 2, 0).numpy())
    pixels = pixels if pixels.dtype == np.uint8 else pixels.clip(0, 255)  # the bicubic filter overshoots
    return pixels, (float(top), float(left), float(top + height), float(left + width))


def _changed(view: View, changes: "Changes", pixels: ByteArray, draw: Uniform) -> tuple[ByteArray, bool]:
    """Return a picture after flip and changes, and whether it was mirrored."""
    mirrored = draw() < view.flip
    if mirrored:
        pixels = flip(pixels)
    for change in changes:
        pixels = change(pixels, view, draw)
    return pixels, mirrored


def _as_tensor(pixels: ByteArray) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1)


def crop_box(
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    draw: Uniform,
    *,
    square: bool = False,
) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of a random crop, distributed as in torchvision's RandomResizedCrop."""
    # Up to ten areas and aspect ratios are drawn; if none fits into the picture, the largest central crop with an
    # allowed ratio is taken. Areas are shares of the picture's or, with `square`, of that of the largest square in it.
    whole = min(height, width) ** 2 if square else height * width
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_CROP_ATTEMPTS):
        area = whole * draw(*scale)
        aspect = math.exp(draw(low, high))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(draw(0, height - h + 1)), int(draw(0, width - w + 1)), h, w
    own = width / height
    w, h = width, height
    if own < ratio[0]:
        h = min(height, max(1, round(width / ratio[0])))
    elif own > ratio[1]:
        w = min(width, max(1, round(height * ratio[1])))
    return (height - h) // 2, (width - w) // 2, h, w


def flip(pixels: ByteArray) -> ByteArray:
    """Mirror a picture horizontally; any channels."""
    if not _is_rgb(pixels):
        return np.ascontiguousarray(pixels[:, ::-1])
    return np.asarray(cv2.flip(pixels, 1), dtype=np.uint8)


def adjust_brightness(pixels: ByteArray, factor: float) -> ByteArray:
    """Multiply every value by `factor`, as Pillow's ImageEnhance.Brightness does; any channels."""
    if not _is_rgb(pixels):
        return _within_range(pixels * np.float32(factor), pixels)
    return _look_up(pixels, _LEVELS * factor)


def adjust_contrast(pixels: ByteArray, factor: float) -> ByteArray:
    """Multiply the distances from the picture's mean grey by `factor`, as Pillow's ImageEnhance.Contrast does.

    Channels other than RGB each have their own mean.
    """
    if not _is_rgb(pixels):
        # Of float32 numpy would take the sum in float32, too.
        means = pixels.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
        return _within_range(means + np.float32(factor) * (pixels - means), pixels)
    # Rounded as in ImageEnhance.Contrast.
    mean = int(cv2.mean(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY))[0] + 0.5)
    return _look_up(pixels, mean + factor * (_LEVELS - mean))


def adjust_saturation(pixels: ByteArray, factor: float) -> ByteArray:
    """Multiply the distances from each pixel's grey by `factor`; equal to ImageEnhance.Color within one level."""
    matrix = factor * np.eye(3) + (1 - factor) * np.array(colours.LUMA)[None, :]
    return np.asarray(cv2.transform(pixels, matrix.astype(np.float32)), dtype=np.uint8)


def adjust_hue(pixels: ByteArray, turns: float) -> ByteArray:
    """Shift the hue by a part of the colour circle, with 8 bits for hue and saturation as in Pillow's HSV."""
    # FULL: the hue has all 256 values of 8 bits, as Pillow's, not OpenCV's usual 180.
    hsv = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV_FULL), dtype=np.uint8)
    hsv[:, :, 0] += np.uint8(round(turns * 256) % 256)  # hue is circular
    return np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL), dtype=np.uint8)


def to_grayscale(pixels: ByteArray) -> ByteArray:
    """Replace all three channels by the luma."""
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB), dtype=np.uint8)


def gaussian_blur(pixels: ByteArray, sigma: float, reach: int) -> ByteArray:
    """Convolve with a Gaussian of `sigma` pixels, cut off after `reach` pixels, and mirrored borders; any channels."""
    side = 2 * reach + 1
    blurred = cv2.GaussianBlur(pixels, (side, side), sigma, borderType=cv2.BORDER_REFLECT_101)
    return np.asarray(blurred, dtype=pixels.dtype).reshape(pixels.shape)  # OpenCV drops the axis of a single channel


def invert_from(pixels: ByteArray, threshold: int) -> ByteArray:
    """Invert the values of at least `threshold`, as Pillow's ImageOps.solarize does; any channels."""
    if not _is_rgb(pixels):
        return np.where(pixels >= threshold, 255 - pixels, pixels).astype(pixels.dtype)
    return _look_up(pixels, np.where(threshold <= _LEVELS, 255 - _LEVELS, _LEVELS))


def _is_rgb(pixels: npt.NDArray[np.generic]) -> bool:
    """Return whether the picture is 8-bit RGB."""
    return pixels.shape[2] == 3 and pixels.dtype == np.uint8


def _within_range(values: npt.NDArray[np.float32], pixels: ByteArray) -> ByteArray:
    """Clip values to [0, 255], and convert them to the dtype of `pixels`."""
    return values.clip(0, 255).astype(pixels.dtype)


def _look_up(pixels: ByteArray, table: npt.NDArray[np.generic]) -> ByteArray:
    return np.asarray(cv2.LUT(pixels, table.clip(0, 255).astype(np.uint8)), dtype=np.uint8)


_JITTERS: tuple[Callable[[ByteArray, float], ByteArray], ...] = (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_hue,
)


def _jitter(pixels: ByteArray, view: View, draw: Uniform) -> ByteArray:
    for change, amount in colours.draw_jitter(view.jitter, draw):
        pixels = _JITTERS[change](pixels, amount)
    return pixels


def _grayscale(pixels: ByteArray, view: View, draw: Uniform) -> ByteArray:
    return to_grayscale(pixels) if colours.draw_grayscale(view, draw) else pixels


def _blur(pixels: ByteArray, view: View, draw: Uniform) -> ByteArray:
    sigma, reach = colours.draw_blur(view, draw)
    return gaussian_blur(pixels, sigma, reach) if sigma else pixels


def _solarize(pixels: ByteArray, view: View, draw: Uniform) -> ByteArray:
    threshold = colours.draw_solarize(view.solarize, draw)
    return pixels if threshold == colours.NEVER else invert_from(pixels, threshold)


def _transformed(transform: Transform, pixels: ByteArray, view: View, draw: Uniform) -> ByteArray:
    return np.ascontiguousarray(transform(_as_tensor(pixels)).permute(1, 2, 0).numpy())


Changes = tuple[Callable[[ByteArray, View, Uniform], ByteArray], ...]
"""Changes of a picture in order: of colours, by transforms of torchvision, by the user's own functions."""

_COLOURS: dict[str, Callable[[ByteArray, View, Uniform], ByteArray]] = {
    "jitter": _jitter,
    "grayscale": _grayscale,
    "blur": _blur,
    "solarize": _solarize,
}


def changes_of(view: View, channels: int) -> Changes:
    """Return the changes in the order of a view."""
    return tuple(
        _COLOURS[entry]
        if isinstance(entry, str) and entry in COLOURS
        else functools.partial(_transformed, make_transform(entry, size=view.size, channels=channels))
        for entry in view.order
    )


def make_view(view: View) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a picklable function that computes one view of a picture.

    Its input is uint8 (C, H, W), or float32 from 0 to 255 for 16-bit samples, fastest with interleaved channels in
    memory, as decoders write them; its result is (C, size, size) of the same dtype, interleaved. Colour changes need
    8-bit RGB (see `without_colours`). It draws the same number of random numbers for every picture, from torch's
    default generator.
    """
    return functools.partial(augment, view, changes_of(view, 3))


def make_views(view: View, channels: int = 3, *, colours: bool = True) -> Callable[[torch.Tensor], Crop]:
    """Return a picklable function that computes the views of one crop, several if a grid divides it.

    Without `colours` the changes of colours of an undivided view are left to the training device.
    """
    if not colours:
        return functools.partial(augment_but_colours, view)
    return functools.partial(augment_grid, view, changes_of(view, channels))


def make_transform(entry: str | Mapping[str, Any], *, size: int, channels: int) -> Transform:
    """Return a transform after a trial on a grey picture.

    Returns a picklable function of pictures (C, H, W), uint8 or float32 from 0 to 255. The transform itself gets uint8,
    or float32 from 0 to 1, and keeps shape and type.

    >>> invert = make_transform({"name": "v2.RandomInvert", "p": 1.0}, size=4, channels=3)
    >>> int(invert(torch.full((3, 4, 4), 200, dtype=torch.uint8))[0, 0, 0])
    55
    """
    checked = functools.partial(_checked, _built(entry), entry_name(entry))
    with preserved_random_states():
        checked(torch.full((channels, size, size), 128, dtype=torch.uint8))
    return checked


def own_functions(views: tuple[View, ...]) -> list[Any]:
    """Return the user's own functions in the views."""
    return [find_object(name) for view in views for name in code_names(view.order)]


def _checked(transform: Transform, name: str, picture: Tensor) -> Tensor:
    """Return a changed picture."""
    is_float = picture.is_floating_point()
    given = picture / 255 if is_float else picture
    try:
        changed = transform(given)
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(
            f"augment: {name} fails on a picture of shape {tuple(given.shape)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(changed, Tensor) or changed.shape != given.shape or changed.dtype != given.dtype:
        found = f"{tuple(changed.shape)} {changed.dtype}" if isinstance(changed, Tensor) else type(changed).__name__
        raise UsageError(
            f"augment: {name} gives {found} for a picture {tuple(given.shape)} {given.dtype}",
            "A transform in `order` keeps shape and type; size, crop and normalisation are settings of the view.",
        )
    return changed * 255 if is_float else changed


def _built(entry: str | Mapping[str, Any]) -> Transform:
    """Return a transform of torchvision or the user's own function with its arguments."""
    name = entry_name(entry)
    arguments = {key: value for key, value in entry.items() if key != "name"} if isinstance(entry, Mapping) else {}
    if not name.startswith(OF_TORCHVISION):
        function = find_object(name)
        if not callable(function):
            raise UsageError(f"augment: {name} is a {type(function).__name__}, not a function")
        return functools.partial(function, **arguments)
    from torchvision.transforms import v2

    kinds = {key: kind for key, kind in vars(v2).items() if isinstance(kind, type) and issubclass(kind, v2.Transform)}
    own = name.removeprefix(OF_TORCHVISION)
    if own not in kinds:
        raise UsageError(f"augment: torchvision.transforms.v2 has no transform '{own}'", did_you_mean(own, kinds))
    if isinstance(arguments.get("transforms"), list | tuple):  # RandomApply, RandomChoice, RandomOrder, Compose
        arguments["transforms"] = [_built(inner) for inner in arguments["transforms"]]
    try:
        transform: Transform = kinds[own](**arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"augment: {name} does not take {arguments}: {error}") from error
    return transform
