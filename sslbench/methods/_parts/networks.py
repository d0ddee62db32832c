"""Heads on a backbone (MLPs, prototypes), and forward passes over several views."""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.backbones.alexnet import AlexNet
from sslbench.backbones.resnet import ResNet
from sslbench.distributed.collectives import broadcast_, gather, rank, world_size


def mlp(
    widths: Sequence[int],
    *,
    norm: bool = False,
    last_norm: Literal["none", "plain", "affine"] = "none",
    bias: bool = True,
    last_bias: bool = True,
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Return linear layers with activations between them: (B, widths[0]) -> (B, widths[-1])."""
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise(widths[:-1]):
        layers.append(nn.Linear(width_in, width_out, bias=bias))
        layers += [nn.BatchNorm1d(width_out)] if norm else []
        layers.append(activation())
    layers.append(nn.Linear(widths[-2], widths[-1], bias=last_bias))
    if last_norm != "none":
        layers.append(nn.BatchNorm1d(widths[-1], affine=last_norm == "affine"))
    return nn.Sequential(*layers)


def initialise_linear(network: nn.Module) -> None:
    """Initialise linear layers with a normal distribution, cut off at two standard deviations, and biases with 0."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)


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


def encode(network: Callable[[Tensor], Tensor], views: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the features of every view, with one forward pass per run of views of the same size.

    `network`: images (n, C, h, w) -> (n, D); `views`: each (B, C, h_v, w_v); returns (B, D) for each view, in order.
    """
    # Large batches are faster than one pass per view. BatchNorm then normalises over all views of one size, as in the
    # published code of SimCLR, SwAV and DINO; a method that normalises each view separately calls the network itself.
    outputs: list[Tensor] = []
    for _, group in itertools.groupby(views, key=lambda view: view.shape[-2:]):
        same = list(group)
        output = network(torch.cat(same) if len(same) > 1 else same[0])
        outputs += output.chunk(len(same))
    return tuple(outputs)


def embed_views(network: nn.Module, head: nn.Module, views: Sequence[Tensor]) -> Tensor:
    """Return the embeddings (V, B, d) of V views by a network and a head on its output."""
    embeddings: Tensor = head(torch.cat(encode(network, views))).unflatten(0, (len(views), -1))
    return embeddings


def feature_map(network: ResNet | AlexNet, images: Tensor) -> Tensor:
    """Return the last feature map before the pooling that gives the backbone's output.

    `images`: (B, C, H, W); returns (B, D, h, w).
    """
    if isinstance(network, AlexNet):
        convolved: Tensor = network.features[:-1](network.input(images))
        return convolved
    x = network.maxpool(network.relu(network.bn1(network.conv1(images))))
    maps: Tensor = network.layer4(network.layer3(network.layer2(network.layer1(x))))
    return maps


@torch.no_grad()
def over_shuffled(network: Callable[[Tensor], tuple[Tensor, ...]], images: Tensor) -> tuple[Tensor, ...]:
    """Return the outputs for this process's images, computed in batches of images from all processes.

    `network`: images (B, C, H, W) -> tensors of B rows each; `images`: (B, C, H, W), this process's; B is the same on
    all processes.
    """
    # The statistics of BatchNorm would reveal which query and key are from the same batch (He et al. 2019, arXiv
    # 1911.05722, section 3.3).
    everyone, world = gather(images), world_size()
    order = broadcast_(torch.randperm(len(everyone)).to(images.device))
    share = everyone[order.view(world, -1)[rank()]].contiguous(memory_format=torch.channels_last)
    own = order.argsort().view(world, -1)[rank()]
    return tuple(gather(output)[own] for output in network(share))
