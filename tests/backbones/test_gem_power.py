"""Power of GeM that was learnt with the network: `gem(file)` on a file of cirtorch."""

import re

import pytest
import torch

from sslbench.backbones.build import build
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.errors import BackboneError, WeightsError


def cirtorch_file(path, power):
    """Write a small ResNet under the names of cirtorch: the parts of a Sequential, then the pool."""
    numbers = {"conv1": 0, "bn1": 1, "layer1": 4, "layer2": 5, "layer3": 6, "layer4": 7}
    state = build("resnet18w0.25", seed=1).module.state_dict()
    names = {name: re.sub(r"^\w+", lambda found: f"features.{numbers[found[0]]}", name) for name in state}
    tensors = {names[name]: tensor for name, tensor in state.items()}
    torch.save({"meta": {"pooling": "gem"}, "state_dict": tensors | {"pool.p": power}}, path)
    return state


def test_the_learnt_power_replaces_the_word(tmp_path):
    state = cirtorch_file(tmp_path / "net.pth", torch.tensor([2.9167819]))
    backbone = load_backbone(str(tmp_path / "net.pth"))
    assert (backbone.format, backbone.name, backbone.gem_power) == ("cirtorch", "resnet18w0.25", 2.91678)
    assert all(torch.equal(tensor, state[name]) for name, tensor in backbone.module.state_dict().items())
    learnt, mapped = resolve_layers(backbone, ["res5:gem(file)", "res5:flatten"])
    assert learnt.text == "res5:gem(2.91678)"
    with torch.inference_mode():
        found = forward_layers(backbone.module, torch.rand(2, 3, 64, 64), [learnt, mapped])
    maps = found[mapped.text].reshape(2, 128, -1).double().clamp(min=1e-6)
    torch.testing.assert_close(found[learnt.text].double(), (maps**2.91678).mean(2) ** (1 / 2.91678), rtol=1e-4, atol=0)


def test_weights_without_a_learnt_power_are_refused():
    with pytest.raises(BackboneError, match=r"'res5:gem\(file\)': the weights have no learnt power of GeM"):
        resolve_layers(build("resnet18w0.25"), ["res5:gem(file)"])


@pytest.mark.parametrize("power", [torch.tensor([0.0]), torch.tensor([float("nan")]), torch.ones(512)])
def test_a_power_that_is_not_one_positive_number_is_refused(power, tmp_path):
    cirtorch_file(tmp_path / "net.pth", power)
    with pytest.raises(WeightsError, match=r"'pool.p', the power of GeM, should be one positive number"):
        load_backbone(str(tmp_path / "net.pth"))
