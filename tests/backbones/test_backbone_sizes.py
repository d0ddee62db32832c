"""Views of several sizes through one backbone."""

import pytest
import torch

from sslbench.backbones.build import build
from sslbench.backbones.sizes import accept_sizes, feature_dim
from sslbench.errors import UsageError

SWIN = "timm:swin_tiny_patch4_window7_224,img_size=56"
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


def test_a_vit_takes_other_sizes_and_answers_as_before_to_its_own():
    module = build(VIT).module
    images, wanted = torch.randn(2, 3, 32, 32), {name: p.shape for name, p in module.named_parameters()}
    before = module(images)
    accept_sizes(module, (32, 16), name=VIT)
    torch.testing.assert_close(module(images), before)
    assert module(images[..., :16, :16]).shape == before.shape
    assert {name: p.shape for name, p in module.named_parameters()} == wanted


@pytest.mark.parametrize(
    ("name", "sizes", "message"), [("timm:test_vit", (160, 90), "90 x 90"), (SWIN, (56, 28), "28")]
)
def test_sizes_that_a_backbone_cannot_take_are_refused(name, sizes, message):
    with pytest.raises(UsageError, match=f"cannot take views of {message}"):
        accept_sizes(build(name).module, sizes, name=name)


def test_the_length_of_the_vectors():
    module = build("resnet18w0.125").module.train()
    assert feature_dim(module, 32) == 64 and module.training
    with pytest.raises(ValueError, match="one vector per image"):
        feature_dim(torch.nn.Conv2d(3, 4, 3), 32)
