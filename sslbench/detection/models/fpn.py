"""Feature pyramid networks (Lin et al. 2017) on a ResNet."""

from torch import Tensor, nn
from torch.nn import functional

from sslbench.backbones.backbone import Backbone
from sslbench.detection.models.layers import Conv, Norm, xavier
from sslbench.detection.models.resnets import Trunk, channels, prepared
from sslbench.detection.recipe import DetectionRecipe

STRIDES = (4, 8, 16, 32, 64)


class FeaturePyramid(nn.Module):
    """Feature pyramid with maps of strides 4 to 64, of equal width."""

    def __init__(self, bottom_up: Trunk, widths: tuple[int, ...], out: int, norm: Norm) -> None:
        """Set up the pyramid for a trunk, the channels of its maps, and the pyramid's channels and norm."""
        super().__init__()
        self.bottom_up = bottom_up
        for level, width in enumerate(widths, start=2):
            for name, conv in (
                (f"fpn_lateral{level}", Conv(width, out, 1, norm=norm)),
                (f"fpn_output{level}", Conv(out, out, 3, norm=norm)),
            ):
                xavier(conv)
                self.add_module(name, conv)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return five maps, finest first, of images (B, channels, H, W) with sides divisible by 32."""
        maps = self.bottom_up(images)
        results: list[Tensor] = []
        above: Tensor | None = None
        for level in range(len(maps) + 1, 1, -1):
            lateral = self.get_submodule(f"fpn_lateral{level}")(maps[level - 2])
            above = (
                lateral if above is None else lateral + functional.interpolate(above, scale_factor=2.0, mode="nearest")
            )
            results.insert(0, self.get_submodule(f"fpn_output{level}")(above))
        return [*results, coarsest(results[-1])]


def coarsest(feature: Tensor) -> Tensor:
    """Return every second place of the last map, the level of the largest anchors."""
    return functional.max_pool2d(feature, kernel_size=1, stride=2)


def pyramid(backbone: Backbone, recipe: DetectionRecipe) -> FeaturePyramid:
    """Build the pyramid of a resolved recipe on a ResNet."""
    network = prepared(backbone, recipe)
    widths = tuple(channels(network.spec, stage) for stage in range(4))
    norm: Norm = recipe.norm if recipe.pyramid_norm == "same" else recipe.pyramid_norm or "none"
    return FeaturePyramid(Trunk(network, 4), widths, recipe.pyramid_channels, norm)
