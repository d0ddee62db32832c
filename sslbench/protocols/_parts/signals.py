"""Protocols on signals that are computed from images: their settings, and images decoded as for a backbone."""

import dataclasses
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from sslbench.config import setting
from sslbench.data.source import Source
from sslbench.data.views import MapColours
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense import DenseTask, HeadSettings


@dataclasses.dataclass(frozen=True)
class SignalSettings(HeadSettings):
    """Settings of the regression of signals by trained heads; images are not changed but mirrored."""

    sigma: float = setting(2.0, "standard deviation of the Gaussian of the structure tensor", unit="pixels")
    size: int | None = setting(224, "short side of the resized images; null: their own", unit="pixels")
    crop: tuple[int, int] = setting((224, 224), "height and width of the crops", unit="pixels")
    window: tuple[int, int] | None = setting(
        (224, 224), "height and width of the sliding window in scoring; null: the whole image", unit="pixels"
    )
    stride: tuple[int, int] = setting((149, 149), "step of the sliding window", unit="pixels")
    resize_range: tuple[float, float] = setting((1.0, 1.0), "range of a random factor of the size in training")
    colours: MapColours = setting(
        "none", "none; photometric or gamma would change images and not their signals: see segmentation"
    )


S = TypeVar("S", bound=SignalSettings)


@dataclasses.dataclass(frozen=True)
class SignalTask(DenseTask[S]):
    """Task whose targets are computed from the images.

    Attributes:
        preprocessing: that of the backbone, as for which images are decoded.
    """

    preprocessing: Preprocessing

    @classmethod
    def check_settings(cls, settings: S) -> None:
        """Refuse settings that are not possible, whatever the data and the backbone.

        Raises:
            UsageError: a setting is not possible.
        """
        super().check_settings(settings)
        if not 0 < settings.sigma <= 100:
            raise UsageError(f"{cls.name}: sigma should be from above 0 to 100 pixels, not {settings.sigma:g}")

    @classmethod
    def of(cls, settings: S, train: Source, preprocessing: Preprocessing, seed: int) -> Self:
        """Return the task for a backbone with that preprocessing."""
        return cls(settings, preprocessing)

    def image(self, source: Source, index: int) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
        """Return an image (H, W, C) at its own size, from 0 to 255.

        Raises:
            UnreadableImage: the image cannot be read.
        """
        from sslbench.data.decode.handlers import Reading
        from sslbench.data.loading import loader
        from sslbench.data.loading.batch import training_decoder

        own = self.preprocessing
        decoder = training_decoder(source.images, Reading(own.decoder, own.max_pixels), own.channels)
        pixels: npt.NDArray[np.uint8] | npt.NDArray[np.float32]
        pixels = loader.read(source.images, index, decoder).image.permute(1, 2, 0).numpy()
        return pixels
