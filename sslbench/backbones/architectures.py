"""Names of backbones, without torch and timm, which take seconds to import, so that a typo is told at once.

The name of a ResNet says everything: `resnet50`, `resnext101_32x8d`, `wide_resnet50_2`, and each of them with all
channels multiplied (`resnet50w2` is VISSL's RN50-w2, `resnet18w0.25` a quarter of the width). Depths that have no
number are written with their blocks: `resnet_bottleneck_2-2-2-2`. `_cifar` at the end stands for the stem of small
images (`resnet18w0.25_cifar`). Options follow commas: `,in_chans=13` for images of 13 channels, `,last_stride=1`
(`,third_stride=1`) for a last (third) stage that keeps its input's size, `,output_stride=8` (or 16) for last stages
that keep it and are dilated, `,stride_in_1x1=true` for strides in the first convolution of a bottleneck block in place
of the second, `,zero_init_residual=true` for random weights whose residual branches begin at zero, `,norm=layer` (or
`group32`) for LayerNorm (GroupNorm of 32 groups) in place of BatchNorm, `,sk_ratio=0.0625` for SimCLRv2's selective
kernels.
"""

import dataclasses
import functools
import importlib.util
import re
from pathlib import Path
from typing import Any, Literal

from sslbench.errors import UsageError
from sslbench.names import did_you_mean, refuse_missing_module

DEPTHS: dict[str, tuple[Literal["basic", "bottleneck"], tuple[int, ...]]] = {
    "18": ("basic", (2, 2, 2, 2)),
    "34": ("basic", (3, 4, 6, 3)),
    "50": ("bottleneck", (3, 4, 6, 3)),
    "101": ("bottleneck", (3, 4, 23, 3)),
    "152": ("bottleneck", (3, 8, 36, 3)),
    "200": ("bottleneck", (3, 24, 36, 3)),
}
RESNETS = (
    *(f"resnet{depth}" for depth in DEPTHS),
    *("resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2"),
    *("resnet50w2", "resnet50w4", "resnet18_cifar", "resnet50_cifar"),
)
_NUMBER = r"(\d+(?:\.\d+)?)"
_NAME = re.compile(
    rf"(?P<family>resnet|resnext|wide_resnet)(?P<depth>\d+|_(?:basic|bottleneck)_\d+-\d+-\d+-\d+)"
    rf"(?:_(?P<groups>\d+)x(?P<group_width>{_NUMBER})d|_(?P<factor>{_NUMBER}))?(?:w(?P<width>{_NUMBER}))?"
    rf"(?P<cifar>_cifar)?(?P<options>(?:,[^,]*)*)"
)
_ZERO_INIT = ",zero_init_residual=true"
Stem = Literal["imagenet", "cifar"]


_OPTIONS = {
    "in_chans": r"[1-9]\d*",
    "last_stride": "1|2",
    "third_stride": "1|2",
    "output_stride": "8|16|32",
    "stride_in_1x1": "true|True|false|False",
    "zero_init_residual": "true|True|false|False",
    "norm": r"batch|layer|group[1-9]\d*",
    "sk_ratio": r"0?\.\d+|1",
}
ALEXNETS = (
    *("alexnet_bvlc", "alexnet_jigsaw", "alexnet_colorization", "alexnet_deepcluster", "alexnet_deepcluster_rgb"),
    *("alexnet_rotnet", "alexnet"),
)
VIDEO_ENCODERS = (
    *("vjepa2_large", "vjepa2_huge", "vjepa2_giant"),
    *("videomae_small", "videomae_base", "videomae_large", "videomae_huge", "videomae_giant"),
)
_REGISTERED = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)
_QUOTED = re.compile(r"""["'](\w+)["']""")


