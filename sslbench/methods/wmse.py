"""W-MSE (Ermolov et al., ICML 2021, arXiv 2007.06346): views attract each other, whitening keeps them from collapsing.

Departures: the slices of a batch that are whitened are drawn anew in each of `iterations`, for all views alike, within
a process (the paper has one GPU). Both views get a gradient, as in the authors' code; solo-learn's detaches one.
"""

import dataclasses
import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.networks import embed_views, mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of W-MSE."""

    projector: tuple[int, ...] = setting(
        (1024, 64), "widths of the projection head's layers, the last is the output", within="[1, inf)"
    )
    slice: int = setting(
        128, "images that are whitened together, more than the output has dimensions", within="[2, inf)"
    )
    iterations: int = setting(
        1, "random partitions of the batch into slices; the loss is their mean", within="[1, inf)"
    )
    epsilon: float = setting(0.0, "share of the identity in the covariance; 0 whitens fully", within="[0, 1)")


@in_float32
def whitened(rows: Tensor, epsilon: float = 0.0) -> Tensor:
    """Return rows with zero mean and the identity as covariance (section 3.1: Cholesky whitening).

    `rows`: (n, d), n > d, of full rank.

    >>> z = whitened(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -2.0]]))
    >>> [[abs(round(value, 4)) for value in row] for row in (z.T @ z / 2).tolist()]
    [[1.0, 0.0], [0.0, 1.0]]
    """
    centred = rows - rows.mean(dim=0)
    covariance = centred.T @ centred / (len(rows) - 1)
    covariance = (1 - epsilon) * covariance + epsilon * torch.eye(len(covariance), device=rows.device).to(covariance)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    # Not finite where the matrix is singular: the run then stops with a message.
    factor = torch.where(failed > 0, torch.nan, factor)
    whitened: Tensor = torch.linalg.solve_triangular(factor, centred.T, upper=False).T
    return whitened


@in_float32
def whitening_loss(views: Tensor, slices: Tensor, epsilon: float = 0.0) -> Tensor:
    """Return eq. 5: the mean squared distance of the unit vectors of two whitened views, over all pairs of views.

    `views`: (V, B, d), embeddings of V views; `slices`: int64 (S, n), rows of the batch that are whitened together; S *
    n <= B.
    """
    z = torch.stack([torch.cat([whitened(view[rows], epsilon) for rows in slices]) for view in views])
    pairs = itertools.combinations(range(len(views)), 2)
    return torch.stack([2 - 2 * functional.cosine_similarity(z[a], z[b], dim=1).mean() for a, b in pairs]).mean()


class Method(method.Method[Config]):
    """Mean squared distance of whitened views."""

    config_type = Config
    needs = Needs("wmse", pairs=True)
    saved_head = "head"

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require several views, and slices that have more images than the output dimensions."""
        if not config.projector[-1] < config.slice <= setup.batch_size:
            raise UsageError(
                f"wmse: slice={config.slice} must be above the {config.projector[-1]} dimensions of the output and at "
                f"most the {setup.batch_size} images of a forward pass",
                "Set method.slice to twice the last number of method.projector, and batch_size to a multiple of it.",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.head = mlp([setup.feature_dim, *config.projector], norm=True)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss over random slices of the batch."""
        embeddings = embed_views(self.backbone, self.head, batch.views)
        size, images = self.config.slice, embeddings.shape[1]
        terms = []
        for _ in range(self.config.iterations):
            order = (
                torch.randperm(images)[: images // size * size].view(-1, size).to(embeddings.device, non_blocking=True)
            )
            terms.append(whitening_loss(embeddings, order, self.config.epsilon))
        return Loss(torch.stack(terms).mean(), embeddings[0].detach())
