"""Trunks and feature pyramids of ResNets and vision transformers, and the norms in and on them."""

import logging
from functools import partial
from typing import Any, Literal, cast

import torch
from timm.layers.mlp import Mlp
from timm.layers.norm import LayerNorm2d
from timm.models.vision_transformer import Block, VisionTransformer
from timm.models.vision_transformer_sam import VisionTransformerSAM
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from sslbench.backbones.architectures import ResNetSpec
from sslbench.backbones.backbone import Backbone, copied
from sslbench.backbones.build import build
from sslbench.backbones.resnet import ResNet
from sslbench.detection.recipe import DETR, DetectionRecipe, HeadNorm
from sslbench.distributed.collectives import world_size
from sslbench.errors import UsageError

log = logging.getLogger("sslbench")

Norm = Literal["none", "layer", "group", "frozen", "batch", "sync"]
GROUPS = 32
"""Groups of a group norm (Wu & He 2018, arXiv 1803.08494)."""


class Conv(nn.Conv2d):
    """Convolution of stride 1 and equal size, with an optional norm (in place of the bias) and ReLU."""

    def __init__(self, channels: int, out: int, kernel: int, *, norm: Norm = "none", relu: bool = False) -> None:
        super().__init__(channels, out, kernel, padding=kernel // 2, bias=norm == "none")
        self.norm = make_norm(norm, out)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, out, H, W) of (B, channels, H, W)."""
        x = super().forward(x)
        if self.norm is not None:
            x = self.norm(x)
        return functional.relu(x) if self.relu else x


def norm_of(recipe: DetectionRecipe, kind: HeadNorm | None) -> Norm:
    """Return the norm of a pyramid or a head: its own kind, or that of the backbone."""
    return recipe.norm if kind == "same" else kind or "none"


def make_norm(kind: Norm, channels: int) -> nn.Module | None:
    """Return a norm over (B, channels, H, W); 'sync' is plain until `synchronised` converts the network."""
    if kind == "none":
        return None
    if kind == "layer":
        return LayerNorm2d(channels)  # over the channels at each place, epsilon 1e-6
    if kind == "group":
        return nn.GroupNorm(GROUPS, channels)
    return FrozenBatchNorm2d(channels) if kind == "frozen" else nn.BatchNorm2d(channels)


def xavier(layer: nn.Conv2d | nn.Linear) -> None:
    """Initialise with Caffe2's XavierFill, as Detectron2's pyramids and box heads: uniform, variance 1 / fan-in."""
    nn.init.kaiming_uniform_(layer.weight, a=1)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def msra(layer: nn.Conv2d | nn.ConvTranspose2d) -> None:
    """Initialise with Caffe2's MSRAFill (He et al. 2015), as the convolutions of Detectron2's heads."""
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def freeze_norms(module: nn.Module) -> nn.Module:
    """Return the module with every BatchNorm in it (or itself) frozen; the remaining tensors keep their names."""
    # A frozen norm lacks the counter num_batches_tracked, as torchvision's and Detectron2's do.
    if isinstance(module, nn.BatchNorm2d):
        frozen = FrozenBatchNorm2d(module.num_features, eps=module.eps)
        state = module.state_dict()
        frozen.load_state_dict({name: state[name] for name in frozen.state_dict()})
        return cast(nn.Module, frozen)
    for name, child in module.named_children():
        setattr(module, name, freeze_norms(child))
    return module


def freeze(module: nn.Module) -> nn.Module:
    """Return the module without gradients and with frozen norms."""
    module.requires_grad_(False)
    return freeze_norms(module)


def synchronised(module: nn.Module, device: torch.device) -> nn.Module:
    """Return the module with BatchNorm statistics over all processes; on the CPU, where torch cannot, per process."""
    if device.type == "cpu":
        alone = world_size() == 1
        log.log(
            logging.INFO if alone else logging.WARNING,
            "norm=sync needs GPUs; on the CPU, each process uses its own BatchNorm statistics"
            + (", which is the same for a single one" if alone else ""),
        )
        return module
    return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(module))  # type: ignore[no-untyped-call]


STAGES = ("layer1", "layer2", "layer3", "layer4")


class Trunk(nn.Module):
    """First stages of a ResNet under their canonical names."""

    def __init__(self, network: ResNet, stages: int) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu, self.maxpool = network.conv1, network.bn1, network.relu, network.maxpool
        self.stages = STAGES[:stages]
        for name in self.stages:
            setattr(self, name, network.get_submodule(name))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the map of each stage, of strides 4, 8, 16, 32, of images (B, channels, H, W)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps = []
        for name in self.stages:
            x = self.get_submodule(name)(x)
            maps.append(x)
        return maps


def prepared(backbone: Backbone, recipe: DetectionRecipe) -> ResNet:
    """Return a copy of the backbone's network, trainable except for the frozen stages."""
    network = copied(backbone.module)
    if not isinstance(network, ResNet):
        vit = "vit_deformable_detr" if recipe.architecture in DETR else "vit_fpn"
        other = f"For a vision transformer of timm use architecture={vit}." if backbone.kind.tags else ""
        raise UsageError(
            f"architecture={recipe.architecture} needs a ResNet of sslbench, but the backbone is {backbone.name}",
            f"Use resnet18 to resnet200, wide or grouped. {other}".strip(),
        )
    if network.spec.stem != "imagenet":
        raise UsageError(
            f"{backbone.name} has the stem for small images, whose maps are too fine for a detector",
            "Use a backbone with the usual stem.",
        )
    if (network.spec.last_stride, network.spec.third_stride, network.spec.output_stride) != (2, 2, 32):
        raise UsageError(
            f"{backbone.name} has finer maps, but a detector needs those of stride 4, 8, 16 and 32",
            "Use a backbone without last_stride=1, third_stride=1 and output_stride.",
        )
    network.requires_grad_(True)
    if recipe.norm == "frozen":
        freeze_norms(network)
    if recipe.stride_in_1x1 and not network.spec.stride_in_1x1:
        # The stride of each stage moves from its first 3x3 to its first 1x1 convolution; the shapes do not show it.
        if network.spec.block != "bottleneck":
            raise UsageError(f"stride_in_1x1: the blocks of {network.spec.name} have no 1x1 convolution")
        for name in STAGES[1:]:
            first = network.get_submodule(f"{name}.0")
            for conv, stride in (("conv1", (2, 2)), ("conv2", (1, 1))):
                first.get_submodule(conv).stride = stride  # type: ignore[assignment]
    # The fifth stage of c4 is no part of its backbone but of its head, as in Detectron2 and in Goyal et al. 2019, where
    # detection on a frozen backbone trains it.
    stages = STAGES[:3] if recipe.architecture == "c4" else STAGES
    for index, names in enumerate((("conv1", "bn1"), *((stage,) for stage in stages)), start=1):
        if recipe.freeze_at >= index:
            for name in names:
                setattr(network, name, freeze(network.get_submodule(name)))
    return network


