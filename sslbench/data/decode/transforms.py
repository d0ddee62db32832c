"""Evaluation transform in two halves: resize and crop in the workers, normalisation on the compute device."""

import platform
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import nn

from sslbench.errors import UsageError
from sslbench.preprocessing import MAX_PIXELS, Preprocessing

_TENSOR_MODES = ("bilinear", "bicubic")
_PILLOW_MODES = {"nearest": Image.Resampling.NEAREST, "lanczos": Image.Resampling.LANCZOS}


def resize_and_crop(
    image: torch.Tensor, preprocessing: Preprocessing, full: tuple[int, int] | None = None
) -> torch.Tensor:
    """Resize and centre-crop a picture, as torchvision's v2 Resize and CenterCrop do to a Pillow image.

    Bilinear and bicubic work on the tensor, which is faster and at most one level away (a resize that changes the
    aspect ratio up to three, with versions of Pillow that swap the horizontal and vertical pass to save time); nearest
    and lanczos go through Pillow, because the tensor versions differ from it or do not exist.

    Args:
        image: (C, H, W), uint8 or float32 from 0 to 255.
        preprocessing: resize, crop and interpolation are used.
        full: (height, width) of the picture in the file, where `image` was decoded at a reduced size; the size of the
            result depends on it.

    Returns:
        (C, h, w) of the same dtype, a copy with interleaved channels in memory.
    """
    if preprocessing.resize is not None:
        height, width = full or (image.shape[1], image.shape[2])
        height, width = check_resized(height, width, preprocessing)
        image = _resize(image, height, width, preprocessing.interpolation)
    if preprocessing.squash is not None:
        image = _resize(image, *preprocessing.squash, preprocessing.interpolation)
    if preprocessing.crop is not None:
        image = _centre(image, *preprocessing.crop)
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)  # a view would keep the whole image in memory


def check_resized(height: int, width: int, preprocessing: Preprocessing) -> tuple[int, int]:
    """Return (height, width) after the resize."""
    if preprocessing.resize is None:
        return height, width
    to_height, to_width = resized(height, width, preprocessing.resize, preprocessing.resized_side)
    # A strip of a few pixels' width becomes very long when its shorter side is enlarged.
    if to_height * to_width > max(MAX_PIXELS, preprocessing.max_pixels):
        raise ValueError(f"{width} x {height} pixels become {to_width} x {to_height} when resized")
    return to_height, to_width


def resized(
    height: int, width: int, resize: int | tuple[int, int], side: Literal["shorter", "longer"] = "shorter"
) -> tuple[int, int]:
    """Return (height, width) after the resize; the side that follows is rounded down, as in torchvision.

    Examples:
        >>> resized(480, 641, 256)
        (256, 341)
        >>> resized(480, 641, 256, "longer")
        (191, 256)
    """
    if not isinstance(resize, int):
        return resize
    if side == "longer":
        longest = max(height, width)
        return max(1, int(resize * height / longest)), max(1, int(resize * width / longest))
    if height <= width:
        return resize, int(resize * width / height)
    return int(resize * height / width), resize


def _resize(image: torch.Tensor, height: int, width: int, interpolation: str) -> torch.Tensor:
    if image.shape[1:] == (height, width):
        return image
    if interpolation in _TENSOR_MODES:
        return _within_range(_interpolated(image, height, width, interpolation))
    if image.shape[0] == 3 and image.dtype == torch.uint8:
        pixels = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
        resampled = pixels.resize((width, height), _PILLOW_MODES[interpolation])
        # A copy: Pillow's arrays are read-only, of which torch warns.
        return torch.from_numpy(np.array(resampled)).permute(2, 0, 1)
    # Pillow has no pictures of several float channels, nor of more than four.
    planes = [Image.fromarray(plane) for plane in np.ascontiguousarray(image.numpy())]
    resampled_planes = [np.array(plane.resize((width, height), _PILLOW_MODES[interpolation])) for plane in planes]
    return _within_range(torch.from_numpy(np.stack(resampled_planes)))


def _interpolated(image: torch.Tensor, height: int, width: int, mode: str) -> torch.Tensor:
    """Resize with antialiasing, bit for bit as torchvision's v2 does, whose import takes two seconds."""
    batch = image[None]
    if batch.is_contiguous(memory_format=torch.channels_last):
        # Of one image only the strides tell PyTorch that its channels are interleaved, which is faster.
        batch = batch.as_strided(batch.shape, (image.numel(), *image.stride()))
    fast = mode == "bicubic" or platform.machine() in ("aarch64", "arm64")
    fast = fast or torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    through_floats = image.dtype == torch.uint8 and not (fast and image.device.type == "cpu")
    batch = batch.float() if through_floats else batch
    scaled = nn.functional.interpolate(batch, (height, width), mode=mode, align_corners=False, antialias=True)[0]
    return scaled.clamp_(0, 255).round_().to(torch.uint8) if through_floats else scaled


