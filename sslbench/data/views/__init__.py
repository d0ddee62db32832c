"""Settings of augmented views; they import neither torch nor OpenCV, so that they are listed quickly.

`ops` computes the views.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from sslbench.config import refuse_outside, setting
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.preprocessing import IMAGENET_MEAN, IMAGENET_STD

COLOURS = ("jitter", "grayscale", "blur", "solarize")
"""Built-in colour operations."""

MapColours = Literal["none", "photometric", "gamma"]
"""Colour changes of images that have a target for every pixel; `data.loading.joint` computes them."""

OF_TORCHVISION = "v2."
"""Beginning of the name of a transform of torchvision.transforms.v2."""


def entry_name(entry: str | Mapping[str, Any]) -> str:
    """Return the name in an entry of `View.order`.

    >>> entry_name("blur"), entry_name({"name": "v2.RandomPosterize", "bits": 4})
    ('blur', 'v2.RandomPosterize')
    """
    return str(entry.get("name", "")) if isinstance(entry, Mapping) else str(entry)


def _check(right: bool, message: str) -> None:
    if not right:
        raise UsageError(f"augment: {message}")


def code_names(entries: Any) -> Iterator[str]:
    """Yield the names of the user's own functions in an `order`, also those inside other entries."""
    for entry in entries:
        if ":" in (name := entry_name(entry)):
            yield name
        inner = entry.get("transforms") if isinstance(entry, Mapping) else None
        if isinstance(inner, list | tuple):
            yield from code_names(inner)


def _check_order(entries: Any, colours: tuple[str, ...]) -> None:
    """Refuse entries that name neither a colour operation nor a transform nor a function."""
    for entry in entries:
        name, known = entry_name(entry), () if isinstance(entry, Mapping) else colours
        if name not in known and not name.startswith(OF_TORCHVISION) and ":" not in name:
            if name in colours:
                raise UsageError(
                    f"augment: order: {name} takes no arguments here", f"Its settings are those of the view: {name}=..."
                )
            raise UsageError(
                f"augment: order: there is no operation '{name}'",
                did_you_mean(name, (*colours, f"{OF_TORCHVISION}{name}")),
            )
        inner = entry.get("transforms") if isinstance(entry, Mapping) and name.startswith(OF_TORCHVISION) else None
        if inner is not None:
            _check(isinstance(inner, list | tuple), f"order: transforms of {name} should be a list, not {inner!r}")
            _check_order(inner, ())


@dataclasses.dataclass(frozen=True)
class Jitter:
    """Colour jitter as torchvision's ColorJitter: four changes in random order."""

    p: float = setting(0.0, "probability", within="[0, 1]")
    brightness: float = setting(0.0, "factor drawn from 1 - b to 1 + b", within="[0, inf)")
    contrast: float = setting(0.0, "factor drawn from 1 - c to 1 + c", within="[0, inf)")
    saturation: float = setting(0.0, "factor drawn from 1 - s to 1 + s", within="[0, inf)")
    hue: float = setting(0.0, "shift drawn from -h to h", unit="turns", within="[0, 0.5]")

    def __post_init__(self) -> None:
        refuse_outside(self, "augment: jitter")


@dataclasses.dataclass(frozen=True)
class Blur:
    """Gaussian blur. Pillow's GaussianBlur(radius) approximates the one with sigma = radius."""

    p: float = setting(0.0, "probability", within="[0, 1]")
    sigma: tuple[float, float] = setting(
        (0.1, 2.0), "standard deviation, drawn uniformly between these", unit="pixels", within="(0, inf)"
    )
    kernel: float | None = setting(
        None,
        "side of the kernel as a share of the view's side (SimCLR: 0.1); null: 3 sigma to either side",
        within="(0, 1]",
    )

    def __post_init__(self) -> None:
        refuse_outside(self, "augment: blur")
        _check(self.sigma[0] <= self.sigma[1], f"blur: sigma should ascend, not {self.sigma}")


