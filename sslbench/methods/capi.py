"""CAPI: prediction of the clusters of masked patches (Darcet et al., TMLR 2025, arXiv 2502.08769).

The student encodes the visible patches. A predictor reads their tokens by cross-attention and predicts the clusters of
a few masked patches. The teacher, its moving average, sees the whole image; its patches are clustered online, balanced
over the images at each position.

Departures from the authors' code: the encoder is a plain vision transformer of timm, with absolute positions, LayerNorm
and biases (there rotary positions and RMSNorm); the predictor is theirs, without stochastic depth. The clusters are
trained by the run's optimizer, with rates of their own in the recipe.
"""

import dataclasses
import math

import torch
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32, sinkhorn
from sslbench.methods._parts.masks import image_generators, inverse_block_masks, need_masked_count, take, view_by_view
from sslbench.methods._parts.momentum import copy_of, cosine_momentum, update_copies
from sslbench.methods._parts.self_distillation import UnitLinear
from sslbench.methods._parts.vision_transformers import (
    drop_samples,
    embed,
    give_blocks,
    keep_patches,
    need_no_other_drop_path,
    need_vision_transformer,
    run_blocks,
)
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of CAPI."""

    prototypes: int = setting(16384, "number of clusters", within="[2, inf)")
    masked: float = setting(0.65, "share of masked patches: all but a block", within="(0, 1)")
    predicted: float = setting(0.05, "share of the masked patches that are predicted, at least one", within="(0, 1]")
    predictor_depth: int = setting(12, "blocks of the predictor, as wide as the encoder", within="[1, inf)")
    predictor_heads: int = setting(16, "attention heads of the predictor", within="[1, inf)")
    student_temperature: float = setting(0.12, "temperature of the student's softmax", within="(0, inf)")
    teacher_temperature: float = setting(0.06, "temperature of the balanced assignments", within="(0, inf)")
    cluster_temperature: float = setting(0.12, "temperature in the loss of the clusters", within="(0, inf)")
    iterations: int = setting(3, "iterations of Sinkhorn-Knopp", within="[1, inf)")
    drop_path: float = setting(
        0.2, "share of the images of a batch that each residual branch of the encoder leaves out", within="[0, 1)"
    )
    momentum: float = setting(0.999, "decay of the teacher after its warm-up", within="[0, 1]")
    final_momentum: float = setting(1.0, "end of the half cosine of the decay", within="[0, 1]")
    momentum_stop: float = setting(0.8, "share of that half cosine that the run covers", within="(0, 1]")
    momentum_warmup: float = setting(
        0.1, "share of the run in which the decay falls from 1 to `momentum`", within="[0, 1)"
    )


@in_float32
def assignment_loss(logits: Tensor, assignments: Tensor, temperature: float) -> Tensor:
    """Return the mean cross entropy of soft assignments (..., K), without gradient, and logits (..., K).

    >>> round(float(assignment_loss(torch.zeros(1, 4), torch.full((1, 4), 0.25), 0.1)), 4)  # log(4)
    1.3863
    """
    return -(assignments * (logits / temperature).log_softmax(-1)).sum(-1).mean()


def edge_positions(count: int) -> Tensor:
    """Return points on the edge of the unit square at equal distances, from a corner: (count, 2).

    >>> edge_positions(4).tolist()
    [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    """
    side, along = torch.arange(count) * 4 // max(count, 1), torch.arange(count) * 4 / max(count, 1) % 1
    zero, one = torch.zeros(count), torch.ones(count)
    rows = torch.stack([along, one, 1 - along, zero])
    columns = torch.stack([zero, along, one, 1 - along])
    return torch.stack([each.gather(0, side[None])[0] for each in (rows, columns)], dim=1)


class CrossBlock(nn.Module):
    """Cross-attention with rotary positions, then a feed-forward network; layers have no bias."""

    frequencies: Tensor

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, per_axis = heads, width // heads // 4
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.query, self.project = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.mlp = Mlp(width, 4 * width, bias=False)
        # Keys and values are layers of their own in the authors' code.
        attention = (self.query.weight, self.project.weight, *self.key_value.weight.chunk(2))
        for weight in (*attention, self.mlp.fc1.weight, self.mlp.fc2.weight):
            nn.init.xavier_uniform_(weight)
        # From 7 waves over the image to 0.0007: the first half of a head's dimensions by rows, the second by columns.
        waves = 7 * 1e4 ** torch.linspace(0, -1, per_axis)
        empty = torch.zeros(2 * per_axis)
        rows, columns = torch.cat([waves, waves, empty]), torch.cat([empty, waves, waves])
        self.register_buffer("frequencies", 2 * math.pi * torch.stack([rows, columns]), persistent=False)

    def forward(self, x: Tensor, places: Tensor, context: Tensor, context_places: Tensor) -> Tensor:
        """Return tokens (B, m, D) after a look at the context.

        `x`: (B, m, D); `places`: (B, m, 2), rows and columns from 0 to 1; `context`: (B, n, D); `context_places`:
        (B, n, 2).
        """
        query = self.query(self.norm1(x)).unflatten(2, (self.heads, -1)).transpose(1, 2)
        keys_values = self.key_value(context).view(*context.shape[:2], 2, self.heads, -1)
        key, value = keys_values.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            self._placed(query, places), self._placed(key, context_places), value
        )
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out

    def _placed(self, x: Tensor, places: Tensor) -> Tensor:
        """Return (B, heads, n, d) turned by the positions (B, n, 2)."""
        angles = (places @ self.frequencies)[:, None]
        first, second = x.chunk(2, dim=-1)
        return (x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()).to(x.dtype)


class Predictor(nn.Module):
    """Predictor of masked patches from visible tokens: a mask token for each, which looks at them block by block."""

    def __init__(self, width: int, config: Config) -> None:
        super().__init__()
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        depth = config.predictor_depth
        self.blocks = nn.ModuleList(CrossBlock(width, config.predictor_heads) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=1e-5, elementwise_affine=False)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, token_places: Tensor, places: Tensor) -> Tensor:
        """Return the predictions (B, m, D) at places (B, m, 2) from tokens (B, n, D) at theirs (B, n, 2)."""
        x = self.mask_token.to(tokens.dtype).expand(*places.shape[:2], -1)
        for block in self.blocks:
            x = block(x, places, tokens, token_places)
        predicted: Tensor = self.norm(x)
        return predicted


class Method(method.Method[Config]):
    """CAPI on views of one size, each a separate sample (the published augmentation makes one)."""

    config_type = Config
    compiled_methods = ("_tokens",)
    copies = "teacher_"
    default_export = "teacher"  # evaluated by the authors
    block_methods = ("drop_samples",)
    backbone: VisionTransformer
    places: Tensor
    edges: Tensor

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a plain vision transformer for views of this size, and heads that fit its width."""
        vit = need_vision_transformer(backbone, setup, method="capi", own_size=True)
        need_masked_count(config.masked, vit.patch_embed.num_patches, method="capi")
        if vit.embed_dim % (4 * config.predictor_heads):
            raise UsageError(
                f"capi: the backbone's width of {vit.embed_dim} is no multiple of 4 x predictor_heads="
                f"{config.predictor_heads}, which rotary positions need",
                f"Set method.predictor_heads={math.gcd(vit.embed_dim // 4, config.predictor_heads)}.",
            )
        need_no_other_drop_path(vit, config.drop_path, method="capi")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        vit, width = self.backbone, self.backbone.embed_dim
        self.grid: tuple[int, int] = vit.patch_embed.grid_size
        self.masked = int(config.masked * vit.patch_embed.num_patches)
        give_blocks(vit, drop_samples)
        self.teacher_backbone = copy_of(vit)
        self.predictor = Predictor(width, config)
        self.prototypes = UnitLinear(width, config.prototypes, fixed_length=False)
        self.clusters = nn.Linear(width, config.prototypes)
        nn.init.normal_(self.clusters.weight)
        nn.init.zeros_(self.clusters.bias)
        axes = (torch.linspace(0, 1, side) for side in self.grid)
        self.register_buffer("places", torch.cartesian_prod(*axes)[None], persistent=False)
        self.register_buffer("edges", edge_positions(vit.num_prefix_tokens)[None], persistent=False)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the sum of the losses of the predicted patches and of the clusters."""
        config, prefix = self.config, self.backbone.num_prefix_tokens
        images = batch.images
        drawn = [self._draw(len(batch.views), generator) for generator in image_generators(self.seed, batch, step)]
        visible, wanted = (view_by_view(part).to(images.device, non_blocking=True) for part in zip(*drawn, strict=True))

        with torch.no_grad():
            teacher = self._tokens(self.teacher_backbone, images)[:, prefix:]
        logits = self.clusters(functional.normalize(teacher, dim=-1, eps=1e-7))  # (B, N, K)
        balance = in_float32(sinkhorn)
        assignments = balance(logits.detach(), epsilon=config.teacher_temperature, iterations=config.iterations)
        of_clusters = assignment_loss(logits, assignments, config.cluster_temperature)

        tokens = self._tokens(self.backbone, images, visible, config.drop_path)
        places = take(self.places.expand(len(images), -1, -1), visible)
        low, high = places.amin(1, keepdim=True), places.amax(1, keepdim=True)
        places = torch.cat([low + self.edges * (high - low), places], dim=1)
        predicted = self.predictor(tokens, places, take(self.places.expand(len(images), -1, -1), wanted))
        scores = self.prototypes(functional.normalize(predicted, dim=-1))
        of_patches = assignment_loss(scores, take(assignments, wanted), config.student_temperature)
        parts = {"patch_loss": of_patches.detach(), "cluster_loss": of_clusters.detach()}
        return Loss(of_patches + of_clusters, teacher.mean(1), parts)

    def _draw(self, views: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the indices of visible patches (views, n) and of the predicted ones (views, m)."""
        mask = inverse_block_masks(self.grid, [self.masked] * views, aspect=0.5, generator=generator)
        visible = (~mask).nonzero()[:, 1].view(views, -1)
        count = max(int(self.config.predicted * self.masked), 1)
        return visible, (torch.rand(mask.shape, generator=generator) + mask).topk(count, dim=1).indices

    def _tokens(
        self, vit: VisionTransformer, images: Tensor, patches: Tensor | None = None, drop_path: float = 0.0
    ) -> Tensor:
        """Return the normalised tokens of some patches (B, prefix + n, D), by default of all."""
        tokens = embed(vit, images)
        kept = tokens if patches is None else keep_patches(vit, tokens, patches)
        return run_blocks(vit, kept, drop_path=drop_path)

    def after_update(self, step: Step) -> None:
        """Update the teacher, which hardly moves at first."""
        config, warmup = self.config, self.config.momentum_warmup
        if step.where < warmup:
            momentum = 1 + (config.momentum - 1) * step.where / warmup
        else:
            progress = config.momentum_stop * (step.where - warmup) / (1 - warmup)
            momentum = cosine_momentum(config.momentum, config.final_momentum, progress)
        update_copies(self, momentum)
