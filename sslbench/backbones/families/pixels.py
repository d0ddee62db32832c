"""Raw pixels as features: the floor of every backbone."""

from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.build import Family
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing

SIDE = 32


class Pixels(nn.Module):
    """Resized image as a vector: the pixel floor."""

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, 3 * H * W), channel by channel."""
        return images.flatten(1)


def _build(name: str) -> Backbone:
    _, colon, size = name.partition(":")
    size = size if colon else str(SIDE)
    if size != "native" and not (size.isdecimal() and int(size) > 0):
        raise UsageError(
            f"'pixels:{size}' is not a size", "Write pixels, pixels:SIZE (such as pixels:32) or pixels:native."
        )
    side = None if size == "native" else (int(size), int(size))
    return Backbone(
        name=f"pixels:{size}",
        kind=Kind(pixels=True),
        module=Pixels(),
        preprocessing=Preprocessing(side, None, "bilinear", (0.0,) * 3, (1.0,) * 3, origin="pixels"),
        aliases={"pixels": ""},
        default_layer="pixels",
    )


FAMILY = Family(lambda name: name.partition(":")[0] == "pixels", _build)