@dataclasses.dataclass(frozen=True)
class Solarize:
    """Solarisation: values from a threshold on are inverted."""

    p: float = setting(0.0, "probability", within="[0, 1]")
    threshold: int | Literal["random"] = setting(
        128, "0 to 256; 'random' draws it each time from 0 to 256 (VISSL)", unit="grey levels", within="[0, 256]"
    )

    def __post_init__(self) -> None:
        refuse_outside(self, "augment: solarize")


@dataclasses.dataclass(frozen=True)
class Grid:
    """Division of a crop into square cells, each of which gives one view (Jigsaw, PIRL)."""

    side: int = setting(1, "cells per side; 1: the crop is the view", within="[1, inf)")
    gap: int = setting(
        0,
        "difference between the sides of a cell and of its view, whose place in the cell is random",
        unit="pixels",
        within="[0, inf)",
    )
    augment: Literal["crop", "views"] = setting("crop", "flip and colour changes: of the crop, or of each view alone")

    def __post_init__(self) -> None:
        refuse_outside(self, "augment: grid")
        used = self.side > 1 or (self.gap == 0 and self.augment == "crop")
        _check(used, "grid: gap and augment have no effect without side=2 or more")


@dataclasses.dataclass(frozen=True)
class View:
    """Recipe of one view: a random resized crop, a flip, then colour changes; or of the views in a grid of one crop.

    The place of the flip makes no difference, since crops are drawn symmetrically and the colour changes treat left and
    right alike. (A rotation would not commute with it, so rotations are done on finished views.)
    """

    count: int = setting(1, "views of this kind per image, or crops if each is divided by a grid", within="[1, inf)")
    size: int = setting(224, "side of the view in pixels", unit="pixels", within="[1, inf)")
    scale: tuple[float, float] = setting(
        (0.08, 1.0), "range of the crop's area, as a share of `scale_of`", within="(0, 1]"
    )
    scale_of: Literal["image", "square"] = setting(
        "image", "area of the whole image, or of the largest square in it (Resize, then RandomCrop)"
    )
    ratio: tuple[float, float] = setting(
        (3 / 4, 4 / 3), "range of the crop's width / height, log-uniform", within="(0, inf)"
    )
    interpolation: Literal["bilinear", "bicubic"] = setting("bilinear", "resampling filter, with antialiasing")
    flip: float = setting(0.5, "probability of a horizontal flip", within="[0, 1]")
    jitter: Jitter = setting(Jitter(), "brightness, contrast, saturation and hue")
    grayscale: float = setting(0.0, "probability of conversion to grayscale", within="[0, 1]")
    blur: Blur = setting(Blur(), "Gaussian blur")
    solarize: Solarize = setting(Solarize(), "solarisation: bright pixels are inverted")
    order: tuple[str | dict[str, Any], ...] = setting(
        COLOURS,
        "order of the colour operations, and others between them: v2.NAME of torchvision.transforms.v2, your own "
        "my_module:function, or {name: v2.NAME, ...} with arguments",
    )
    grid: Grid = setting(Grid(), "division of the crop into several views")

    def __post_init__(self) -> None:
        refuse_outside(self, "augment: views")
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            _check(low <= high, f"{name} should ascend, not {(low, high)}")
        _check_order(self.order, COLOURS)
        complete = sorted(name for entry in self.order if (name := entry_name(entry)) in COLOURS) == sorted(COLOURS)
        _check(complete, f"order should name jitter, grayscale, blur and solarize once each, not {self.order}")

    @property
    def crop_side(self) -> int:
        """Side of the resized crop in pixels; larger than the view if a grid divides it."""
        return self.grid.side * (self.size + self.grid.gap)

    @property
    def cells(self) -> int:
        """Number of views that one crop gives."""
        return self.grid.side**2


