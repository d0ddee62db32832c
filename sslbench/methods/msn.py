"""MSN: masked views match the unmasked one by their similarities to prototypes (Assran et al., ECCV 2022).

Source: arXiv 2204.07141. The first view goes through the target network, a moving average; the other large views lose
random patches; small views are kept whole. Targets are sharpened and balanced by Sinkhorn-Knopp; the mean prediction
is pushed to the uniform distribution, or with `power_law` to one of few common and many rare prototypes: PMSN, for data
of classes of very unequal sizes (Assran et al., ICLR 2023, arXiv 2210.07277). lightly's PMSNLoss has the divergence the
other way round, which does not become MSN for a uniform distribution.

Departures from the authors' code: the decay of the target network, which the code raises over 1.25 times the length of
the run, rises linearly over the run. Gradients are clipped together with that of the prototypes. With several processes
the gradient of the prototypes is the mean, as for all parameters; in the code it is the sum, to which AdamW is blind.
"""

import dataclasses
import math

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.distributed.collectives import mean_with_gradient
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32, sinkhorn
from sslbench.methods._parts.masks import update_generator
from sslbench.methods._parts.momentum import copy_of, update_copies
from sslbench.methods._parts.networks import encode, initialise_linear, mlp
from sslbench.methods._parts.vision_transformers import (
    embed,
    grid_of,
    need_class_token,
    need_vision_transformer,
    run_blocks,
)
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of MSN."""

    prototypes: int = setting(1024, "number of prototypes", within="[1, inf)")
    projector: tuple[int, ...] = setting((2048, 2048, 256), "widths of the projector's layers", within="[1, inf)")
    masked: float = setting(0.15, "share of the patches that large views of the student lose", within="[0, 1)")
    temperature: float = setting(0.1, "temperature of the similarities to the prototypes", within="(0, inf)")
    sharpening: float = setting(0.25, "temperature that sharpens the targets", within="(0, inf)")
    iterations: int = setting(3, "iterations of Sinkhorn-Knopp on the targets; 0: none", within="[0, inf)")
    entropy_weight: float = setting(
        1.0, "weight of the divergence of the mean prediction from the wanted shares", within="[0, inf)"
    )
    power_law: float = setting(
        0.0,
        "exponent t of the shares to which the mean prediction is pushed, k^-t of prototype k (PMSN); 0: equal shares",
        within="[0, inf)",
    )
    momentum: float = setting(0.996, "decay of the target network at the start of training", within="[0, 1]")
    final_momentum: float = setting(1.0, "decay at the end; linear in between", within="[0, 1]")


@in_float32
def msn_loss(
    anchors: Tensor,
    targets: Tensor,
    prototypes: Tensor,
    *,
    temperature: float = 0.1,
    sharpening: float = 0.25,
    iterations: int = 3,
    entropy_weight: float = 1.0,
    power_law: float = 0.0,
) -> Tensor:
    """Return equation 1: cross entropy of the anchors' predictions, plus the weighted divergence of their mean.

    The divergence is that from the shares k^-power_law. For equal ones it is minus the entropy of the mean.

    `anchors`: (V * B, d), view by view; not necessarily normalised, nor are the others; `targets`: (B, d), get no
    gradient; `prototypes`: (K, d).

    >>> round(float(msn_loss(torch.eye(2), torch.eye(2), torch.eye(2))), 4)  # log(1 + exp(-10)): both are sure
    0.0
    """
    # The mean is that over the anchors of all processes.
    prototypes = functional.normalize(prototypes, dim=1)
    logs = (functional.normalize(anchors, dim=1) @ prototypes.T / temperature).log_softmax(dim=1)
    with torch.no_grad():
        similarities = functional.normalize(targets, dim=1) @ prototypes.T / (temperature * sharpening)
        wanted = sinkhorn(similarities.log_softmax(dim=1), epsilon=1.0, iterations=iterations)
    loss = -(wanted.repeat(len(anchors) // len(targets), 1) * logs).sum(dim=1).mean()
    mean = mean_with_gradient(logs.exp().mean(dim=0))
    entropy: Tensor = -torch.special.xlogy(mean, mean).sum()
    if power_law == 0:
        return loss + entropy_weight * (math.log(len(prototypes)) - entropy)
    places = torch.arange(1, len(mean) + 1, device=mean.device, dtype=mean.dtype)
    log_shares = (-power_law * places.log()).log_softmax(dim=0)
    return loss - entropy_weight * (mean @ log_shares + entropy)


class Method(method.Method[Config]):
    """MSN on a vision transformer: the first view is the target, all others are anchors."""

    config_type = Config
    needs = Needs("msn", several_images=True)
    compiled_methods = ("_classes",)
    saved_head = "projector"
    copies = "target_"
    default_export = "teacher"  # evaluated by the authors
    backbone: VisionTransformer

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a vision transformer with a class token, two views of several images, and a share of patches."""
        need_class_token(need_vision_transformer(backbone, setup, method="msn"), setup, method="msn")
        if len(setup.sizes) < 2:
            raise UsageError(
                f"msn compares one view with others, the augmentation makes {len(setup.sizes)} in all",
                "Set augment=msn (published), or change the list augment.views.",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.large = setup.sizes[0]
        self.projector = mlp([setup.feature_dim, *config.projector], norm=True, activation=nn.GELU)
        initialise_linear(self.projector)
        bound = config.projector[-1] ** -0.5
        self.prototypes = nn.Parameter(torch.empty(config.prototypes, config.projector[-1]).uniform_(-bound, bound))
        self.target_backbone = copy_of(self.backbone)
        self.target_projector = copy_of(self.projector)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss of all anchors."""
        config = self.config
        with torch.no_grad():
            targets = self.target_projector(self._classes(self.target_backbone, batch.views[0]))

        # The target sees the first view; the anchors are all others, with patches left out of the large ones.
        anchors = torch.cat(encode(lambda views: self._projections(views, step), batch.views[1:]))
        value = msn_loss(
            anchors,
            targets,
            self.prototypes,
            temperature=config.temperature,
            sharpening=config.sharpening,
            iterations=config.iterations,
            entropy_weight=config.entropy_weight,
            power_law=config.power_law,
        )
        return Loss(value, targets.float())

    def _projections(self, views: Tensor, step: Step) -> Tensor:
        """Return the student's projections of views of one size; all large views of an update lose the same patches."""
        kept = None
        if views.shape[-1] == self.large and self.config.masked > 0:
            rows, columns = grid_of(self.backbone, self.large)
            order = torch.randperm(rows * columns, generator=update_generator(self.seed, step))
            kept = order[: max(int(len(order) * (1 - self.config.masked)), 1)].to(views.device, non_blocking=True)
        projected: Tensor = self.projector(self._classes(self.backbone, views, kept))
        return projected

    def _classes(self, vit: VisionTransformer, images: Tensor, patches: Tensor | None = None) -> Tensor:
        """Return the class tokens (B, D) of images of which some patches are seen, by default all."""
        tokens = embed(vit, images)
        if patches is not None:
            prefix = vit.num_prefix_tokens
            tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix:][:, patches]], dim=1)
        return run_blocks(vit, tokens)[:, 0]

    def after_update(self, step: Step) -> None:
        """Update the target network."""
        config = self.config
        momentum = config.momentum + (config.final_momentum - config.momentum) * step.where
        update_copies(self, momentum)
