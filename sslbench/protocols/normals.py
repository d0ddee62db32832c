"""Surface normals from single images by heads trained on frozen features, as probe3d reports them.

El Banani et al., "Probing the 3D awareness of visual foundation models", CVPR 2024 (probe3d): a head predicts a vector
and a concentration per pixel, trained by the negative log-likelihood of the angle (Bae et al., ICCV 2021). Errors are
angles in degrees, of all pixels together as most papers report them, and as means over images as probe3d does.

Differences from its code: vectors are enlarged bilinearly, images without a known normal are left out of the means, and
the learning rate is chosen on a held-out part of train. Predictions and truth are in one frame: that of the data.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sslbench.arrays import ByteArray, FloatArray
from sslbench.config import other_default, setting
from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.metrics.dense.normals import angular_errors, normals_row
from sslbench.protocols._parts.dense import DenseProtocol
from sslbench.protocols._parts.dense.task import DenseRow, SurfaceSettings, enlarged
from sslbench.protocols.protocol import Protocol
from sslbench.solvers.dense.losses import angular_loss
from sslbench.targets import pixel_values

if TYPE_CHECKING:
    from torch import Tensor

    from sslbench.data.loading.joint import PixelTarget

_ZERO = 1e-12


@dataclasses.dataclass(frozen=True)
class Settings(SurfaceSettings):
    """Settings of surface normals by trained heads."""

    weight_decay: float = other_default(SurfaceSettings, "weight_decay", 1e-2)
    warmup_steps: int = other_default(SurfaceSettings, "warmup_steps", 5_760)
    crop: tuple[int, int] = other_default(SurfaceSettings, "crop", (480, 480))
    uncertainty: bool = setting(
        True,
        "predict a concentration per pixel, too, and train by its negative log-likelihood; false: by the mean angle",
    )

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        if self.rotation:
            raise UsageError(f"normals: rotation={self.rotation:g} would turn the images and not their normals")


class Normals(DenseProtocol[Settings]):
    """Surface normals of pixels.

    An output is a vector, and perhaps a concentration, (3 or 4, h, w); an image's row has the sums and the histogram
    `metrics.dense.normals.COLUMNS`.
    """

    name = "normals"
    takes = pixel_values.Normals
    needs = "needs a surface normal for every pixel"
    advice = "Give images/ with normals/, a list or a table of pairs, or skimage:motorcycle."
    no_value = "a normal of length 0 or NaN is unknown"

    @property
    def outputs(self) -> int:
        """Coordinates of a vector, and a concentration."""
        return 4 if self.settings.uncertainty else 3

    def loss(self, outputs: "Tensor", targets: "Tensor", update: int) -> "Tensor":
        """Return the angular loss of the known pixels."""
        valid = ~targets.isnan().any(dim=1, keepdim=True)
        concentration = outputs[:, 3:] if self.settings.uncertainty else None
        return angular_loss(outputs[:, :3], targets.nan_to_num(), valid, concentration)

    def averaged(self, outputs: "Tensor") -> "Tensor":
        """Return unit vectors (B, 3, H, W)."""
        from torch.nn.functional import normalize

        return normalize(outputs[:, :3], dim=1)

    def mirrored(self, x: "Tensor") -> "Tensor":
        """Return normals (..., k, H, W) of a mirrored map: x changes its sign.

        >>> import torch
        >>> Normals(Settings()).mirrored(torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1)).flatten().tolist()
        [-1.0, 2.0, 3.0]
        """
        sign = x.new_ones(x.shape[-3])
        sign[0] = -1
        return x * sign[:, None, None]

    def row(self, output: "Tensor", target: "PixelTarget") -> FloatArray:
        """Return the sums and the histogram of an image's angles; vectors are enlarged to the target."""
        predicted = np.moveaxis(self.predicted(output, target), 2, 0)
        return normals_row(angular_errors(predicted, target, np.asarray(~np.isnan(target).any(axis=0))))

    def predicted(self, output: "Tensor", target: "PixelTarget") -> npt.NDArray[np.float32]:
        """Return vectors (H, W, 3) of any length."""
        vectors = super().predicted(output[:3], target)
        # A mean of opposite vectors may vanish; any direction then counts, here that to the camera.
        vectors[..., 2][(np.abs(vectors) < _ZERO).all(axis=2)] = -1.0
        return vectors

    def drawn(self, output: "Tensor", target: "PixelTarget") -> tuple[ByteArray, ByteArray]:
        """Return the true and the predicted normals, x, y and z from -1 to 1 as red, green and blue; unknown: black."""
        predicted = self.averaged(enlarged(output, target)[None])[0].numpy()
        true, found = (np.nan_to_num(127.5 * (normals + 1)) for normals in (target, predicted))
        true, found = (np.moveaxis(rgb.clip(0, 255).round().astype(np.uint8), 0, 2).copy() for rgb in (true, found))
        return true, found

    def caption(self, value: float) -> str:
        """Return the error of an image."""
        return f"{-value:.0f} degrees"

    def notes(self, row: DenseRow, test: Source) -> list[str]:
        """Return remarks on images without normals, and on the means."""
        means = (
            "Metrics are of all pixels together, those called (images) are means over images; chance is the mean "
            "normal of train."
        )
        return [*super().notes(row, test), means]


PROTOCOL = Protocol(
    version=3,
    summary="surface normals from single images: heads trained on frozen features of patches.",
    settings=Settings,
    kind=Normals.kind(),
)
