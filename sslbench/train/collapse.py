"""Whether the embeddings still tell images apart."""

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Spread:
    """How different the embeddings of a batch are.

    Attributes:
        std: standard deviation of the L2-normalised embeddings per dimension, times sqrt(d): about 1 when directions
            are spread evenly, 0 when all images have the same (Chen & He 2021, section 4.1).
        effective_rank: exp of the entropy of the normalised singular values of the centred embeddings (Roy & Vetterli
            2007), between 1 and min(n - 1, d).
    """

    std: float
    effective_rank: float

    @property
    def collapsed(self) -> bool:
        """Whether hardly anything is left."""
        return self.std < 0.05 or self.effective_rank < 1.5


@torch.no_grad()
def spread(embeddings: Tensor) -> Spread:
    """Of (n, d) embeddings, n at least 2; a batch that is not finite has none."""
    x = functional.normalize(embeddings.detach().float(), dim=1)
    if not torch.isfinite(x).all():
        return Spread(0.0, 1.0)
    std = x.std(dim=0, correction=0).mean() * x.shape[1] ** 0.5
    singular = torch.linalg.svdvals(x - x.mean(dim=0))
    p = singular / singular.sum().clamp_min(1e-12)
    entropy = -(p * p.clamp_min(1e-12).log()).sum()
    return Spread(float(std), float(entropy.exp()))
