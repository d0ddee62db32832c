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

_LEAST_SELECTING = 32  # channels of the layer that weighs selective kernels, at least
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
        self.conv1: nn.Module = nn.Conv2d(spec.channels, spec.width, kernel, stride, padding, bias=False)
        if spec.sk_ratio:
            half = spec.width // 2
            first, second = _convolution(spec.channels, half, 3, 2), _convolution(half, half, 3)
            last = _convolution(half, spec.width, 3)
            self.conv1 = nn.Sequential(
                *(
                    first,
                    _norm(spec, half),
                    nn.ReLU(inplace=True),
                    second,
                    _norm(spec, half),
                    nn.ReLU(inplace=True),
                    last,
                )
            )
        self.bn1 = _norm(spec, spec.width)
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
    """Residual block: convolutions, each with a norm, beside a shortcut (He et al. 2016, figure 5).

    Attributes:
        depth: number of convolutions: two of 3x3, or 1x1, 3x3 and 1x1 (bottleneck).
        select: of selective kernels, after the second convolution; None in other networks.
    """

    def __init__(
        self, spec: ResNetSpec, convolutions: Sequence[nn.Conv2d], shortcut: nn.Module | None, select: nn.Module | None
    ) -> None:
        super().__init__()
        self.depth = len(convolutions)
        for number, convolution in enumerate(convolutions, 1):
            self.add_module(f"conv{number}", convolution)
            self.add_module(f"bn{number}", _norm(spec, convolution.out_channels))
        self.select = select
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels in, H, W) -> (B, channels out, H / stride, W / stride)."""
        out = x
        for number in range(1, self.depth + 1):
            out = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(out))
            if number < self.depth:
                out = self.relu(out)
            if number == 2 and self.select is not None:
                out = self.select(out)
        out += x if self.downsample is None else self.downsample(x)
        activated: Tensor = self.relu(out)
        return activated


class SelectiveKernels(nn.Module):
    """Weighted sum of two maps by channel, whose weights are computed from the map's mean.

    Chen et al. 2020, SimCLRv2, arXiv 2006.10029, section 2, after Li et al. 2019, arXiv 1903.06586: as in their code,
    both kernels are 3x3 and one convolution.
    """

    def __init__(self, spec: ResNetSpec, channels: int) -> None:
        super().__init__()
        middle = max(int(channels * spec.sk_ratio), _LEAST_SELECTING)
        self.conv1 = _convolution(channels, middle, 1)
        self.bn1 = _norm(spec, middle)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _convolution(middle, 2 * channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 2 C, H, W) -> (B, C, H, W)."""
        maps = torch.stack(x.chunk(2, dim=1))
        mean = maps.sum(dim=0).mean(dim=(2, 3), keepdim=True)
        scores = self.conv2(self.relu(self.bn1(self.conv1(mean))))
        return (maps * torch.stack(scores.chunk(2, dim=1)).softmax(dim=0)).sum(dim=0)


def _norm(spec: ResNetSpec, channels: int) -> nn.Module:
    """Return the norm after a convolution."""
    return nn.GroupNorm(spec.norm_groups, channels) if spec.norm_groups else nn.BatchNorm2d(channels)


def _shortcut(spec: ResNetSpec, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return the projection beside the first block of a stage; with selective kernels, after average pooling."""
    if not spec.sk_ratio:
        return nn.Sequential(_convolution(inputs, outputs, 1, stride), _norm(spec, outputs))
    # One row of zeros below and on the right keeps the size at stride 1, as TensorFlow's padding does.
    pool = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.AvgPool2d(2, stride))
    return nn.Sequential(pool, _convolution(inputs, outputs, 1), _norm(spec, outputs))


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
        step, shortcut, select = stride if index == 0 else 1, None, None
        if step != 1 or channels != outputs:
            shortcut = _shortcut(spec, channels, outputs, step)
        # The first convolution still reads the cells of the stage before, as in torchvision and timm.
        reach = dilation_before if index == 0 else dilation
        if spec.block == "basic":
            layers = [_convolution(channels, planes, 3, step, reach), _convolution(planes, planes, 3, 1, dilation)]
        else:
            width = int(planes * (spec.width_per_group / 64)) * spec.groups
            before, inside = (step, 1) if spec.stride_in_1x1 else (1, step)
            select = SelectiveKernels(spec, width) if spec.sk_ratio else None
            layers = [
                _convolution(channels, width, 1, before),
                _convolution(width, width * (2 if select else 1), 3, inside, reach, spec.groups),
                _convolution(width, outputs, 1),
            ]
        blocks.append(Block(spec, layers, shortcut, select))
        channels = outputs
    return nn.Sequential(*blocks), channels


def recognise_resnet(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the name of the ResNet with these tensors, or None.

    Every number is taken by majority, so that a file with a few missing or damaged tensors is still recognised: loading
    then names what is wrong with it, which helps more than not knowing it. Names that no ResNet has
    (squeeze-excitation) make it another architecture. Of the stem only the kernel's size shows: 3x3 is taken for
    CIFAR's, of stride 1 and without pooling, unless there are selective kernels.

    shapes: canonical name -> shape, without heads.
    """
    spec = _spec_of(shapes)
    if spec is None:
        return None
    stem = shapes.get("conv1.0.weight" if spec.sk_ratio else "conv1.weight", (0, 3, 7, 7))
    if stem[2:] not in _STEM_KERNELS:
        return None
    spec = dataclasses.replace(spec, stem="imagenet" if spec.sk_ratio else _STEM_KERNELS[stem[2:]], channels=stem[1])
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
    # The least width hides the ratio in narrow stages.
    selecting = _most_common(
        shape[0] / shape[1] for stage, _, t, shape in found if (stage, t) == (3, "select.conv1.weight") and all(shape)
    )
    groups = groups / 2 if groups and selecting else groups
    if not width or not inner or not groups or width != int(width) or groups != int(groups):
        return None
    per_group = inner / groups / width * 64
    return ResNetSpec(block, layers, int(width), int(groups), per_group, sk_ratio=selecting or 0)


def _most_common(values: Iterable[float]) -> float | None:
    counted = collections.Counter(values).most_common(1)
    return counted[0][0] if counted else None
