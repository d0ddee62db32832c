"""Supervised contrastive learning (Khosla et al., NeurIPS 2020, arXiv 2004.11362).

Views of all images of a class are positives of each other. Departures: none in the loss; images of other processes
are positives and negatives too, as one process with the whole batch has them.
"""

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import gather, gather_with_gradient, rank
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.networks import embed_views, mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of SupCon."""

    temperature: float = setting(0.1, "temperature of the similarities", within="(0, inf)")
    summation: Literal["outside", "inside"] = setting(
        "outside",
        "place of the sum over positives: outside the logarithm (eq. 2, the paper's choice) or inside (eq. 3)",
    )
    scale: float = setting(1.0, "factor of the loss; the authors' code has temperature / 0.07", within="(0, inf)")
    projector: tuple[int, ...] = setting(
        (2048, 128), "widths of the projection head's layers, the last is the output", within="[1, inf)"
    )


@in_float32
def supervised_contrastive(
    views: Tensor, labels: Tensor, temperature: float, summation: Literal["outside", "inside"] = "outside"
) -> Tensor:
    """Return L_out (eq. 2) or L_in (eq. 3), the mean over this process's anchors.

    `views`: (V, B, d), this process's embeddings of V >= 2 views, not necessarily normalised; `labels`: int64 (B,), a
    class for each image.

    >>> views = torch.eye(2).expand(2, 2, 2)  # two equal views of two orthogonal images: log((e + 2) / e)
    >>> round(float(supervised_contrastive(views, torch.tensor([0, 1]), 1.0)), 4)
    0.5514
    """
    # The denominator holds all views but the anchor itself. The mean over processes is the loss of the whole batch.
    anchors = functional.normalize(views, dim=2).flatten(0, 1)
    mine = labels.to(anchors.device).repeat(len(views))
    logits = anchors @ gather_with_gradient(anchors).T / temperature  # (rows, world * rows)
    rows = torch.arange(len(anchors), device=anchors.device)
    itself = torch.arange(logits.shape[1], device=anchors.device) == rank() * len(anchors) + rows[:, None]
    positive = (mine[:, None] == gather(mine)) & ~itself
    log_p = logits - logits.masked_fill(itself, -torch.inf).logsumexp(dim=1, keepdim=True)
    count = positive.sum(dim=1)
    if summation == "outside":
        terms = log_p.masked_fill(~positive, 0).sum(dim=1) / count
    else:
        terms = log_p.masked_fill(~positive, -torch.inf).logsumexp(dim=1) - count.to(log_p.dtype).log()
    return -terms.mean()


class Method(method.Method[Config]):
    """Contrast of images of a class with those of other classes."""

    config_type = Config
    needs = Needs("supcon", pairs=True, negatives=True)
    saved_head = "head"

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require several views, images of at least two classes and two images at a time."""
        if setup.classes < 2:
            raise UsageError(
                "supcon needs data in which every image has one of at least two classes",
                "Give labelled data, or use simclr, which is the same without labels.",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.head = mlp([setup.feature_dim, *config.projector])

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the supervised contrastive loss of all views."""
        if batch.labels is None:
            raise UsageError("supcon received a batch without labels")
        embeddings = embed_views(self.backbone, self.head, batch.views)
        value = supervised_contrastive(embeddings, batch.labels, self.config.temperature, self.config.summation)
        return Loss(self.config.scale * value, functional.normalize(embeddings[0].detach().float(), dim=1))
