"""Feature pyramid networks (Lin et al. 2017) on a ResNet."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from sslbench.backbones.backbone import Backbone
from sslbench.detection.models.layers import Conv, Norm, xavier
from sslbench.detection.models.resnets import Trunk, channels, prepared
from sslbench.detection.recipe import DetectionRecipe

STRIDES = (4, 8, 16, 32, 64)
Top = Literal["pool", "of backbone", "of pyramid"]
"""Origin of the maps above stride 32: the pooled last map, or two convolutions of the backbone's or pyramid's last."""


class FeaturePyramid(nn.Module):
    """Feature pyramid of five maps of equal width: of strides 4 to 64, or 8 to 128 with convolutions at the top."""

    def __init__(self, bottom_up: Trunk, widths: tuple[int, ...], out: int, norm: Norm, top: Top = "pool") -> None:
        """Set up the pyramid for a trunk, the channels of its maps, and the pyramid's channels, norm and top."""
        super().__init__()
        self.bottom_up = bottom_up
        self.finest = 2 if top == "pool" else 3
        self.top_block = None
        if top != "pool":
            self.top_block = LastLevelP6P7(widths[-1] if top == "of backbone" else out, out)
            self.top_block.use_P5 = top == "of pyramid"  # torchvision guesses it from the channels
        for level, width in enumerate(widths[self.finest - 2 :], start=self.finest):
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
        for level in range(len(maps) + 1, self.finest - 1, -1):
            lateral = self.get_submodule(f"fpn_lateral{level}")(maps[level - 2])
            above = (
                lateral if above is None else lateral + functional.interpolate(above, scale_factor=2.0, mode="nearest")
            )
            results.insert(0, self.get_submodule(f"fpn_output{level}")(above))
        if self.top_block is None:
            return [*results, coarsest(results[-1])]
        return list(self.top_block(results, [maps[-1]], [""] * len(results))[0])


def coarsest(feature: Tensor) -> Tensor:
    """Return every second place of the last map, the level of the largest anchors."""
    return functional.max_pool2d(feature, kernel_size=1, stride=2)


_TOPS: dict[str, Top] = {"retinanet": "of backbone", "fcos": "of pyramid"}


def pyramid(backbone: Backbone, recipe: DetectionRecipe) -> FeaturePyramid:
    """Build the pyramid of a resolved recipe on a ResNet."""
    network = prepared(backbone, recipe)
    widths = tuple(channels(network.spec, stage) for stage in range(4))
    norm: Norm = recipe.norm if recipe.pyramid_norm == "same" else recipe.pyramid_norm or "none"
    return FeaturePyramid(
        Trunk(network, 4), widths, recipe.pyramid_channels, norm, _TOPS.get(recipe.architecture, "pool")
    )
