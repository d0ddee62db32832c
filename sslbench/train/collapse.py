"""Detection of collapse: embeddings that are nearly the same for all images."""

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

from sslbench.runtime.device import widest_float


@dataclasses.dataclass(frozen=True)
class Spread:
    """Diversity of the embeddings of a batch.

    Attributes:
        std: standard deviation of the L2-normalised embeddings per dimension, times sqrt(d): about 1 for directions
            that are spread evenly, 0 for equal embeddings (Chen & He 2021, section 4.1).
        effective_rank: exp of the entropy of the normalised singular values of the centred embeddings (Roy & Vetterli
            2007), from 1 to min(n - 1, d).
    """

    std: float
    effective_rank: float

    @property
    def collapsed(self) -> bool:
        """True if the embeddings hardly differ."""
        return self.std < 0.05 or self.effective_rank < 1.5


@torch.no_grad()
def spread(embeddings: Tensor) -> Spread:
    """Return the diversity of (n, d) embeddings, n at least 2; the lowest if one is not finite."""
    x = functional.normalize(embeddings.detach().float(), dim=1)
    if not torch.isfinite(x).all():
        return Spread(0.0, 1.0)
    std = x.std(dim=0, correction=0).mean() * x.shape[1] ** 0.5
    x = (x - x.mean(dim=0)).to(widest_float(x.device))
    # The eigenvalues of the smaller Gram matrix are the squares of the singular values, in a tenth of the time.
    values = torch.linalg.eigvalsh(x @ x.T if len(x) <= x.shape[1] else x.T @ x)
    singular = values.clamp_min(0).sqrt()
    p = singular / singular.sum().clamp_min(1e-12)
    entropy = -(p * p.clamp_min(1e-12).log()).sum()
    return Spread(float(std), float(entropy.exp()))
