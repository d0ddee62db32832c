"""Heads on a backbone: projection and prediction MLPs, and prototypes."""

import itertools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional


def mlp(
    widths: Sequence[int],
    *,
    norm: bool = False,
    last_norm: Literal["none", "plain", "affine"] = "none",
    bias: bool = True,
    last_bias: bool = True,
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Return linear layers with activations between them: (B, widths[0]) -> (B, widths[-1]).

    Args:
        widths: input, hidden and output dimensions; two numbers make a single linear layer.
        norm: BatchNorm between each hidden linear layer and its activation.
        last_norm: BatchNorm after the last layer: none, plain (without learnt scale and shift) or affine.
        bias: add biases to the hidden linear layers; a following BatchNorm makes them redundant.
        last_bias: add a bias to the last linear layer.
        activation: activation between the layers.

    Returns:
        A Sequential whose keys count the layers, as in the published code of MoCo, SimSiam and Barlow Twins.
    """
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise(widths[:-1]):
        layers.append(nn.Linear(width_in, width_out, bias=bias))
        layers += [nn.BatchNorm1d(width_out)] if norm else []
        layers.append(activation())
    layers.append(nn.Linear(widths[-2], widths[-1], bias=last_bias))
    if last_norm != "none":
        layers.append(nn.BatchNorm1d(widths[-1], affine=last_norm == "affine"))
    return nn.Sequential(*layers)


class Prototypes(nn.Module):
    """One or several sets of prototypes, each a linear layer without bias.

    Args:
        dim: dimension of the embeddings.
        counts: number of prototypes in each set.
    """

    def __init__(self, dim: int, counts: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, count, bias=False) for count in counts)

    def forward(self, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Return the scores (B, count) of embeddings (B, dim) for each set."""
        return tuple(layer(embeddings) for layer in self.layers)

    @torch.no_grad()
    def normalize_(self) -> None:
        """Scale every prototype to length 1, so that its product with a unit embedding is a cosine."""
        for parameter in self.parameters():
            parameter.copy_(functional.normalize(parameter, dim=1))
