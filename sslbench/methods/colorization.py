"""Colorization (Zhang et al., ECCV 2016, arXiv 1603.08511): prediction of the colours of a picture from its lightness.

The input is L of CIE Lab, the target a distribution over 313 colours (a, b) at every eighth pixel. AlexNets as in the
paper, ResNets with stride 1 in the last stage as in Goyal et al. 2019 (arXiv 1905.01235, VISSL's weights).

Departures: the prior of the colours is that of the training images, counted in a pass before the first update; the
published file, of ImageNet, is not read. Grey pictures are left out of the prior as well as of the loss. The head has
1x1 convolutions only, where the authors' first one is dilated, 6x6. The value of the loss is weighted too; the
authors' layers weight its gradient alone.
"""

import dataclasses
import functools
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.backbones.alexnet import AlexNet
from sslbench.backbones.resnet import ResNet
from sslbench.config import setting
from sslbench.data.decode.transforms import normalise
from sslbench.distributed.collectives import sum_
from sslbench.errors import DataError, UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.networks import feature_map
from sslbench.preprocessing import LIGHTNESS
from sslbench.runtime.device import widest_float
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step

GRID = 10
"""Distance of neighbouring colours in a and b."""
GREY = 5
"""Largest |a| and |b| of a picture that counts as grey."""
_UNREACHED = ((40, 90), (100, -90), (100, -10), (100, 0))  # published, though no sRGB colour lies in a cell around them
_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))  # BT.709
_WHITE = (0.950456, 1.0, 1.088754)  # D65


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of colorization."""

    neighbours: int = setting(
        5, "nearest colours that share the target of a pixel; the authors' code has 10", within="[1, inf)"
    )
    sigma: float = setting(
        5.0, "standard deviation of the shares in a and b, and of the smoothing of the prior", within="(0, inf)"
    )
    uniform: float = setting(
        0.5, "share lambda of the uniform distribution in the prior that weights divide by", within="(0, 1]"
    )
    stride: int = setting(8, "distance of the pixels whose colours are predicted", unit="pixels", within="[1, inf)")
    hidden: tuple[int, ...] = setting(
        (), "widths of the 1x1 convolutions before the classifier of the colours", within="[1, inf)"
    )


@in_float32
def chroma(images: Tensor) -> Tensor:
    """Return a and b of CIE Lab (sRGB, D65).

    `images`: RGB (B, 3, h, w), values 0 to 255; returns float32 (B, 2, h, w).

    >>> chroma(torch.tensor([255.0, 0.0, 0.0]).view(1, 3, 1, 1)).flatten().round().tolist()
    [80.0, 67.0]
    """
    rgb = images.to(torch.float32) / 255
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = torch.einsum("ij,bjhw->bihw", torch.tensor(_XYZ).to(linear, non_blocking=True), linear)
    xyz = xyz / torch.tensor(_WHITE).to(linear, non_blocking=True).view(1, 3, 1, 1)
    root = xyz.clamp(min=1e-8) ** (1 / 3)
    x, y, z = torch.where(xyz > (6 / 29) ** 3, root, xyz * (29 / 6) ** 2 / 3 + 4 / 29).unbind(1)
    return torch.stack((500 * (x - y), 200 * (y - z)), dim=1)


@functools.cache
def colours() -> Tensor:
    """Return the published colours: the corners of all cells of a grid over (a, b) that contain an sRGB colour.

    Four published points are corners of no such cell; they are there too.

    Returns float32 (313, 2), ordered by a, then b.

    >>> tuple(colours().shape)
    (313, 2)
    """
    levels = torch.arange(256.0)
    first, second = (plane.flatten() for plane in torch.meshgrid(levels, levels, indexing="ij"))
    found = set(_UNREACHED)
    for level in (0.0, 255.0):  # the gamut's projection is that of the faces of the RGB cube
        face = torch.full_like(first, level)
        for channels in ((face, first, second), (first, face, second), (first, second, face)):
            a, b = chroma(torch.stack(channels)[None, :, :, None])[0, :, :, 0]
            cells = np.unique(torch.stack((a, b), dim=1).div(GRID).floor().int().numpy(), axis=0).tolist()
            found |= {(GRID * (i + x), GRID * (j + y)) for i, j in cells for x in (0, 1) for y in (0, 1)}
    return torch.tensor(sorted(found), dtype=torch.float32)


def soft_encode(ab: Tensor, neighbours: int, sigma: float) -> tuple[Tensor, Tensor]:
    """Return the nearest colours of each pixel and their shares of its target (section 2.1).

    >>> indices, shares = soft_encode(torch.tensor([[3.0, 0.0]]), 2, 5.0)
    >>> colours()[indices[0]].tolist(), [round(share, 3) for share in shares[0].tolist()]
    ([[0.0, 0.0], [10.0, 0.0]], [0.69, 0.31])
    """
    squared = (ab[..., None, :] - colours().to(ab.device, non_blocking=True)).square().sum(dim=-1)
    nearest = squared.topk(neighbours, dim=-1, largest=False, sorted=True)
    return nearest.indices, (-nearest.values / (2 * sigma**2)).softmax(dim=-1)


def rebalancing_weights(counts: Tensor, uniform: float, sigma: float) -> Tensor:
    """Return the weights of the colours: inverse to their smoothed prior, 1 in expectation (eq. 4).

    `counts`: float64 (313,), number of pixels nearest to each colour; not all 0; returns (313,), of the dtype of
    `counts`.

    >>> weights = rebalancing_weights(torch.ones(313), 0.5, 0.001)
    >>> bool((weights == 1).all())
    True
    """
    points = colours().to(counts)
    kernel = (-torch.cdist(points, points).square() / (2 * sigma**2)).softmax(dim=0)  # keeps the number of pixels
    prior = kernel @ (counts / counts.sum())
    weights = 1 / ((1 - uniform) * prior + uniform / len(prior))
    return weights / (prior @ weights)


@in_float32
def rebalanced_cross_entropy(logits: Tensor, indices: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """Return the mean over pixels of their weighted cross entropy (eq. 2).

    `logits`: (B, 313, h, w); `indices`: int64 (B, h, w, K), see `soft_encode`; `shares`: (B, h, w, K); `weights`: (B,
    h, w).

    >>> encoded = soft_encode(torch.zeros(1, 1, 1, 2), 5, 5.0)
    >>> round(float(rebalanced_cross_entropy(torch.zeros(1, 313, 1, 1), *encoded, torch.ones(1, 1, 1))), 4)  # log(313)
    5.7462
    """
    log_p = logits.log_softmax(dim=1).permute(0, 2, 3, 1).gather(3, indices)
    return -(weights * (shares * log_p).sum(dim=3)).mean()


class Method(method.Method[Config]):
    """Classifier of the colours at the places of the backbone's feature map, enlarged to the target's size."""

    config_type = Config
    needs = Needs("colorization", views=1)
    compiled_methods = ("_maps",)
    first_pass = True
    space: ClassVar[Literal["RGB", "lightness"]] = "lightness"
    backbone: ResNet | AlexNet
    weights: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a single view and a ResNet or AlexNet of one channel, and settings within their bounds."""
        # The backbone takes the lightness alone: it may not see the colours that it predicts.
        first: nn.Module | None = backbone.conv1 if isinstance(backbone, ResNet) else None
        first = backbone.features[0] if isinstance(backbone, AlexNet) else first
        if not isinstance(first, nn.Conv2d) or first.in_channels != 1:
            raise UsageError(
                f"colorization needs a ResNet or AlexNet of one channel, the lightness, which {setup.backbone} is not",
                "Use --backbone resnet50,in_chans=1,last_stride=1 or alexnet_colorization (published).",
            )
        bounds = {"neighbours": (1, 313), "stride": (1, setup.sizes[0])}
        for name, (low, high) in bounds.items():
            if not low <= getattr(config, name) <= high:
                raise UsageError(
                    f"colorization: method.{name} should be from {low} to {high}, not {getattr(config, name)}"
                )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self._normalisation = setup.normalisation
        with torch.no_grad():
            side = setup.sizes[0]
            maps = feature_map(self.backbone, next(backbone.parameters()).new_zeros(2, 1, side, side))
        widths = [maps.shape[1], *config.hidden]
        layers: list[nn.Module] = []
        for i, width in enumerate(config.hidden):
            layers += [nn.Conv2d(widths[i], width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        self.map_head = nn.Sequential(*layers, nn.Conv2d(widths[-1], len(colours()), 1))
        # Equal until the first pass has counted the colours.
        self.register_buffer("weights", torch.ones(len(colours())))
        self._counts: Tensor | None = None

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the rebalanced cross entropy; in the first pass count colours instead."""
        pictures = self._pictures(batch.views[0])
        ab = chroma(pictures[:, :, :: self.config.stride, :: self.config.stride])
        coloured = (ab.abs() > GREY).flatten(1).any(dim=1)
        indices, shares = soft_encode(ab.permute(0, 2, 3, 1), self.config.neighbours, self.config.sigma)
        # Passes before the first update count the colours, from which the weights of the classes follow.
        if step.index < 0:
            nearest = indices[coloured][..., 0].flatten()
            counts = torch.bincount(nearest, minlength=len(colours())).to(widest_float(nearest.device))
            self._counts = counts if self._counts is None else self._counts + counts
            return Loss(ab.new_zeros(()), ab.new_zeros(len(ab), 1))
        maps = self._maps(normalise(pictures, LIGHTNESS, batch.views[0].dtype))
        size = (ab.shape[2], ab.shape[3])
        logits = functional.interpolate(self.map_head(maps), size=size, mode="bilinear", align_corners=False)
        weights = self.weights[indices[..., 0]] * coloured[:, None, None]
        value = rebalanced_cross_entropy(logits, indices, shares, weights)
        hits = (logits.argmax(dim=1) == indices[..., 0]).flatten(1).float().mean(dim=1)
        parts = {"accuracy": 100 * (hits * coloured).sum() / coloured.sum().clamp(min=1)}
        return Loss(value, maps.detach().float().mean(dim=(2, 3)), parts)

    def _pictures(self, view: Tensor) -> Tensor:
        """Return the pictures of a normalised view with 8 bits, as evaluations get them."""
        values = (self._normalisation.mean, self._normalisation.std)
        mean, std = (torch.tensor(each).to(view, non_blocking=True).view(1, 3, 1, 1) for each in values)
        return ((view * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def _maps(self, lightness: Tensor) -> Tensor:
        return feature_map(self.backbone, lightness)

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        """Compute the weights of the colours at the end of the first pass."""
        if step.index != -1 or self._counts is None:
            return
        counts = sum_(self._counts)
        self._counts = None
        if not counts.sum():
            raise DataError("colorization: all images are grey", "Use another method, or images with colours.")
        self.weights.copy_(rebalancing_weights(counts, self.config.uniform, self.config.sigma))
