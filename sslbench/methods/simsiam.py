"""SimSiam: a predictor and a stop-gradient (Chen and He, arXiv 2011.10566), and with more than two views FastSiam.

FastSiam (Pototzky et al., GCPR 2022) predicts the mean embedding of all other views, a target of less noise. Each view
has its own forward pass, so that BatchNorm normalises one view at a time, as in the published code. The paper keeps the
learning rate of the predictor constant (section 4.2), which the recipe sets by `optimizer.constant_lr`.
"""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.networks import mlp
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of SimSiam."""

    projector: tuple[int, ...] = setting(
        (2048, 2048, 2048), "widths of the projection head: hidden layers, output", within="[1, inf)"
    )
    predictor: tuple[int, ...] = setting(
        (512,), "widths of the prediction head's hidden layers (a bottleneck)", within="[1, inf)"
    )


@in_float32
def negative_cosine(prediction: Tensor, target: Tensor) -> Tensor:
    """Return equation 1, minus the mean cosine of (B, d) vectors; the cosine of a zero vector is 0.

    The gradient flows into both arguments; the caller detaches the target.

    >>> float(negative_cosine(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0]])))
    -1.0
    """
    return -functional.cosine_similarity(prediction, target, dim=1).mean()


class Method(method.Method[Config]):
    """Prediction of the mean embedding of the other views."""

    config_type = Config
    needs = Needs("simsiam", pairs=True, several_images=True)
    saved_head, saved_predictor = "projector", "predictor"

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        dim = config.projector[-1]
        widths = [setup.feature_dim, *config.projector]
        # Biases right before a BatchNorm have no effect: the published code has none, or does not train them.
        self.projector = mlp(widths, norm=True, bias=False, last_bias=False, last_norm="plain")
        self.predictor = mlp([dim, *config.predictor, dim], norm=True, bias=False)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the mean of the losses of all views, with two of them equation 4."""
        z = [self.projector(self.backbone(view)) for view in batch.views]
        p = [self.predictor(embedding) for embedding in z]
        fixed = [embedding.detach() for embedding in z]
        targets = [torch.stack(fixed[:i] + fixed[i + 1 :]).mean(dim=0) for i in range(len(z))]
        terms = [negative_cosine(*pair) for pair in zip(p, targets, strict=True)]
        return Loss(torch.stack(terms).mean(), fixed[0])
