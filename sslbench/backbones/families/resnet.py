"""ResNets under torchvision's names, with VISSL's layers and pools."""

import dataclasses
from collections.abc import Mapping

from sslbench.backbones import resnet
from sslbench.backbones.architectures import parse
from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.build import Family
from sslbench.backbones.timm_models import no_such_option
from sslbench.errors import BackboneError
from sslbench.preprocessing import Preprocessing
from sslbench.weights.reading.model_config import ModelConfig

RESNET_LAYERS = {
    "conv1": "relu",
    "res1": "maxpool",
    "res2": "layer1",
    "res3": "layer2",
    "res4": "layer3",
    "res5": "layer4",
    "res5avg": "avgpool",
}
# VISSL's linear benchmark pools each layer to about 9,000 numbers (Goyal et al. 2019, section 6 and appendix).
# Its configurations give these for ResNets of bottleneck blocks: width multiplier -> layer -> pool.
VISSL_POOLS: dict[float, dict[str, str]] = {
    1: {"conv1": "avg(10,10,4)", "res2": "avg(16,8)", "res3": "avg(13,5)", "res4": "avg(8,3)", "res5": "avg(6,1)"},
    2: {"conv1": "avg(20,13,4)", "res2": "avg(32,8)", "res3": "avg(13,7)", "res4": "avg(8,6)", "res5": "adaptive(2,1)"},
    4: {
        "conv1": "adaptive(6,6)",
        "res2": "adaptive(3,3)",
        "res3": "adaptive(2,2)",
        "res4": "adaptive(1,2)",
        "res5": "adaptive(1,1)",
    },
}

# Pools of its colorization networks where they differ.
VISSL_LAST_STRIDE_1 = {"res5": "avg(12,2)"}

_CIFAR = Preprocessing(32, (32, 32), origin="CIFAR stem: images of 32 x 32, ImageNet's mean and std")
_MOST_BLOCKS = 1000
_OPTIONS = (
    "in_chans=4, last_stride=1, third_stride=1, output_stride=8, stride_in_1x1=true, zero_init_residual=true, "
    "norm=layer (or group32, whose groups divide all channels) and, in bottleneck blocks, sk_ratio=0.0625"
)


def _build(name: str) -> Backbone:
    spec = parse(name)
    if spec is None:
        base = name.partition(",")[0]
        raise no_such_option(name, f"{_OPTIONS}: {base},in_chans=4")
    usual_maps = spec.stem == "imagenet" and spec.third_stride == 2 and spec.output_stride == 32 and not spec.sk_ratio
    pools = VISSL_POOLS.get(spec.width / 64, {}) if spec.block == "bottleneck" and usual_maps else {}
    if pools and spec.last_stride == 1:
        pools = pools | VISSL_LAST_STRIDE_1
    usual = _CIFAR if spec.stem == "cifar" else Preprocessing(origin="torchvision default")
    return Backbone(
        name=spec.name,
        kind=Kind(options=frozenset({"in_chans", "last_stride"})),
        module=resnet.ResNet(spec),
        preprocessing=usual.for_channels(spec.channels),
        aliases=RESNET_LAYERS,
        default_layer="res5avg",
        vissl_pools=pools | ({"res5avg": ""} if pools else {}),
    )


def _check_recorded(name: str, where: str) -> None:
    spec = parse(name)
    if spec is not None and sum(spec.layers) > _MOST_BLOCKS:
        raise BackboneError(f"{where}: {name} has {sum(spec.layers)} blocks; at most {_MOST_BLOCKS} are built")


def _recognise(shapes: Mapping[str, tuple[int, ...]], format: str, weights: str, config: ModelConfig) -> str | None:
    name = resnet.recognise_resnet(shapes)
    spec = parse(name or "")
    if name is None or spec is None:
        return None
    in_1x1 = config.fields.get("downsample_in_bottleneck") is True and spec.block == "bottleneck"
    name = dataclasses.replace(spec, stride_in_1x1=in_1x1).name
    sizes = tuple(spec.width * 2**stage * (4 if spec.block == "bottleneck" else 1) for stage in range(4))
    shown = {"model_type": frozenset(("resnet",)), "num_channels": spec.channels, "embedding_size": spec.width}
    config.compare({**shown, "hidden_sizes": sizes, "depths": spec.layers, "layer_type": spec.block}, weights, name)
    config.require({"hidden_act": "relu", "downsample_in_first_stage": False})
    return name


FAMILY = Family(
    lambda name: ":" not in name and parse(name.partition(",")[0]) is not None, _build, _check_recorded, _recognise
)