@dataclasses.dataclass(frozen=True)
class ResNetSpec:
    """Architecture of a ResNet.

    Attributes:
        block: 'basic' (two 3x3 convolutions) or 'bottleneck' (1x1, 3x3, 1x1; four times as many channels come out).
        layers: blocks in each of the four stages.
        width: channels of the stem; stage i has width * 2^i (64 in the paper).
        groups: of the 3x3 convolution (32 in ResNeXt-50 32x4d).
        width_per_group: channels of each group in the first stage at width 64 (4 in ResNeXt-50 32x4d).
        stem: 'imagenet' (7x7 convolution of stride 2, max-pooling) or 'cifar' (3x3 of stride 1, no pooling: Chen et al.
            2020, SimCLR, appendix B.9).
        last_stride: of the last stage: 2, or 1 as colorization networks have it (Goyal et al. 2019).
        third_stride: of the third stage: 2, or 1 as the contrastive random walk has it (Jabri et al. 2020).
        output_stride: pixels for each cell of the last map, at most: a stage that would exceed it has stride 1, and the
            convolutions from there on are dilated, so that they see what they were trained on (Chen et al., DeepLab).
        stride_in_1x1: strides lie in the first convolution of a bottleneck block, as in MSRA's own ResNets (He et al.
            2016), and not in its 3x3 convolution, as in torchvision's.
        zero_init_residual: the last BatchNorm of every block begins with a weight of 0, so that the block begins as its
            shortcut (Goyal et al. 2017, arXiv 1706.02677, section 5.1); of random weights alone.
        norm_groups: groups of channels with one mean and deviation per image (Wu and He 2018, GroupNorm): 1 is VISSL's
            LayerNorm, over all channels and positions. 0: BatchNorm.
        sk_ratio: width of the layer that weighs two selective kernels, of their channels (Chen et al. 2020,
            SimCLRv2, arXiv 2006.10029, section 2: 0.0625); its networks also have three convolutions in the stem and
            average pooling in shortcuts. 0: none of these.
    """

    block: Literal["basic", "bottleneck"]
    layers: tuple[int, ...]
    width: int = 64
    groups: int = 1
    width_per_group: float = 64
    stem: Stem = "imagenet"
    channels: int = 3
    last_stride: int = 2
    third_stride: int = 2
    output_stride: int = 32
    stride_in_1x1: bool = False
    zero_init_residual: bool = False
    norm_groups: int = 0
    sk_ratio: float = 0

    @property
    def name(self) -> str:
        """Name of the architecture; `parse` inverts it."""
        known = [depth for depth, value in DEPTHS.items() if value == (self.block, self.layers)]
        depth = known[0] if known else f"_{self.block}_" + "-".join(map(str, self.layers))
        end = "" if self.width == 64 else f"w{_decimal(self.width / 64)}"
        end += "_cifar" if self.stem == "cifar" else ""
        end += f",in_chans={self.channels}" if self.channels != 3 else ""
        end += f",last_stride={self.last_stride}" if self.last_stride != 2 else ""
        end += f",third_stride={self.third_stride}" if self.third_stride != 2 else ""
        end += f",output_stride={self.output_stride}" if self.output_stride != 32 else ""
        end += ",stride_in_1x1=true" if self.stride_in_1x1 else ""
        end += _ZERO_INIT if self.zero_init_residual else ""
        end += f",norm={'layer' if self.norm_groups == 1 else f'group{self.norm_groups}'}" if self.norm_groups else ""
        end += f",sk_ratio={_decimal(self.sk_ratio)}" if self.sk_ratio else ""
        if self.groups > 1:
            return f"resnext{depth}_{self.groups}x{_decimal(self.width_per_group)}d{end}"
        if self.width_per_group != 64:
            return f"wide_resnet{depth}_{_decimal(self.width_per_group / 64)}{end}"
        return f"resnet{depth}{end}"

    def stage_strides(self, stage: int) -> tuple[int, int, int]:
        """Return the stride of a stage (0 to 3), and the dilations of its input and of its convolutions.

        >>> spec = ResNetSpec("bottleneck", (3, 4, 6, 3), output_stride=8)
        >>> [spec.stage_strides(stage) for stage in range(4)]
        [(1, 1, 1), (2, 1, 1), (1, 1, 2), (1, 2, 4)]
        """
        total, before, dilation, stride = 4, 1, 1, 1
        for stride in (1, 2, self.third_stride, self.last_stride)[: stage + 1]:
            before = dilation
            if total * stride > self.output_stride:
                dilation, stride = dilation * stride, 1
            total *= stride
        return stride, before, dilation

    def inner(self, stage: int) -> int:
        """Channels of the 3x3 convolutions in a stage (0 to 3)."""
        return int(self.width * 2**stage * (self.width_per_group / 64)) * self.groups


def _decimal(value: float) -> str:
    """Return the shortest decimal of a number ('2', not '2.0')."""
    return str(int(value)) if value == int(value) else repr(value)