def _centre(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Crop the centre as torchvision does; smaller images are surrounded by zeros."""
    more = (max(width - image.shape[2], 0), max(height - image.shape[1], 0))
    if any(more):
        image = nn.functional.pad(image, [half for side in more for half in (side // 2, (side + 1) // 2)])
    top, left = round((image.shape[1] - height) / 2), round((image.shape[2] - width) / 2)
    return image[:, top : top + height, left : left + width]


def _within_range(image: torch.Tensor) -> torch.Tensor:
    """Clamp floats to [0, 255], as 8 bits would: filters with negative lobes overshoot."""
    return image.clamp_(0, 255) if image.is_floating_point() else image


def normalise(
    images: torch.Tensor,
    preprocessing: Preprocessing,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.channels_last,
) -> torch.Tensor:
    """Return (images / 255 - mean) / std, computed in float32 as images * scale + shift on the images' device.

    Args:
        images: (B, C, h, w), uint8 or float32 from 0 to 255. Three channels become one where the preprocessing has
        one: the luminance, or the lightness if that is its space. Several times as many channels are frames of videos,
        each of which is normalised.
        preprocessing: mean and std are used.
        dtype: of the result.
        memory_format: of the result.
    """
    mean, std = preprocessing.mean, preprocessing.std
    own = 3 if preprocessing.channels == 1 else preprocessing.channels
    if images.shape[1] > own and images.shape[1] % own == 0:
        frames = normalise(images.reshape(-1, own, *images.shape[2:]), preprocessing, dtype, memory_format)
        return frames.reshape(len(images), -1, *images.shape[2:])
    check_channels(preprocessing, images.shape[1])
    if preprocessing.space == "lightness":
        images = lightness(images)
    elif preprocessing.channels == 1 and images.shape[1] == 3:
        images = luminance(images)
    if len(mean) != images.shape[1] or len(std) != images.shape[1] or min(std) <= 0:
        raise UsageError(
            f"preprocessing from {preprocessing.origin}: mean {mean} and std {std} do not fit images of "
            f"{images.shape[1]} channels",
            "Give one mean and one positive std per channel.",
        )
    # In double first: rounded once, the result is as near to the exact value as (x / 255 - mean) / std is.
    exact_std = torch.tensor(std, dtype=torch.float64)
    factors = torch.stack([1 / (255 * exact_std), -torch.tensor(mean, dtype=torch.float64) / exact_std]).float()
    scale, shift = factors.to(images.device, non_blocking=True).view(2, 1, images.shape[1], 1, 1)
    pixels = images.to(dtype=torch.float32, memory_format=memory_format)
    return torch.addcmul(shift, pixels, scale, out=pixels).to(dtype)


def renormalise(images: torch.Tensor, own: Preprocessing, wanted: Preprocessing) -> torch.Tensor:
    """Return images (B, C, h, w), normalised by one mean and standard deviation, as another network takes them."""
    shape = (1, len(own.mean), 1, 1)
    mean, std = (torch.tensor(values).to(images, non_blocking=True).view(shape) for values in (own.mean, own.std))
    return normalise((images * std + mean) * 255, wanted, images.dtype)


def check_channels(preprocessing: Preprocessing, channels: int = 3) -> None:
    """Raise if a backbone with this preprocessing does not take pictures of that many channels."""
    if preprocessing.channels != channels and (preprocessing.channels, channels) != (1, 3):
        raise UsageError(
            f"the backbone takes images of {preprocessing.channels} channels (preprocessing from "
            f"{preprocessing.origin}), but these are decoded to {channels}",
            f"Use a backbone for {channels} channels; --stem maps the stem of the weights (average, bands=...).",
        )


def luminance(images: torch.Tensor) -> torch.Tensor:
    """Return the luminance of RGB images, (B, 1, h, w); of uint8 integers equal to Pillow's convert("L")."""
    if images.is_floating_point():
        weights = torch.tensor((0.299, 0.587, 0.114)).to(images.device, non_blocking=True).view(1, 3, 1, 1)
        return (images * weights).sum(1, keepdim=True)
    whole = images.to(torch.int32)
    red, green, blue = (whole[:, channel : channel + 1] for channel in range(3))
    grey: torch.Tensor = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16  # 0.299, 0.587, 0.114 times 2^16
    return grey


def lightness(images: torch.Tensor) -> torch.Tensor:
    """Return L of CIE Lab (sRGB, D65) of RGB or grey images, (B, 1, h, w), scaled from 0..100 to 0..255.

    For uint8 images rounded, as in OpenCV's 8-bit conversion, the input of colorization networks.
    """
    rgb = images.expand(-1, 3, -1, -1).to(torch.float32) / 255
    # The inverse of sRGB's transfer function (IEC 61966-2-1).
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    # ITU-R BT.709, the second row of sRGB to XYZ.
    weights = torch.tensor((0.212671, 0.715160, 0.072169)).to(images.device, non_blocking=True).view(1, 3, 1, 1)
    y = (linear * weights).sum(1, keepdim=True)
    # CIE 1976: a cube root, and a line for dark colours. 2.55 brings 100 to 255.
    found = torch.where(y > (6 / 29) ** 3, 116 * y.clamp(min=1e-8) ** (1 / 3) - 16, (29 / 3) ** 3 * y) * 2.55
    return found if images.is_floating_point() else found.round()


def describe(preprocessing: Preprocessing) -> str:
    """Return a one-line description: 'resize shorter side to 256 (bilinear), centre crop 224x224, mean ...'."""
    resize, crop = preprocessing.resize, preprocessing.crop
    parts = []
    if isinstance(resize, int):
        parts.append(f"resize {preprocessing.resized_side} side to {resize} ({preprocessing.interpolation})")
    elif resize is not None:
        parts.append(f"resize to {resize[0]}x{resize[1]} ({preprocessing.interpolation})")
    if preprocessing.squash is not None:
        parts.append(f"then to {preprocessing.squash[0]}x{preprocessing.squash[1]}")
    if crop is not None:
        parts.append(f"centre crop {crop[0]}x{crop[1]}")
    mean, std = (" ".join(f"{value:g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    if preprocessing.scales != (1.0,):
        parts.append(f"mean over the scales {' '.join(f'{scale:g}' for scale in preprocessing.scales)}")
    space = ["lightness (L of CIE Lab / 100)"] if preprocessing.space == "lightness" else []
    return ", ".join([*(parts or ["own size"]), *space, f"mean {mean}", f"std {std}"]) + f" [{preprocessing.origin}]"
