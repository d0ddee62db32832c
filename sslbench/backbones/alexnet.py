"""AlexNets of self-supervised learning: one trunk of five convolutions, in the variants that published weights have.

The tensors have torchvision's kind of names, with one numbering for all variants: convolution, normalisation, ReLU and
pooling of a layer are `features.0` to `features.3`, and so on, whether a layer has a normalisation or not. This is the
numbering of DeepCluster's own files. torchvision's AlexNet ('alexnet'), which has no normalisation, keeps its own.
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sslbench.backbones.architectures import ALEXNETS
from sslbench.backbones.build import laid_out
from sslbench.preprocessing import LIGHTNESS_MEAN, LIGHTNESS_STD, Preprocessing

_STANDARD_POOLS = {
    "conv1": "avg(19,4)", "conv2": "avg(12,3)", "conv3": "avg(9,1)", "conv4": "avg(9,1)", "conv5": "avg(8,1)",
}  # fmt: skip
_JIGSAW_POOLS = {
    "conv1": "avg(28,9)", "conv2": "avg(24,6)", "conv3": "avg(14,3)", "conv4": "avg(14,3)", "conv5": "avg(16,2)",
}  # fmt: skip
_ROTNET_POOLS = {
    "conv1": "adaptive-max(12,12)", "conv2": "adaptive-max(7,7)", "conv3": "adaptive-max(5,5)",
    "conv4": "adaptive-max(6,6)", "conv5": "adaptive-max(6,6)",
}  # fmt: skip
_SQUARE = (256, 256)


_USUAL = Preprocessing(origin="VISSL linear benchmark")
_SQUASHED_227 = Preprocessing(_SQUARE, (227, 227), origin="VISSL linear benchmark")
LAYERS = {"conv1": 2, "pool1": 3, "conv2": 6, "pool2": 7, "conv3": 10, "conv4": 13, "conv5": 16, "pool5": 17}
_TORCHVISION_LAYERS = {"conv1": 1, "pool1": 2, "conv2": 4, "pool2": 5, "conv3": 7, "conv4": 9, "conv5": 11, "pool5": 12}


@dataclasses.dataclass(frozen=True)
class AlexNetSpec:
    """Architecture of one variant.

    Attributes:
        widths: output channels of the five convolutions.
        groups: of the second, fourth and fifth convolution (2 on the two GPUs of 2012).
        norms: true if each convolution has a BatchNorm.
        local_norm: true if the first two layers have a local response normalisation, before or after pooling.
        inputs: input of the first convolution: 'rgb', 'lightness' (one channel) or 'sobel' (two edge maps).
        preprocessing: transform of VISSL's linear benchmark.
        pools: layer -> the pool of VISSL's linear benchmark.
    """

    preprocessing: Preprocessing
    widths: tuple[int, ...] = (96, 256, 384, 384, 256)
    groups: int = 1
    norms: tuple[bool, ...] = (True,) * 5
    local_norm: str = ""
    stride: int = 4
    padding: int = 0
    inputs: str = "rgb"
    pools: Mapping[str, str] = dataclasses.field(default_factory=dict)


SPECS: Mapping[str, AlexNetSpec] = {
    # Krizhevsky et al. 2012 as in BVLC's Caffe: values 0 to 255 less the mean, no division
    "alexnet_bvlc": AlexNetSpec(
        dataclasses.replace(_SQUASHED_227, std=(1 / 255,) * 3),
        groups=2,
        norms=(False,) * 5,
        local_norm="before",
        pools=_STANDARD_POOLS,
    ),
    # Noroozi and Favaro 2016; Goyal et al. 2019: stride 2, for small patches
    "alexnet_jigsaw": AlexNetSpec(
        _SQUASHED_227,
        groups=2,
        norms=(False, False, True, True, True),
        local_norm="after",
        stride=2,
        pools=_JIGSAW_POOLS,
    ),
    # Zhang et al. 2016; Goyal et al. 2019
    "alexnet_colorization": AlexNetSpec(
        dataclasses.replace(_SQUASHED_227, resize=256, mean=LIGHTNESS_MEAN, std=LIGHTNESS_STD, space="lightness"),
        groups=2,
        inputs="lightness",
        pools=_STANDARD_POOLS,
    ),
    # Caron et al. 2018
    "alexnet_deepcluster": AlexNetSpec(_USUAL, padding=2, inputs="sobel", pools=_STANDARD_POOLS),
    "alexnet_deepcluster_rgb": AlexNetSpec(_USUAL, padding=2, pools=_STANDARD_POOLS),
    "alexnet_rotnet": AlexNetSpec(_USUAL, widths=(64, 192, 384, 256, 256), padding=2, pools=_ROTNET_POOLS),
}


class Sobel(nn.Module):
    """Mean of the channels, then the two 3x3 edge filters of Sobel: fixed, so no tensors of it are in the weights."""

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        edge = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
        self.register_buffer("kernel", torch.stack([edge, edge.T])[:, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 2, H, W)."""
        return nn.functional.conv2d(images.mean(1, keepdim=True), self.kernel, padding=1)


