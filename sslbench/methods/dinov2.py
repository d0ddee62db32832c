"""DINOv2 (Oquab et al. 2023, arXiv 2304.07193): DINO and iBOT with own heads, Sinkhorn centring and KoLeo.

The student sees large views with masked patches and small views; the teacher, its moving average, sees the large views.
Optionally DINOv3's Gram anchoring (Siméoni et al. 2025, arXiv 2508.10104, section 4): the similarities of a view's
patches stay close to those of an earlier network. Optionally Franca's nested heads (Venkataramanan et al. 2025, arXiv
2507.14137) on linear maps to parts of the dimension: as in its code, the maps see the whole dimension.

Departures from the authors' code: the MLP of timm's ViT-L in place of a SwiGLU. KoLeo is computed in each process, as
there, so its nearest neighbour depends on the number of processes. Frozen last layers get no update, instead of one at
a rate of 0. The patch projection has the rate of its layer (0.2 times that in the code), the mask token that of the
heads, and gradients are clipped together (there for backbone and heads separately). A moving centre is that of the
patches of all processes. The Gram teacher sees the large views at their own size (in DINOv3 at twice that) and is
replaced any number of times.
"""

import dataclasses
from typing import Any, Literal

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from sslbench.backbones.load import load_backbone
from sslbench.config import other_default, setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32, sinkhorn
from sslbench.methods._parts.masks import (
    block_masks,
    check_shares,
    inverse_block_masks,
    masked_rows,
    random_numbers,
    take_rows,
)
from sslbench.methods._parts.momentum import copy_of, cosine_momentum, update, update_copies
from sslbench.methods._parts.networks import encode, initialise_linear, mlp
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
    drop_samples,
    embed,
    give_blocks,
    grid_of,
    need_class_token,
    need_no_other_drop_path,
    need_vision_transformer,
    run_blocks,
)
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step, need_several_images


@dataclasses.dataclass(frozen=True)
class Config(MaskedTeacherSettings):
    """Settings of DINOv2."""

    prototypes: int = setting(131072, "output dimension of the head of class tokens", within="[1, inf)")
    bottleneck: int = other_default(MaskedTeacherSettings, "bottleneck", 384)
    patch_prototypes: int | None = setting(
        131072,
        "output dimension of the head of patches; null: patches and class tokens share a head",
        within="[1, inf)",
    )
    patch_bottleneck: int = setting(
        256, "dimension of the unit vectors before the last layer of the head of patches", within="[1, inf)"
    )
    nested: tuple[float, ...] = setting(
        (),
        "ascending shares of the dimension for nested heads, with prototypes in proportion (Franca); empty: one head",
        within="(0, 1]",
    )
    mask_shape: Literal["blocks", "inverse_block"] = setting(
        "blocks", "masks of rectangles, or of all but one rectangle, which wraps around the edges (CAPI, Franca)"
    )
    mask_probability: float = setting(0.5, "share of masked large views", within="(0, 1]")
    koleo_weight: float = setting(0.1, "weight of KoLeo, of each large view", within="[0, inf)")
    centering: Literal["sinkhorn", "center"] = setting(
        "sinkhorn", "balance of the targets: Sinkhorn-Knopp on the batch, or DINO's moving centre"
    )
    iterations: int = setting(3, "iterations of Sinkhorn-Knopp", within="[1, inf)")
    center_momentum: float = setting(0.9, "decay of both centres (centering=center)", within="[0, 1]")
    momentum: float = other_default(MaskedTeacherSettings, "momentum", 0.994)
    drop_path: float = setting(
        0.4, "share of the images of a batch that each residual branch of the student leaves out", within="[0, 1)"
    )
    gram_teacher: str | None = setting(None, "weights file of the network for Gram anchoring (DINOv3); null: none")
    gram_weight: float = setting(2.0, "weight of Gram anchoring", within="[0, inf)")
    gram_interval: int = setting(
        10000, "interval at which the teacher replaces the Gram teacher; 0: never", unit="updates", within="[0, inf)"
    )