@dataclasses.dataclass(frozen=True)
class Augment:
    """Views of every image, and their normalisation on the training device."""

    views: tuple[View, ...] = setting((View(count=2),), "kinds of views")
    size: int | None = setting(
        None, "size that replaces that of the large views; null: unchanged", unit="pixels", within="[1, inf)"
    )
    small_size: int | None = setting(
        None, "size that replaces that of the small views; null: unchanged", unit="pixels", within="[1, inf)"
    )
    mean: tuple[float, ...] = setting(IMAGENET_MEAN, "mean per channel, of pixels from 0 to 1")
    std: tuple[float, ...] = setting(IMAGENET_STD, "standard deviation per channel", within="(0, inf)")
    code: tuple[str, ...] = setting(
        (), "your own functions in the `order` of views in a file, typed on the command line: my_module:function"
    )

    def __post_init__(self) -> None:
        refuse_outside(self, "augment")
        _check(bool(self.views), "views is empty")
        for name, values in (("mean", self.mean), ("std", self.std)):
            finite = bool(values) and all(map(math.isfinite, values))
            _check(finite, f"{name} should be one number per channel, not {values}")
        used = {name for view in self.views for name in code_names(view.order)}
        for name in self.code:
            if name not in used:
                raise UsageError(f"augment: code: no view's order names '{name}'", did_you_mean(name, used))
        large, small = self._kinds()
        if self.small_size is not None and not small:
            raise UsageError(
                f"augment: small_size={self.small_size} has no effect, all views are of one size",
                "Leave it out, or use views of two sizes (augment=swav, dino, small_multicrop).",
            )
        if small and max(view.size for view in small) >= large[0].size:
            raise UsageError(
                f"augment: the small views ({max(view.size for view in small)} pixels) should be smaller than the "
                f"large ones ({large[0].size} pixels)",
                "Give both, such as augment.size=96 augment.small_size=48.",
            )

    def expanded(self) -> tuple[View, ...]:
        """Return one `View` with count 1 per crop of an image, in the order of a batch: large ones first.

        Large views are those of the largest size in `views`.
        """
        large, small = self._kinds()
        return tuple(dataclasses.replace(view, count=1) for view in (*large, *small) for _ in range(view.count))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Side of each view in pixels, in the order of `expanded`; a crop with a grid gives several."""
        return tuple(view.size for view in self.expanded() for _ in range(view.cells))

    @property
    def whole_size(self) -> int:
        """Side of a whole picture for evaluations: of the largest undivided view.

        A crop that a grid divides shows the picture in the scale of training, so its centre is evaluated, 224 of 256
        pixels, or all of it below 96.
        """
        views = self.expanded()
        undivided = [view.size for view in views if view.grid.side == 1]
        if undivided:
            return max(undivided)
        side = max(view.crop_side for view in views)
        return round(side * 224 / 256) if side * 224 / 256 >= 96 else side

    @property
    def first_whole_view(self) -> int:
        """Index of the first view in a batch that is no part of a divided crop, of which there must be one."""
        return [view.cells for view in self.expanded() for _ in range(view.cells)].index(1)

    def _kinds(self) -> tuple[list[View], list[View]]:
        largest = max(view.size for view in self.views)
        large = [view for view in self.views if view.size == largest]
        small = sorted((view for view in self.views if view.size < largest), key=lambda view: -view.size)
        return [_resized(view, self.size) for view in large], [_resized(view, self.small_size) for view in small]


def without_colours(augment: Augment) -> tuple[Augment, tuple[str, ...]]:
    """Return the views without the colour changes that need RGB; the others work on any channels.

    Brightness, contrast, blur and solarisation act on every channel separately, and stay.
    """
    dropped: dict[str, None] = {}
    views = []
    for view in augment.views:
        jitter = view.jitter
        if jitter.p:
            dropped |= {f"jitter.{name}": None for name in ("hue", "saturation") if getattr(jitter, name)}
        dropped |= {"grayscale": None} if view.grayscale else {}
        own = dataclasses.replace(jitter, hue=0.0, saturation=0.0)
        views.append(
            dataclasses.replace(view, grayscale=0.0, jitter=own if own.brightness or own.contrast else Jitter())
        )
    return dataclasses.replace(augment, views=tuple(views)), tuple(sorted(dropped))


def _resized(view: View, size: int | None) -> View:
    return view if size is None else dataclasses.replace(view, size=size)
