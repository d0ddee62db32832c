"""iBOT: DINO on class tokens, and the same on masked patches (Zhou et al., ICLR 2022, arXiv 2111.07832).

The student sees large views with masked patches and small views without masks; the teacher, its moving average, sees
the large views as they are. Its class tokens and its masked patches are the targets.

Departures from the authors' code: the centre of the patches is the last layer of their mean embedding, which is the
mean of their logits; only masked patches go through the student's head, since no other one takes part in the loss.
"""

import dataclasses
from typing import Any, Literal

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.masks import (
    block_masks,
    check_shares,
    image_generators,
    masked_rows,
    random_masks,
    random_numbers,
    take_rows,
    view_by_view,
)
from sslbench.methods._parts.momentum import copy_of, cosine_momentum, update_copies
from sslbench.methods._parts.networks import encode
from sslbench.methods._parts.self_distillation import (
    DinoHead,
    MaskedTeacherSettings,
    PendingLogits,
    UnitLinear,
    dino_loss,
    need_teacher_views,
    patch_loss,
    teacher_probabilities,
    warmed_up,
)
from sslbench.methods._parts.vision_transformers import (
    embed,
    grid_of,
    need_class_token,
    need_vision_transformer,
    run_blocks,
)
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config(MaskedTeacherSettings):
    """Settings of iBOT."""

    prototypes: int = setting(8192, "output dimension K", within="[1, inf)")
    patch_prototypes: int | None = setting(
        None,
        "output dimension of a last layer for patches; null: patches and class tokens share the last layer",
        within="[1, inf)",
    )
    normalize_last_layer: bool = setting(True, "fix the length of the last layer's rows at 1 (otherwise it is learnt)")
    mask_probability: float = setting(0.5, "probability that a large view is masked", within="(0, 1]")
    mask_shape: Literal["blocks", "random"] = setting("blocks", "masks of rectangles, or of single patches")
    patch_temperature: float = setting(
        0.07, "temperature of the teacher's softmax of patches after the warm-up", within="(0, inf)"
    )
    first_patch_temperature: float = setting(
        0.04, "temperature of the teacher's softmax of patches at the start", within="(0, inf)"
    )
    center_momentum: float = setting(0.9, "decay of both centres", within="[0, 1]")