@in_float32
def koleo(features: Tensor) -> Tensor:
    """Return the KoLeo regulariser: minus the mean logarithm of the distance to the nearest other row.

    Source: Sablayrolles et al. 2019, arXiv 1806.03198, eq. 2, on rows of length 1.

    `features`: (B, D), not necessarily normalised, at least two.

    >>> round(float(koleo(torch.eye(2))), 4)  # -log(sqrt(2))
    -0.3466
    """
    rows = functional.normalize(features, dim=1, eps=1e-8)
    with torch.no_grad():
        similarities = rows @ rows.T
        nearest = similarities.fill_diagonal_(-1).argmax(dim=1)
    return -(functional.pairwise_distance(rows, rows[nearest], eps=1e-8) + 1e-8).log().mean()


@in_float32
def gram_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return DINOv3's equation 2: mean squared difference of the cosines of all pairs of patches of a view.

    `student`: (V, N, D), patches of V views; `teacher`: (V, N, D'), without gradient.

    >>> x = torch.eye(2)[None]
    >>> float(gram_loss(x, x)), round(float(gram_loss(x, torch.ones(1, 2, 2))), 4)
    (0.0, 0.5)
    """
    ours, theirs = (functional.normalize(patches, dim=-1) for patches in (student, teacher))
    return functional.mse_loss(ours @ ours.mT, theirs @ theirs.mT)


def draw_masks(views: int, grid: tuple[int, int], config: Config) -> Tensor:
    """Return the masks (views, patches): a fixed share of the views, with shares of patches spread over the range."""
    numbers = random_numbers()
    patches, masked = grid[0] * grid[1], int(views * config.mask_probability)
    low, high = config.mask_ratio
    step = (high - low) / max(masked, 1)
    counts = [int(patches * numbers.uniform(low + i * step, low + (i + 1) * step)) for i in range(masked)]
    counts += [0] * (views - masked)
    numbers.shuffle(counts)
    if config.mask_shape == "inverse_block":
        return inverse_block_masks(grid, counts, aspect=0.3)
    return block_masks(grid, counts, smallest=4, largest=patches // 2)


class NestedHead(nn.Module):
    """Head of a part of the dimension: linear map, MLP and prototypes whose rows have a learnt length (Franca).

    Args:
        dim: dimension of the features.
        width: dimension after the linear map.
        config: widths of the hidden layers.
        bottleneck: dimension before the prototypes.
        prototypes: number of prototypes.
    """

    def __init__(self, dim: int, width: int, config: Config, bottleneck: int, prototypes: int) -> None:
        super().__init__()
        layers = mlp([width, *config.hidden, bottleneck], activation=nn.GELU)
        self.mlp = nn.Sequential(nn.Linear(dim, width), *layers, nn.GELU())
        initialise_linear(self.mlp)
        self.last_layer = UnitLinear(bottleneck, prototypes, fixed_length=False)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (n, prototypes) of features (n, dim), and the input of the prototypes (n, bottleneck)."""
        embeddings = self.mlp(features)
        return self.last_layer(embeddings), embeddings


class Method(method.Method[Config]):
    """DINOv2 on a vision transformer and any number of views, large ones first."""

    config_type = Config
    compiled_methods = ("_tokens",)
    copies = "teacher_"
    default_export = "teacher"  # evaluated by the authors
    block_methods = ("drop_samples",)
    backbone: VisionTransformer
    center: Tensor
    patch_center: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a vision transformer with a class token, and pairs of a teacher view and another view."""
        vit = need_vision_transformer(backbone, setup, method="dinov2")
        need_class_token(vit, setup, method="dinov2")
        need_teacher_views(setup, config.teacher_views, method="dinov2")
        check_shares(config.mask_ratio, method="dinov2")
        need_no_other_drop_path(vit, config.drop_path, method="dinov2")
        if config.nested and (
            list(config.nested) != sorted(set(config.nested)) or config.nested[0] * vit.embed_dim < 1
        ):
            raise UsageError(
                f"dinov2: method.nested={list(config.nested)} are no ascending shares of {vit.embed_dim} dimensions",
                "For instance method.nested=[0.25,0.5,1].",
            )
        if config.nested and config.centering == "center":
            raise UsageError(
                "dinov2: nested heads have no moving centre", "Set method.centering=sinkhorn or method.nested=[]."
            )
        if config.koleo_weight:
            need_several_images(setup, method="dinov2 with method.koleo_weight above 0")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        dim = setup.feature_dim
        self.grid = grid_of(self.backbone, setup.sizes[0])
        give_blocks(self.backbone, drop_samples)
        self.mask_token = nn.Parameter(torch.zeros(1, dim))
        self.head = _head(dim, config, config.bottleneck, config.prototypes)
        # Copied before training: teacher and student start with the same values.
        self.teacher_backbone = copy_of(self.backbone)
        self.teacher_head = copy_of(self.head)
        if config.patch_prototypes is not None:
            self.patch_head = _head(dim, config, config.patch_bottleneck, config.patch_prototypes)
            self.teacher_patch_head = copy_of(self.patch_head)
        if config.centering == "center":
            self.register_buffer("center", torch.zeros(config.prototypes))
            self.register_buffer("patch_center", torch.zeros(config.patch_prototypes or config.prototypes))
        self._logits, self._patch_logits = PendingLogits(), PendingLogits()
        if config.gram_teacher is not None:
            self.gram_backbone = copy_of(self.backbone)
            anchor = load_backbone(config.gram_teacher, backbone=setup.backbone).module
            self.gram_backbone.load_state_dict(anchor.state_dict())

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the weighted sum of the losses of class tokens, masked patches, KoLeo and Gram anchoring."""
        config, large = self.config, self.config.teacher_views
        images = torch.cat(batch.views[:large])
        mask = draw_masks(len(images), self.grid, config)
        rows = masked_rows(mask, images.device)
        classes, patches, embeddings = self._teacher(images, rows, step)

        prefix, rate = self.backbone.num_prefix_tokens, config.drop_path
        tokens = self._tokens(self.backbone, images, mask.to(images.device, non_blocking=True), rate)
        small = encode(lambda views: self._tokens(self.backbone, views, drop_path=rate)[:, 0], batch.views[large:])
        of_views, _ = self._outputs(self.head, torch.cat([tokens[:, 0], *small]))
        of_patches, _ = self._outputs(self._patch_heads()[0], take_rows(tokens[:, prefix:], rows))
        images_of_view, temperature = len(batch.views[0]), config.student_temperature
        class_losses = [
            dino_loss(*(x.view(-1, images_of_view, x.shape[1]) for x in pair), temperature=temperature)
            for pair in zip(of_views, classes, strict=True)
        ]
        patch_losses = [
            patch_loss(*pair, mask, temperature=temperature) for pair in zip(of_patches, patches, strict=True)
        ]
        # Losses of nested heads are summed.
        parts = {"class_loss": torch.stack(class_losses).sum(), "patch_loss": torch.stack(patch_losses).sum()}
        value = config.class_weight * parts["class_loss"] + config.patch_weight * parts["patch_loss"]
        if config.koleo_weight:
            # By view: two views of an image should not repel each other.
            parts["koleo"] = torch.stack([koleo(view) for view in tokens[:, 0].chunk(large)]).sum()
            value = value + config.koleo_weight * parts["koleo"]
        if config.gram_teacher is not None:
            with torch.no_grad():
                anchor = self._tokens(self.gram_backbone, images)
            parts["gram_loss"] = gram_loss(tokens[:, prefix:], anchor[:, prefix:])
            value = value + config.gram_weight * parts["gram_loss"]
        return Loss(value, embeddings[:images_of_view], {name: part.detach() for name, part in parts.items()})

    @torch.no_grad()
    def _teacher(self, images: Tensor, masked: Tensor, step: Step) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Return the probabilities of class tokens and masked patches by each head, and class embeddings.

        Returns (V * B, K) and (M, K) of each head, and (V * B, bottleneck).
        """
        tokens = self._tokens(self.teacher_backbone, images)
        classes, embeddings = self._outputs(self.teacher_head, tokens[:, 0])
        masked_tokens = take_rows(tokens[:, self.backbone.num_prefix_tokens :], masked)
        patches, _ = self._outputs(self._patch_heads()[1], masked_tokens)
        temperature = teacher_temperature(self.config, step)
        if self.config.centering == "sinkhorn":
            balance, iterations = in_float32(sinkhorn), self.config.iterations
            balanced = [
                [balance(each, epsilon=temperature, iterations=iterations) for each in logits]
                for logits in (classes, patches)
            ]
            return balanced[0], balanced[1], embeddings
        ((logits,), (patch_logits,)) = classes, patches
        self._logits.add(logits.to(self.center.dtype).sum(0), len(logits))
        self._patch_logits.add(patch_logits.to(self.center.dtype).sum(0), len(patch_logits))
        return (
            [teacher_probabilities(logits, self.center, temperature=temperature)],
            [teacher_probabilities(patch_logits, self.patch_center, temperature=temperature)],
            embeddings,
        )

    def _outputs(self, head: nn.Module, features: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the logits (n, K) of each nested head, or of the only one, and the widest head's embeddings."""
        outputs = [each(features) for each in self._levels(head)]
        return [logits for logits, _ in outputs], outputs[-1][1]

    def _levels(self, head: nn.Module) -> list[Any]:
        """Return the nested heads, from narrow to wide, or the only one."""
        return list(head.children()) if self.config.nested else [head]

    def heads(self, exported: str) -> dict[str, nn.Module]:
        """Return the head of class tokens without prototypes; of nested ones the widest."""
        head = self.teacher_head if exported == "teacher" else self.head
        return {"head": self._levels(head)[-1].mlp}

    def _patch_heads(self) -> tuple[nn.Module, nn.Module]:
        """Return the heads of patches of student and teacher."""
        if self.config.patch_prototypes is None:
            return self.head, self.teacher_head
        return self.patch_head, self.teacher_patch_head

    def _tokens(
        self, vit: VisionTransformer, images: Tensor, mask: Tensor | None = None, drop_path: float = 0.0
    ) -> Tensor:
        """Return the normalised tokens (B, prefix + patches, D)."""
        return run_blocks(vit, embed(vit, images, mask, self.mask_token), drop_path=drop_path)

    def before_update(self, step: Step) -> None:
        """Drop the gradients of the last layers while they are frozen."""
        if step.index < round(self.config.frozen_epochs * step.per_epoch):
            for head in self._levels(self.head) + self._levels(self._patch_heads()[0]):
                head.last_layer.zero_grad()

    def after_update(self, step: Step) -> None:
        """Update the centres, the teacher by the student, and at intervals the Gram teacher by the teacher."""
        config = self.config
        if config.centering == "center":
            self._logits.move(self.center, config.center_momentum)
            self._patch_logits.move(self.patch_center, config.center_momentum)
        update_copies(self, cosine_momentum(config.momentum, config.final_momentum, step.where))
        if config.gram_teacher is not None and config.gram_interval and (step.index + 1) % config.gram_interval == 0:
            update(self.gram_backbone, self.teacher_backbone, 0.0)


def _head(dim: int, config: Config, bottleneck: int, prototypes: int) -> nn.Module:
    """Return a head, or nested ones; the length of the last layer's rows is learnt, as in the authors' code."""
    if config.nested:
        widest = config.nested[-1]
        counts = [max(int(prototypes * share / widest), 1) for share in config.nested]
        widths = [int(dim * share) for share in config.nested]
        pairs = zip(widths, counts, strict=True)
        return nn.ModuleList(NestedHead(dim, width, config, bottleneck, count) for width, count in pairs)
    return DinoHead(
        dim, hidden=config.hidden, bottleneck=bottleneck, prototypes=prototypes, norm=False, fixed_length=False
    )


def teacher_temperature(config: Config, step: Step) -> float:
    """Return the teacher's temperature: linear by update over the warm-up, then constant."""
    length = round(config.temperature_epochs * step.per_epoch)
    first, last = config.first_teacher_temperature, config.teacher_temperature
    return warmed_up(first, last, position=step.index, length=length)
