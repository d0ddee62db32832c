"""Names of backbones that are read without torch are those that the families build."""

import pytest
import timm
from timm.models import _registry

from sslbench.backbones import architectures, build
from sslbench.backbones.architectures import RESNETS, refuse_unknown_backbone
from sslbench.errors import UsageError


def test_names_of_timm_are_those_of_its_registry():
    assert architectures.timm_names() == set(timm.list_models())


def test_every_name_of_a_family_is_accepted():
    names = [*timm.list_models(), *_registry._deprecated_models, *RESNETS, "alexnet_jigsaw", "pixels:8"]
    names += ["resnet18w0.25_cifar,in_chans=4", "resnet_bottleneck_2-2-2-2", "timm:vit_small_patch16_224.dino"]
    names += ["vit_small_patch16_224,img_size=64", "json:loads", "pixels"]
    for name in names:
        refuse_unknown_backbone(name)
        assert build.family_of(name)


@pytest.mark.parametrize("name", ["resnt18", "resnet19", "vit_small_patch16_225", "alexnet_jigsaww", "pixel"])
def test_a_name_of_no_family_is_refused_as_building_refuses_it(name):
    with pytest.raises(UsageError) as early:
        refuse_unknown_backbone(name)
    with pytest.raises(UsageError) as late:
        build.family_of(name)
    assert str(early.value) == str(late.value)


def test_a_model_that_timm_lacks_is_refused():
    with pytest.raises(UsageError, match="timm has no model 'resnt50'\nDid you mean 'resnet50'"):
        refuse_unknown_backbone("timm:resnt50.a1_in1k")
