"""AlexNets of self-supervised learning."""

from sslbench.backbones import alexnet
from sslbench.backbones.architectures import ALEXNETS
from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.build import Family
from sslbench.backbones.timm_models import no_such_option
from sslbench.preprocessing import Preprocessing


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


FAMILY = Family(
    lambda name: name.partition(",")[0] in ALEXNETS,
    _build,
    recognise=lambda shapes, *_: alexnet.recognise_alexnet(shapes),
)