def parse(name: str) -> ResNetSpec | None:
    """Return the architecture of a ResNet's name; None for other names.

    >>> parse("resnet50w2").width, parse("alexnet")
    (128, None)
    """
    found = _NAME.fullmatch(name)
    options = _options(found["options"]) if found else None
    if not found or options is None or (found["family"] == "resnet") == bool(found["groups"] or found["factor"]):
        return None
    if (found["family"] == "resnext") != bool(found["groups"]):
        return None
    if found["depth"] in DEPTHS:
        block, layers = DEPTHS[found["depth"]]
    elif found["depth"].startswith("_"):
        _, kind, blocks = found["depth"].split("_")
        block, layers = ("basic" if kind == "basic" else "bottleneck"), tuple(int(n) for n in blocks.split("-"))
    else:
        return None
    width = float(found["width"] or 1) * 64
    spec = ResNetSpec(
        block,
        layers,
        width=int(width),
        groups=int(found["groups"] or 1),
        width_per_group=float(found["group_width"] or 64 * float(found["factor"] or 1)),
        stem="cifar" if found["cifar"] else "imagenet",
        channels=int(options.get("in_chans", "3")),
        last_stride=int(options.get("last_stride", "2")),
        third_stride=int(options.get("third_stride", "2")),
        output_stride=int(options.get("output_stride", "32")),
        stride_in_1x1=options.get("stride_in_1x1") == "true",
        zero_init_residual=options.get("zero_init_residual") == "true",
        norm_groups=int(options.get("norm", "batch").replace("batch", "group0").replace("layer", "group1")[5:]),
        sk_ratio=float(options.get("sk_ratio", "0")),
    )
    if (spec.stride_in_1x1 and block == "basic") or (spec.output_stride != 32 and spec.stem == "cifar"):
        return None
    if spec.sk_ratio and (block == "basic" or spec.groups > 1 or spec.stem == "cifar" or spec.stride_in_1x1):
        return None
    if spec.norm_groups and any(spec.inner(stage) % spec.norm_groups for stage in range(4)):
        return None
    plain_basic = block == "bottleneck" or (spec.groups == 1 and spec.width_per_group == 64)
    return (
        spec
        if width == int(width) > 0
        and min(layers) > 0
        and plain_basic
        and all(spec.inner(stage) > 0 and spec.inner(stage) % spec.groups == 0 for stage in range(4))
        else None
    )


def _options(text: str) -> dict[str, str] | None:
    """',in_chans=4' as {'in_chans': '4'}; None where a ResNet has no such option or value, or it stands there twice."""
    options: dict[str, str] = {}
    for option in text.split(",")[1:]:
        key, _, value = option.partition("=")
        if key in options or key not in _OPTIONS or not re.fullmatch(_OPTIONS[key], value):
            return None
        options[key] = value.lower()
    return options


def without_initialisation(name: str) -> str:
    """Return the name of the same architecture without what concerns its random weights alone."""
    spec = parse(name)
    return dataclasses.replace(spec, zero_init_residual=False).name if spec and spec.zero_init_residual else name


def with_strides(name: str, *, last: int, in_1x1: bool) -> str:
    """Return the name of a ResNet with these strides, where it does not state others; other names as they are."""
    spec = parse(name)
    if spec is None:
        return name
    changed: dict[str, Any] = {"last_stride": last, "stride_in_1x1": in_1x1 and spec.block == "bottleneck"}
    stated = _options("".join(name.partition(",")[1:])) or {}
    return dataclasses.replace(spec, **{key: value for key, value in changed.items() if key not in stated}).name


def no_backbone(name: str) -> UsageError:
    """Return the error for a name that no family of backbones has."""
    known = {*RESNETS, *ALEXNETS, *VIDEO_ENCODERS, "pixels", *timm_names()}
    return UsageError(f"there is no backbone '{name}'", did_you_mean(name, known))


def refuse_unknown_backbone(name: str | None) -> None:
    """Refuse a name that no family of backbones has; others may still turn out wrong when they are built.

    >>> refuse_unknown_backbone("resnet50w2")
    >>> refuse_unknown_backbone("resnt50")
    Traceback (most recent call last):
        ...
    sslbench.errors.UsageError: there is no backbone 'resnt50'
    Did you mean 'resnet50' or 'resnet50...?
    """
    if name is None or name.startswith("pixels:"):
        return
    if ":" in name and not name.startswith("timm:"):
        refuse_missing_module(name)
        return
    architecture = name.removeprefix("timm:").partition(",")[0].partition(".")[0]
    if name in ("pixels", "pixels:native") or architecture in _of_timm()[1]:
        return
    base = name.partition(",")[0]
    if name.startswith("timm:"):
        raise UsageError(f"timm has no model '{architecture}'", did_you_mean(architecture, timm_names()))
    if base not in (*ALEXNETS, *VIDEO_ENCODERS) and parse(base) is None:
        raise no_backbone(name)


def timm_names() -> frozenset[str]:
    """Return the names of timm's models, those of `timm.list_models()`; none where timm is not installed."""
    return _of_timm()[0]


@functools.cache
def _of_timm() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of timm's models, and all words that may be one: old names are keys of its tables."""
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        return frozenset(), frozenset()
    texts = [file.read_text(encoding="utf-8") for file in Path(spec.origin).parent.glob("models/*.py")]
    registered = frozenset(name for text in texts for name in _REGISTERED.findall(text))
    return registered, registered | {word for text in texts for word in _QUOTED.findall(text)}
