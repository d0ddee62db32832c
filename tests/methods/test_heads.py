import pytest
import torch
from torch import nn

from sslbench.methods._parts.networks import Prototypes, encode, mlp


@pytest.mark.parametrize(
    ("widths", "options", "wanted"),
    [
        ((4, 2), {}, ["Linear"]),
        ((4, 3, 2), {}, ["Linear", "ReLU", "Linear"]),
        ((4, 3, 2), {"activation": nn.GELU}, ["Linear", "GELU", "Linear"]),
        ((4, 3, 3, 2), {"norm": True}, ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear"]),
        ((4, 2), {"norm": True, "last_norm": "plain"}, ["Linear", "BatchNorm1d"]),
    ],
)
def test_layers_of_an_mlp(widths, options, wanted):
    head = mlp(widths, **options)
    assert [type(layer).__name__ for layer in head] == wanted
    assert head(torch.zeros(5, widths[0])).shape == (5, widths[-1])


def test_biases_and_the_last_norm():
    head = mlp((4, 3, 2), norm=True, last_norm="plain", bias=False, last_bias=True)
    first, _, _, last, norm = head
    assert first.bias is None
    assert last.bias is not None
    assert not norm.affine
    assert mlp((4, 2), last_norm="affine")[1].affine


def test_prototypes_side_by_side():
    prototypes = Prototypes(4, (3, 5))
    assert [scores.shape for scores in prototypes(torch.zeros(2, 4))] == [(2, 3), (2, 5)]
    prototypes.normalize_()
    for parameter in prototypes.parameters():
        torch.testing.assert_close(parameter.norm(dim=1), torch.ones(len(parameter)))


def test_views_are_encoded_in_order_with_one_pass_per_run_of_one_size():
    views = [torch.full((2, 1, size, size), float(i)) for i, size in enumerate((4, 4, 2, 4))]
    seen = []

    def network(images):
        seen.append(tuple(images.shape))
        return images.mean(dim=(2, 3))

    outputs = encode(network, views)
    assert [output.flatten().tolist() for output in outputs] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert seen == [(4, 1, 4, 4), (2, 1, 2, 2), (2, 1, 4, 4)]