def channels(spec: ResNetSpec, stage: int) -> int:
    """Return the output channels of a stage (0 to 3)."""
    return spec.width * (1 << stage) * (4 if spec.block == "bottleneck" else 1)


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
        # From the coarsest map to the finest: each adds the one above it, enlarged.
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
    norm = norm_of(recipe, recipe.pyramid_norm)
    return FeaturePyramid(
        Trunk(network, 4), widths, recipe.pyramid_channels, norm, _TOPS.get(recipe.architecture, "pool")
    )


LEVELS = (2, 3, 4, 5)
"""Logarithms of the strides of all maps but the coarsest, which is pooled."""


class SimplePyramid(nn.Module):
    """Feature pyramid with maps of strides 4 to 64, or of some of these, from the last map of a vision transformer."""

    def __init__(
        self,
        net: VisionTransformer | VisionTransformerSAM,
        patch: int,
        out: int,
        norm: Norm,
        levels: tuple[int, ...] = LEVELS,
    ) -> None:
        """Set up the pyramid for a transformer, its patch side (8 or 16), and the pyramid's channels, norm and maps."""
        super().__init__()
        self.net, self.levels = net, levels
        for level in levels:
            stride = 1 << level
            layers, width = _rescale(int(net.embed_dim), patch / stride, norm)
            layers += [Conv(width, out, 1, norm=norm), Conv(out, out, 3, norm=norm)]
            self.add_module(f"simfp_{level}", nn.Sequential(*layers))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the maps, finest first, of images (B, channels, H, W) with sides divisible by 32."""
        maps = cast(list[Tensor], self.net.forward_intermediates(images, indices=1, intermediates_only=True))
        results = [self.get_submodule(f"simfp_{level}")(maps[0]) for level in self.levels]
        return [*results, coarsest(results[-1])] if self.levels == LEVELS else results


def _rescale(width: int, factor: float, norm: Norm) -> tuple[list[nn.Module], int]:
    """Return layers that scale a map's resolution by `factor`, and their output channels."""
    if factor > 1:
        layers: list[nn.Module] = [nn.ConvTranspose2d(width, width // 2, 2, stride=2)]
        if factor == 2:
            return layers, width // 2
        between = make_norm(norm, width // 2)
        layers += [] if between is None else [between]
        return [*layers, nn.GELU(), nn.ConvTranspose2d(width // 2, width // 4, 2, stride=2)], width // 4
    side = int(1 / factor)
    return ([nn.MaxPool2d(side, stride=side)] if side > 1 else []), width


def simple_pyramid(backbone: Backbone, recipe: DetectionRecipe, levels: tuple[int, ...] = LEVELS) -> SimplePyramid:
    """Build the pyramid of a resolved recipe on a vision transformer."""
    # Positions are resampled to the size of each batch. Patches of 8 and 16 pixels are kept; others are resampled to
    # 16, so that the strides of the maps are powers of two (timm's `resample_patch_embed`, Beyer et al. 2023,
    # FlexiViT).
    if backbone.kind.users or not isinstance(backbone.module, VisionTransformer):
        instead = "deformable_detr" if recipe.architecture in DETR else "fpn or c4"
        other = f" For ResNets use architecture={instead}." if isinstance(backbone.module, ResNet) else ""
        raise UsageError(
            f"architecture={recipe.architecture} needs a vision transformer of timm, and {backbone.name} is none",
            f"For example timm:vit_base_patch16_224.{other}",
        )
    dropped = f",drop_path_rate={recipe.drop_path}" if recipe.drop_path else ""
    net = build(f"{backbone.name},dynamic_img_size=True{dropped}").module
    net.load_state_dict(backbone.module.state_dict())
    if not isinstance(net, VisionTransformer):
        raise UsageError(f"{backbone.name} cannot be built for images of any size")
    patch = int(net.patch_embed.patch_size[0])
    if patch not in (8, 16):
        log.warning(f"{backbone.name}: its patches of {patch} pixels are resampled to 16 for detection")
        net.set_input_size(patch_size=(16, 16))
        patch = 16
    net.norm = nn.Identity()  # the pyramid uses its input; DDP fails on weights without gradient
    net.fc_norm = nn.Identity()
    net.attn_pool = None  # type: ignore[assignment]
    trunk = _windowed(net, patch, backbone.name, recipe) if recipe.vit_window or recipe.vit_relative else net
    trunk.requires_grad_(True)
    if recipe.freeze_at == 5:
        freeze(trunk)
    norm = norm_of(recipe, recipe.pyramid_norm)
    return SimplePyramid(trunk, patch, recipe.pyramid_channels, norm, levels)


def global_blocks(depth: int) -> tuple[int, ...]:
    """Return the blocks with global attention: the last of each quarter (section 3 of the paper).

    >>> global_blocks(12)
    (2, 5, 8, 11)
    """
    return tuple(sorted({-(-depth * quarter // 4) - 1 for quarter in range(1, 5)}))


def _windowed(net: VisionTransformer, patch: int, name: str, recipe: DetectionRecipe) -> VisionTransformerSAM:
    """Return the transformer with windows and relative positions; class and register tokens are left out."""
    # Relative positions begin at 0 and reach over images of max_size_train; absolute ones keep their own grid.
    first = cast(Block, net.blocks[0])
    attention, mlp = cast(Any, first.attn), cast(Mlp, first.mlp)  # timm moves the class of the former
    windows = recipe.vit_window or 0
    side = -(-recipe.max_size_train // patch) * patch
    trunk = VisionTransformerSAM(
        img_size=side,
        patch_size=patch,
        in_chans=net.in_chans,
        num_classes=0,
        embed_dim=net.embed_dim,
        depth=len(net.blocks),
        num_heads=attention.num_heads,
        mlp_ratio=cast(nn.Linear, mlp.fc1).out_features / net.embed_dim,
        qkv_bias=attention.qkv.bias is not None,
        init_values=None if isinstance(first.ls1, nn.Identity) else 1.0,  # the weights are copied
        pre_norm=not isinstance(net.norm_pre, nn.Identity),
        drop_path_rate=recipe.drop_path,
        norm_layer=partial(nn.LayerNorm, eps=cast(nn.LayerNorm, first.norm1).eps),  # type: ignore[arg-type]
        act_layer=type(mlp.act),
        use_abs_pos=net.pos_embed is not None,
        use_rel_pos=recipe.vit_relative,
        window_size=windows,
        global_attn_indexes=global_blocks(len(net.blocks)) if windows else (),
        neck_chans=None,  # type: ignore[arg-type]
    )
    trunk.neck = nn.Identity()  # type: ignore[assignment]
    state = {n: t for n, t in net.state_dict().items() if n not in ("cls_token", "reg_token", "pos_embed")}
    if net.pos_embed is not None:
        height, width = net.patch_embed.grid_size
        positions = net.pos_embed.detach()[:, -height * width :]
        trunk.pos_embed = nn.Parameter(positions.reshape(1, height, width, -1).clone())
        state["pos_embed"] = trunk.pos_embed.detach()
    new = {n for n in trunk.state_dict() if n.endswith((".rel_pos_h", ".rel_pos_w"))}
    missing, unexpected = set(trunk.state_dict()) - set(state) - new, set(state) - set(trunk.state_dict())
    if missing or unexpected:
        raise UsageError(
            f"{name} has no form with windows or relative positions: it differs in {min(missing | unexpected)}",
            "Leave out vit_window and vit_relative.",
        )
    trunk.load_state_dict(state, strict=False)
    return trunk
