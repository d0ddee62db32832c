"""ResNets as modules, and their recognition from the shapes of tensors; `resnet_spec` reads their names."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from sslbench.backbones.architectures import ResNetSpec, Stem, parse
from sslbench.backbones.build import laid_out

_STEM_KERNELS: Mapping[tuple[int, ...], Stem] = {(7, 7): "imagenet", (3, 3): "cifar"}


class ResNet(nn.Module):
    """He et al. 2016, section 3.3, without classifier.

    Tensor names are torchvision's. `relu` runs once, after the stem, so that it can be tapped as VISSL's 'conv1'.
    `maxpool` passes on what it gets in a CIFAR stem: 'res1' is there the same as 'conv1'.
    """

    def __init__(self, spec: ResNetSpec) -> None:
        super().__init__()
        self.spec = spec
        small = spec.stem == "cifar"
        kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
        self.conv1 = nn.Conv2d(spec.channels, spec.width, kernel, stride=stride, padding=padding, bias=False)
        self.bn1 = nn.BatchNorm2d(spec.width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1, channels = _stage(spec, 0, spec.width)
        self.layer2, channels = _stage(spec, 1, channels)
        self.layer3, channels = _stage(spec, 2, channels)
        self.layer4, channels = _stage(spec, 3, channels)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if spec.zero_init_residual:
            for module in self.modules():
                if isinstance(module, Block):
                    nn.init.zeros_(module.get_parameter(f"bn{module.depth}.weight"))

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels of the images, H, W) -> (B, channels of the last stage)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return torch.flatten(self.avgpool(x), 1)


class Block(nn.Module):
    """Residual block: convolutions, each with BatchNorm, beside a shortcut (He et al. 2016, figure 5).

    Attributes:
        depth: number of convolutions: two of 3x3, or 1x1, 3x3 and 1x1 (bottleneck).
    """

    def __init__(self, convolutions: Sequence[nn.Conv2d], shortcut: nn.Module | None) -> None:
        super().__init__()
        self.depth = len(convolutions)
        for number, convolution in enumerate(convolutions, 1):
            self.add_module(f"conv{number}", convolution)
            self.add_module(f"bn{number}", nn.BatchNorm2d(convolution.out_channels))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels in, H, W) -> (B, channels out, H / stride, W / stride)."""
        out = x
        for number in range(1, self.depth + 1):
            out = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(out))
            if number < self.depth:
                out = self.relu(out)
        out += x if self.downsample is None else self.downsample(x)
        activated: Tensor = self.relu(out)
        return activated


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, reach: int = 1, groups: int = 1) -> nn.Conv2d:
    """Return a convolution without bias; reach: its dilation."""
    padding = reach * (kernel // 2)
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation=reach, groups=groups, bias=False)


def _stage(spec: ResNetSpec, stage: int, channels: int) -> tuple[nn.Sequential, int]:
    """Return the blocks of one stage and its output channels."""
    planes, (stride, dilation_before, dilation) = spec.width * 2**stage, spec.stage_strides(stage)
    outputs = planes if spec.block == "basic" else 4 * planes
    blocks = []
    for index in range(spec.layers[stage]):
        step, shortcut = stride if index == 0 else 1, None
        if step != 1 or channels != outputs:
            shortcut = nn.Sequential(_convolution(channels, outputs, 1, step), nn.BatchNorm2d(outputs))
        # The first convolution still reads the cells of the stage before, as in torchvision and timm.
        reach = dilation_before if index == 0 else dilation
        if spec.block == "basic":
            layers = [_convolution(channels, planes, 3, step, reach), _convolution(planes, planes, 3, 1, dilation)]
        else:
            width = int(planes * (spec.width_per_group / 64)) * spec.groups
            before, inside = (step, 1) if spec.stride_in_1x1 else (1, step)
            layers = [
                _convolution(channels, width, 1, before),
                _convolution(width, width, 3, inside, reach, spec.groups),
                _convolution(width, outputs, 1),
            ]
        blocks.append(Block(layers, shortcut))
        channels = outputs
    return nn.Sequential(*blocks), channels


def recognise_resnet(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the name of the ResNet with these tensors, or None.

    Every number is taken by majority, so that a file with a few missing or damaged tensors is still recognised: loading
    then names what is wrong with it, which helps more than not knowing it. Names that no ResNet has
    (squeeze-excitation, a deep stem) make it another architecture. Of the stem only the kernel's size shows: 3x3 is
    taken for CIFAR's, of stride 1 and without pooling.

    shapes: canonical name -> shape, without heads.
    """
    stem = shapes.get("conv1.weight", (0, 3, 7, 7))
    spec = _spec_of(shapes)
    if spec is None or stem[2:] not in _STEM_KERNELS:
        return None
    spec = dataclasses.replace(spec, stem=_STEM_KERNELS[stem[2:]], channels=stem[1])
    if parse(spec.name) != spec:
        return None
    with laid_out():
        expected = {name: tuple(tensor.shape) for name, tensor in ResNet(spec).state_dict().items()}
    matching = sum(expected.get(name) == shape for name, shape in shapes.items())
    if matching < len(shapes) / 2 or any(name not in expected for name in shapes):
        return None
    return spec.name


def _spec_of(shapes: Mapping[str, tuple[int, ...]]) -> ResNetSpec | None:
    blocks = re.compile(r"layer([1-9])\.(\d+)\.(.+)")
    found = [(int(m[1]) - 1, int(m[2]), m[3], shape) for name, shape in shapes.items() if (m := blocks.fullmatch(name))]
    layers = tuple(1 + max((index for s, index, _, _ in found if s == stage), default=-1) for stage in range(4))
    if 0 in layers or any(stage > 3 for stage, *_ in found):
        return None
    block: Literal["basic", "bottleneck"] = (
        "bottleneck" if any(t.startswith("conv3.") for _, _, t, _ in found) else "basic"
    )
    last, expansion = ("bn3.weight", 4) if block == "bottleneck" else ("bn2.weight", 1)
    width = _most_common(shape[0] / (expansion * 2**stage) for stage, _, t, shape in found if t == last and shape)
    inner = _most_common(shape[0] / 2**stage for stage, _, t, shape in found if t == "bn1.weight" and shape)
    groups = _most_common(
        shape[0] / shape[1] for _, _, t, shape in found if t == "conv2.weight" and len(shape) == 4 and shape[1]
    )
    if not width or not inner or not groups or width != int(width) or groups != int(groups):
        return None
    return ResNetSpec(block, layers, int(width), int(groups), inner / groups / width * 64)


def _most_common(values: Iterable[float]) -> float | None:
    counted = collections.Counter(values).most_common(1)
    return counted[0][0] if counted else None
