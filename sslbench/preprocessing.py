"""Parameters of the evaluation transform; `sslbench.data.decode` applies them."""

import dataclasses
import math
from typing import Literal

from sslbench.errors import UsageError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LIGHTNESS_MEAN, LIGHTNESS_STD = (0.5,), (0.01,)
"""Mean and standard deviation of L / 100; colorization networks take L - 50."""
MAX_PIXELS = 178_956_970
"""Largest picture that is decoded, in pixels: above it, Pillow suspects a decompression bomb."""
LARGEST_SIDE = 16_384
"""Largest side in pixels of an image that a backbone is given."""
_AVERAGED = ", its mean and std averaged for "


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Evaluation transform: resize, squash, crop, scale to 0..1, normalise, in that order.

    Attributes:
        resize: an int is the length of the shorter side (aspect ratio kept), or of the longer one, see `resized_side`;
            (height, width) is that exact size; None keeps the image's own size.
        squash: a second resize to exactly (height, width), whatever the aspect ratio: VISSL's VOC07 transform makes
            the shorter side 256 and then the image 224 x 224. None, the normal case, leaves it out.
        crop: centre crop in pixels, (height, width); None takes all of the resized image. An image smaller than
            the crop is padded with zeros (black), as torchvision does.
        interpolation: filter of the resize; always with antialiasing, as Pillow does.
        mean: per channel, subtracted after scaling to 0..1.
        std: per channel, divided by.
        decoder: 'reference': pixels as Pillow's; 'fast': large JPEGs are decoded at a reduced size. Before either,
            functions of the user's that decode what they know: 'my_module.my_function'; see
            `sslbench.data.decode.handlers`.
        max_pixels: larger pictures count as unreadable.
        space: 'RGB'; 'lightness': one channel, L of CIE Lab over 100, made of RGB. Mean and std are of this space. A
            file whose network takes blue first (BGR) is turned to RGB on loading.
        resized_side: side that an int in `resize` sets.
        scales: factors by which the normalised image is resized (bilinear) before the network sees it; the features are
            the mean over them.
        trained_side: shorter side of the images that the network was trained on, in place of all sizes, for protocols
            that set these by it; None for others.
        origin: source of the values ('timm resnet18.a1_in1k', 'torchvision default', 'flag --crop', ...).
    """

    resize: int | tuple[int, int] | None = 256
    crop: tuple[int, int] | None = (224, 224)
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    squash: tuple[int, int] | None = None
    decoder: tuple[str, ...] = ("reference",)
    max_pixels: int = MAX_PIXELS
    space: Literal["RGB", "lightness"] = "RGB"
    resized_side: Literal["shorter", "longer"] = "shorter"
    scales: tuple[float, ...] = (1.0,)
    trained_side: int | None = None
    origin: str = "ImageNet default"

    @property
    def channels(self) -> int:
        """Number of channels that the backbone takes. One: colours become luminance, or lightness, see `space`."""
        return len(self.mean)

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(height, width) of every picture; None if it depends on the picture."""
        return self.crop or self.squash or (self.resize if isinstance(self.resize, tuple) else None)

    def text(self, *, sizes: bool = True) -> str:
        """Return the steps and the source of their values in a line; without `sizes`, mean and std only.

        >>> Preprocessing().text()
        'resize 256 bilinear, crop 224, mean 0.485/0.456/0.406, std 0.229/0.224/0.225 (ImageNet default)'
        """
        words = []
        if sizes:
            side = "longer " if self.resized_side == "longer" else ""
            words += [] if self.resize is None else [f"resize {side}{_side(self.resize)} {self.interpolation}"]
            words += [] if self.squash is None else [f"squash {_side(self.squash)}"]
            words += ["no crop" if self.crop is None else f"crop {_side(self.crop)}"]
        elif self.trained_side is not None:
            words += [f"sizes by the {self.trained_side} pixels that the network was trained on"]
        for name, values in (("mean", self.mean), ("std", self.std)):
            numbers = values[:1] if len(set(values)) == 1 else values
            words.append(f"{name} {'/'.join(f'{x:g}' for x in numbers)}")
        return f"{', '.join(words)} ({self.origin})"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sides in pixels that are set: those of resize, crop and squash."""
        found = (self.resize, self.crop, self.squash)
        return tuple(side for size in found for side in ((size,) if isinstance(size, int) else size or ()))

    def for_channels(self, channels: int) -> "Preprocessing":
        """Return the transform for another number of channels, each with the average mean and standard deviation.

        Statistics of the user's own bands are better; no network records them.
        """
        if channels == self.channels:
            return self
        mean, std = (round(sum(values) / len(values), 6) for values in (self.mean, self.std))
        origin = f"{self.origin}{_AVERAGED}{channels} channel{'s' if channels > 1 else ''}"
        return dataclasses.replace(self, mean=(mean,) * channels, std=(std,) * channels, origin=origin)

    @property
    def averaged(self) -> bool:
        """True if mean and std are averages over other channels, not statistics of the data."""
        return _AVERAGED in self.origin

    def check(self) -> None:
        """Refuse sizes, scales and numbers per channel that are impossible for any backbone.

        Raises:
            UsageError: names the value.
        """
        if len(self.mean) != len(self.std):
            raise UsageError(
                f"preprocessing: mean has {len(self.mean)} and std {len(self.std)} numbers", "Give one per channel."
            )
        if not all(0 < value < math.inf for value in self.std):
            raise UsageError(f"preprocessing: std should be finite numbers above 0, not {list(self.std)}")
        if not all(math.isfinite(value) for value in self.mean):
            raise UsageError(f"preprocessing: mean should be finite numbers, not {list(self.mean)}")
        if wrong := [size for size in self.sizes if not 0 < size <= LARGEST_SIDE]:
            text = str(wrong[0])[:20]
            raise UsageError(f"preprocessing: sizes should be from 1 to {LARGEST_SIDE:,} pixels, not {text}")
        if self.max_pixels < 1:
            raise UsageError(f"max_pixels {self.max_pixels} must be positive")
        if not self.scales or len(set(self.scales)) < len(self.scales) or not all(0 < s <= 8 for s in self.scales):
            raise UsageError(
                f"preprocessing: scales should be different numbers from 0 to 8, not {list(self.scales)}",
                "Usual for retrieval: 1,0.7071,0.5.",
            )
        if self.resized_side == "longer" and not isinstance(self.resize, int):
            raise UsageError("preprocessing: resized_side=longer needs a resize to one number of pixels")

    def refuse_unfilled_crop(self) -> None:
        """Refuse resized images smaller than a default crop, which would be mostly black.

        Raises:
            UsageError: the images are smaller.
        """
        if self.crop is None or self.resize is None or self.squash is not None:
            return
        height, width = (self.resize, self.resize) if isinstance(self.resize, int) else self.resize
        if height < self.crop[0] or width < self.crop[1] or self.resized_side == "longer":
            crop = f"{self.crop[0]}x{self.crop[1]}"
            size = f"{height}x{width}" if self.resized_side == "shorter" else f"a longer side of {height} pixels"
            raise UsageError(
                f"preprocessing: images resized to {size} do not fill the centre crop of {crop} ({self.origin})",
                f"Add --crop none (crop: None) to use the whole image (--crop {crop} pads it with black).",
            )

    def values(self) -> dict[str, object]:
        """Return the fields that determine the pixels, for the key of a feature store.

        Those that came later are left out where they are the defaults: stores and records from before they could be
        set stay what they are.
        """
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "origin"}
        later = ("decoder", "max_pixels", "space", "resized_side", "scales", "trained_side")
        usual = {f.name: f.default for f in dataclasses.fields(self) if f.name in later}
        return {name: value for name, value in found.items() if name not in usual or value != usual[name]}

    def record(self) -> dict[str, object]:
        """Return `values`, `space` and `origin`, for result records and weights files."""
        return {**self.values(), "space": self.space, "origin": self.origin}


def _side(size: int | tuple[int, int]) -> str:
    sides = (size, size) if isinstance(size, int) else size
    return f"{sides[0]}" if sides[0] == sides[1] else f"{sides[0]}x{sides[1]}"


LIGHTNESS = Preprocessing(mean=LIGHTNESS_MEAN, std=LIGHTNESS_STD, space="lightness", origin="L of CIE Lab minus 50")
"""Input of colorization networks."""
