"""Views of the images that protocols take: whole images, grids of features, or sizes by their own settings.

A view decides the layers, the preprocessing and the part of it that keys hold.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer

# Values of a preprocessing that have no effect where the settings of a protocol say the sizes of images, unset.
SIZES = {"resize": None, "squash": None, "crop": None, "resized_side": "shorter", "scales": (1.0,)}


class WholeImages:
    """Images at the size that the backbone takes, a vector per layer of each.

    Attributes:
        sized: the sizes in the preprocessing have an effect.
        streams: features may be computed when they are read, and never stored.
    """

    sized: ClassVar[bool] = True
    streams: ClassVar[bool] = False

    def asked(self, own: Preprocessing, values: Mapping[str, Any], protocol: str) -> dict[str, Any]:
        """Return the values of a preprocessing to change."""
        return dict(values)

    def effective(self, own: Preprocessing, origins: Mapping[str, str], *, trained_side: bool) -> dict[str, str]:
        """Return the origins of the values of a preprocessing that have an effect."""
        return dict(origins)

    def layers(self, backbone: "Backbone", specs: Sequence[str]) -> "tuple[Layer, ...]":
        """Return the named layers, or the default one; UsageError or BackboneError for those that there are not."""
        from sslbench.backbones.layers import resolve_layers

        return resolve_layers(backbone, specs)

    def as_read(self, own: Preprocessing, *, trained_side: bool) -> Preprocessing:
        """Return a preprocessing as protocols read it, which is what their keys hold; arguments as for `effective`."""
        return own

    def pixel_cells(self, layers: "Sequence[Layer]") -> tuple[int, int] | None:
        """Return rows and columns of the grid of pixels that is the floor of the layers; None: that of whole images."""
        return None


class Grids(WholeImages):
    """Grids of features of one size: each row holds those of all cells of an image, whose every pixel has a label."""

    streams: ClassVar[bool] = True

    def asked(self, own: Preprocessing, values: Mapping[str, Any], protocol: str) -> dict[str, Any]:
        """Return values that keep the whole image; without a size it is squashed to the one that the backbone takes."""
        if values.get("crop") is not None:
            raise UsageError("a crop would cut pixels off that have a label", "Give --resize HEIGHTxWIDTH --crop none.")
        if "resize" in values:
            return {"crop": None, **values}
        return {"resize": own.crop or own.resize, **values, "crop": None}

    def layers(self, backbone: "Backbone", specs: Sequence[str]) -> "tuple[Layer, ...]":
        """Return grids of the named layers, by default of the last one with a map."""
        from sslbench.backbones.grids import resolve_grids

        return resolve_grids(backbone, specs, backbone.preprocessing.output_size)

    def pixel_cells(self, layers: "Sequence[Layer]") -> tuple[int, int] | None:
        """Return the finest grid of the layers."""
        grids = [layer.grid for layer in layers if layer.grid is not None]
        return max(grids, key=lambda grid: grid[0] * grid[1])


class OwnSizes(WholeImages):
    """Images that a protocol resizes and crops by its settings: the backbone's sizes are unset."""

    sized: ClassVar[bool] = False

    def asked(self, own: Preprocessing, values: Mapping[str, Any], protocol: str) -> dict[str, Any]:
        """Return the values; a size has no effect and is refused."""
        if named := [name for name in SIZES if values.get(name) is not None]:
            raise UsageError(
                f"--{named[0]} has no effect on {protocol}, whose settings say the sizes of images",
                f"`sslbench list protocol {protocol}` shows them.",
            )
        return dict(values)

    def effective(self, own: Preprocessing, origins: Mapping[str, str], *, trained_side: bool) -> dict[str, str]:
        """Return the origins without those of sizes."""
        effective = {name: origin for name, origin in origins.items() if name not in SIZES}
        if self.as_read(own, trained_side=trained_side).trained_side is not None:
            effective["trained_side"] = origins["crop"]
        return effective

    def layers(self, backbone: "Backbone", specs: Sequence[str]) -> "tuple[Layer, ...]":
        """Return the named layers themselves, by default the last one with a map."""
        return super().layers(backbone, specs or [backbone.last_map])

    def as_read(self, own: Preprocessing, *, trained_side: bool) -> Preprocessing:
        """Return it without sizes; the side that the backbone was trained on stands in their place if it is read."""
        side = own.crop or own.squash or own.resize
        side = min(side) if isinstance(side, tuple) else side
        unset: dict[str, Any] = dict(SIZES)
        return dataclasses.replace(own, **unset, trained_side=side if trained_side else None)


class DetectedImages(OwnSizes):
    """Images that a detector reads, with all of the network around which it is built."""

    def asked(self, own: Preprocessing, values: Mapping[str, Any], protocol: str) -> dict[str, Any]:
        """Return the values; a decoder that reduces the size is refused, too."""
        if "fast" in values.get("decoder", ()):
            raise UsageError(
                "--decoder fast decodes at a reduced size, and boxes refer to the full image",
                "Leave it out; detection decodes JPEGs by libjpeg-turbo anyway.",
            )
        return super().asked(own, values, protocol)

    def effective(self, own: Preprocessing, origins: Mapping[str, str], *, trained_side: bool) -> dict[str, str]:
        """Return the origins of decoder, mean and std."""
        read = ("mean", "std", "decoder", "max_pixels")
        return {name: origin for name, origin in origins.items() if name in read}

    def layers(self, backbone: "Backbone", specs: Sequence[str]) -> "tuple[Layer, ...]":
        """Return (): the detector takes the network apart by itself."""
        return ()


WHOLE_IMAGES, GRIDS, OWN_SIZES, DETECTED_IMAGES = WholeImages(), Grids(), OwnSizes(), DetectedImages()