class AlexNet(nn.Module):
    """Convolutional trunk of an AlexNet variant; returns the flattened output of the last pooling."""

    def __init__(self, spec: AlexNetSpec) -> None:
        super().__init__()
        inputs: dict[str, tuple[nn.Module, int]] = {
            "rgb": (nn.Identity(), 3), "lightness": (nn.Identity(), 1), "sobel": (Sobel(), 2),
        }  # fmt: skip
        self.input, channels = inputs[spec.inputs]
        self.features = nn.Sequential(*_layers(spec, channels))
        for module in self.features:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3 or 1, H, W) -> (B, 256 * h * w); h and w are 6 for images of 224 or 227 pixels, 13 for jigsaw's."""
        return torch.flatten(self.features(self.input(images)), 1)


def _layers(spec: AlexNetSpec, channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for number, width in enumerate(spec.widths):
        groups = spec.groups if number in (1, 3, 4) else 1
        kernel, padding = ((11, spec.padding), (5, 2), (3, 1), (3, 1), (3, 1))[number]
        stride = spec.stride if number == 0 else 1
        layers.append(nn.Conv2d(channels, width, kernel, stride=stride, padding=padding, groups=groups))
        layers.append(nn.BatchNorm2d(width) if spec.norms[number] else nn.Identity())
        layers.append(nn.ReLU())  # not in place, since earlier layers are read
        if number in (0, 1, 4):
            pool = nn.MaxPool2d(kernel_size=3, stride=2)
            norm = nn.LocalResponseNorm(size=5, alpha=1e-4, beta=0.75)  # as in Krizhevsky et al. 2012
            place = spec.local_norm if number < 2 else ""
            layers.append({"": pool, "before": nn.Sequential(norm, pool), "after": nn.Sequential(pool, norm)}[place])
        channels = width
    return layers


class TorchvisionTrunk(nn.Module):
    """torchvision's AlexNet without its classifier."""

    def __init__(self) -> None:
        import torchvision

        super().__init__()
        whole = torchvision.models.alexnet(weights=None)
        self.features, self.avgpool = whole.features, whole.avgpool

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 9216)."""
        return torch.flatten(self.avgpool(self.features(images)), 1)


def create(name: str) -> nn.Module:
    """Return the module called `name`, one of ALEXNETS, with random weights."""
    return TorchvisionTrunk() if name == "alexnet" else AlexNet(SPECS[name])


def aliases(name: str) -> dict[str, str]:
    """Return layer -> module path; 'flatten' is the output. 'conv1' to 'conv5' are after the ReLU, as in VISSL."""
    layers = _TORCHVISION_LAYERS if name == "alexnet" else LAYERS
    return {**{layer: f"features.{index}" for layer, index in layers.items()}, "flatten": ""}


def recognise_alexnet(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the name of the AlexNet with these tensors, or None. Loading reports wrong or missing tensors.

    shapes: canonical name -> shape, without heads.
    """
    if not all(name.startswith("features.") for name in shapes):
        return None
    shares: dict[str, float] = {}
    for name in ALEXNETS:
        with laid_out():
            wanted = {key: tuple(t.shape) for key, t in create(name).state_dict().items()}
        needed = {key for key in wanted if not key.endswith("num_batches_tracked")}
        alike = sum(wanted.get(key) == shape for key, shape in shapes.items() if key in needed)
        shares[name] = alike / max(len(needed | {k for k in shapes if not k.endswith("num_batches_tracked")}), 1)
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] > 0.8 else None
