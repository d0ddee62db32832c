"""AlexNets of self-supervised learning."""

from collections.abc import Mapping

from sslbench.backbones import alexnet
from sslbench.backbones.architectures import ALEXNETS
from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.build import Family
from sslbench.backbones.timm_models import no_such_option
from sslbench.preprocessing import Preprocessing
from sslbench.weights.reading.model_config import ModelConfig


def _takes(name: str) -> bool:
    return name.partition(",")[0] in ALEXNETS


def _build(name: str) -> Backbone:
    if "," in name:
        raise no_such_option(name, "none")
    spec = alexnet.SPECS.get(name)
    return Backbone(
        name=name,
        kind=Kind(),
        module=alexnet.create(name),
        preprocessing=spec.preprocessing if spec else Preprocessing(origin="torchvision default"),
        aliases=alexnet.aliases(name),
        default_layer="flatten",
        vissl_pools=spec.pools if spec else {},
    )


def _recognise(shapes: Mapping[str, tuple[int, ...]], format: str, weights: str, config: ModelConfig) -> str | None:
    return alexnet.recognise_alexnet(shapes)


FAMILY = Family(_takes, _build, recognise=_recognise)