def draw_masks(views: int, grid: tuple[int, int], config: Config, generator: torch.Generator | None = None) -> Tensor:
    """Return the masks (views, patches) of section 3.2: each view is masked by chance, by a share drawn at random."""
    numbers = random_numbers(generator)
    patches = grid[0] * grid[1]
    shares = [
        numbers.uniform(*config.mask_ratio) if numbers.random() < config.mask_probability else 0.0 for _ in range(views)
    ]
    if config.mask_shape == "random":
        return random_masks(patches, [int(share * patches) for share in shares], generator)
    smallest = (min(grid) // 3) ** 2
    counts = [share * patches for share in shares]
    return block_masks(grid, counts, smallest=smallest, largest=patches, generator=generator)


@in_float32
def mean_logits(embeddings: Tensor, last_layer: nn.Module) -> Tensor:
    """Return the mean logits (K,) of embeddings (V, N, d): those of their mean, since the last layer is linear."""
    mean: Tensor = last_layer(embeddings.mean((0, 1))[None])[0]
    return mean


class Method(method.Method[Config]):
    """iBOT on a vision transformer and any number of views, large ones first."""

    config_type = Config
    saved_head = "head.mlp"  # without the prototypes
    copies = "teacher_"
    default_export = "teacher"  # evaluated by the authors
    backbone: VisionTransformer
    center: Tensor
    patch_center: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a vision transformer with a class token, and pairs of a teacher view and another view."""
        need_class_token(need_vision_transformer(backbone, setup, method="ibot"), setup, method="ibot")
        need_teacher_views(setup, config.teacher_views, method="ibot")
        check_shares(config.mask_ratio, method="ibot")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        dim, fixed = setup.feature_dim, config.normalize_last_layer
        self.grid = grid_of(self.backbone, setup.sizes[0])
        self.mask_token = nn.Parameter(torch.zeros(1, dim))
        self.head = DinoHead(
            dim,
            hidden=config.hidden,
            bottleneck=config.bottleneck,
            prototypes=config.prototypes,
            norm=False,
            fixed_length=fixed,
        )
        if config.patch_prototypes is not None:
            self.patch_layer = UnitLinear(config.bottleneck, config.patch_prototypes, fixed_length=fixed)
            self.teacher_patch_layer = copy_of(self.patch_layer)
        self.teacher_backbone = copy_of(self.backbone)
        self.teacher_head = copy_of(self.head)
        self.register_buffer("center", torch.zeros(config.prototypes))
        self.register_buffer("patch_center", torch.zeros(config.patch_prototypes or config.prototypes))
        self._logits, self._patch_logits = PendingLogits(), PendingLogits()

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the weighted sum of both losses, with the centres before this update."""
        config, large = self.config, self.config.teacher_views
        images = torch.cat(batch.views[:large])
        drawn = [draw_masks(large, self.grid, config, each) for each in image_generators(self.seed, batch, step)]
        mask = view_by_view(drawn)
        rows = masked_rows(mask, images.device)
        classes, patches = self._teacher(images, rows, step)

        tokens = self._tokens(self.backbone, images, mask.to(images.device, non_blocking=True))
        small = encode(lambda views: self._tokens(self.backbone, views)[:, 0], batch.views[large:])
        embeddings = self._embeddings(self.head, torch.cat([tokens[:, 0], *small]))
        logits = self.head.last_layer(embeddings)
        masked = self._embeddings(self.head, take_rows(tokens[:, self.backbone.num_prefix_tokens :], rows))
        patch_layer = self.head.last_layer if config.patch_prototypes is None else self.patch_layer
        shape = (len(batch.views[0]), config.prototypes)
        of_classes = dino_loss(
            logits.view(-1, *shape), classes.view(-1, *shape), temperature=config.student_temperature
        )
        of_patches = patch_loss(patch_layer(masked), patches, mask, temperature=config.student_temperature)
        value = config.class_weight * of_classes + config.patch_weight * of_patches
        parts = {"class_loss": of_classes.detach(), "patch_loss": of_patches.detach()}
        return Loss(value, embeddings[: shape[0]].detach(), parts)

    @torch.no_grad()
    def _teacher(self, images: Tensor, masked: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Return the probabilities of class tokens (V * B, K) and masked patches (M, K), and note their logits."""
        head, config = self.teacher_head, self.config
        patch_layer = head.last_layer if config.patch_prototypes is None else self.teacher_patch_layer
        tokens = self._tokens(self.teacher_backbone, images)
        classes = head.last_layer(self._embeddings(head, tokens[:, 0]))
        patches = self._embeddings(head, tokens[:, self.teacher_backbone.num_prefix_tokens :])
        rows = patches.shape[0] * patches.shape[1]
        # The centre follows all patches, but only logits of masked ones are computed.
        mean = mean_logits(patches, patch_layer)
        self._logits.add(classes.to(mean.dtype).sum(0), len(classes))
        self._patch_logits.add(mean * rows, rows)
        class_temperature, patch_temperature = teacher_temperatures(config, step)
        return (
            teacher_probabilities(classes, self.center, temperature=class_temperature),
            teacher_probabilities(
                patch_layer(take_rows(patches, masked)), self.patch_center, temperature=patch_temperature
            ),
        )

    def _tokens(self, vit: VisionTransformer, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the normalised tokens (B, prefix + patches, D)."""
        return run_blocks(vit, embed(vit, images, mask, self.mask_token))

    def _embeddings(self, head: DinoHead, features: Tensor) -> Tensor:
        """Return the unit vectors before the last layer."""
        return functional.normalize(head.mlp(features), dim=-1)

    def compile_networks(self, **options: Any) -> None:
        """Compile the networks in the parts in which the loss calls them."""
        self._tokens = torch.compile(self._tokens, **options)  # type: ignore[method-assign]
        for head in (self.head, self.teacher_head):
            head.mlp.compile(**options)
            head.last_layer.compile(**options)
        if self.config.patch_prototypes is not None:
            self.patch_layer.compile(**options)
            self.teacher_patch_layer.compile(**options)

    def before_update(self, step: Step) -> None:
        """Drop the gradients of the last layers while they are frozen."""
        if step.index < round(self.config.frozen_epochs * step.per_epoch):
            self.head.last_layer.zero_grad()
            if self.config.patch_prototypes is not None:
                self.patch_layer.zero_grad()

    def after_update(self, step: Step) -> None:
        """Update the centres by the logits of this update, and the teacher by the student."""
        config = self.config
        self._logits.move(self.center, config.center_momentum)
        self._patch_logits.move(self.patch_center, config.center_momentum)
        update_copies(self, cosine_momentum(config.momentum, config.final_momentum, step.where))


def teacher_temperatures(config: Config, step: Step) -> tuple[float, float]:
    """Return the teacher's temperatures of class tokens and patches: linear by epoch in the warm-up, then constant."""
    # The last epoch of the warm-up has the final temperatures already.
    length = round(config.temperature_epochs)
    return (
        warmed_up(config.first_teacher_temperature, config.teacher_temperature, position=step.epoch, length=length),
        warmed_up(config.first_patch_temperature, config.patch_temperature, position=step.epoch, length=length),
    )
