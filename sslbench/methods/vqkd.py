"""VQ-KD: training of the tokenizer of BEiT v2 (Peng et al. 2022, arXiv 2208.06366, section 3.1).

The encoder's patches are projected and replaced by the nearest code. From the codes a decoder reproduces the teacher's
patches, by their cosine. Codes are moving averages of the rows that they replace. `pretrain beitv2` takes the weights.

Departures: plain vision transformers of timm; of a teacher with a text tower (CLIP) the tokens before their projection
into the space of texts.
"""

import dataclasses
from typing import Any, Self

import torch
from timm.layers.norm import LayerNorm
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from sslbench.backbones.load import load_backbone
from sslbench.config import setting
from sslbench.data.decode.transforms import renormalise
from sslbench.distributed.collectives import broadcast_, gather, sum_
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import in_float32, unit_length
from sslbench.methods._parts.memory import counts_of, random_rows, spherical_kmeans, sums_of
from sslbench.methods._parts.networks import initialise_linear
from sslbench.methods._parts.tokenizers import nearest_codes
from sslbench.methods._parts.vision_transformers import (
    embed,
    grid_of,
    need_plain_blocks,
    need_vision_transformer,
    run_blocks,
)
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of VQ-KD."""

    teacher: str = setting(
        "",
        "weights file of the teacher; 'random' for an untrained one (needs teacher_backbone)",
        required=True,
        by_content=True,
    )
    teacher_backbone: str | None = setting(None, "backbone of the teacher, where its file does not tell")
    codes: int = setting(8192, "number of codes", within="[2, inf)")
    code_dim: int = setting(32, "dimensions of a code", within="[1, inf)")
    decay: float = setting(0.99, "decay of the codes", within="[0, 1)")
    decoder_depth: int = setting(3, "blocks of the decoder, as wide as the encoder", within="[1, inf)")
    iterations: int = setting(
        10, "iterations of k-means on the first batch, from which the codes start", within="[0, inf)"
    )


@in_float32
def reproduction_loss(reproduced: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean of 1 - cosine over patches (eq. 2): (..., D), (..., D).

    >>> float(reproduction_loss(torch.eye(2), torch.tensor([[2.0, 0.0], [5.0, 0.0]])))
    0.5
    """
    return 1 - functional.cosine_similarity(reproduced, wanted, dim=-1).mean()


@in_float32
def commitment_loss(rows: Tensor, codes: Tensor) -> Tensor:
    """Return the mean squared error of rows, scaled to length 1, and their codes, without gradient of the codes.

    >>> float(commitment_loss(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1.0]])))
    1.0
    """
    return functional.mse_loss(functional.normalize(rows, dim=-1), codes.detach())


@in_float32
def moved_codes(codes: Tensor, sums: Tensor, counts: Tensor, decay: float) -> Tensor:
    """Return codes after a step towards the mean direction of their rows; codes without rows stay.

    `codes`: (K, d), rows of length 1; `sums`: (K, d), of the rows of each; `counts`: (K,).

    >>> moved_codes(torch.eye(2), torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([0.0, 3.0]), 0.0).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    means = torch.where(counts[:, None] > 0, functional.normalize(sums, dim=1), codes)
    return functional.normalize(decay * codes + (1 - decay) * means, dim=1)


class Decoder(nn.Module):
    """Transformer from the codes of patches to the teacher's patches."""

    def __init__(self, vit: VisionTransformer, config: Config, patches: int, wanted: int) -> None:
        super().__init__()
        first: Any = vit.blocks[0]
        width, heads = vit.embed_dim, first.attn.num_heads
        self.embed = nn.Linear(config.code_dim, width)
        self.positions = nn.Parameter(torch.empty(1, patches, width))
        blocks = (Block(width, heads, qkv_bias=True, norm_layer=LayerNorm) for _ in range(config.decoder_depth))
        self.blocks, self.norm = nn.Sequential(*blocks), LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, wanted))
        initialise_linear(self)
        nn.init.trunc_normal_(self.positions, std=0.02)

    def forward(self, codes: Tensor) -> Tensor:
        """Return the reproduced patches (B, N, D) of codes (B, N, d)."""
        reproduced: Tensor = self.head(self.norm(self.blocks(self.embed(codes) + self.positions)))
        return reproduced


class Method(method.Method[Config]):
    """Training of a tokenizer on views of one size, each a separate sample (the published augmentation makes one)."""

    config_type = Config
    compiled_methods = ("_patches",)
    saved_head, saved_predictor = "projector", "codebook"
    backbone: VisionTransformer

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a plain vision transformer for views of this size."""
        vit = need_vision_transformer(backbone, setup, method="vqkd", own_size=True)
        need_plain_blocks(vit, setup, method="vqkd")

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        vit, grid = self.backbone, grid_of(self.backbone, setup.sizes[0])
        teacher = load_backbone(config.teacher, backbone=config.teacher_backbone)
        named = dataclasses.replace(setup, backbone=f"the teacher {teacher.name}")
        self.teacher = need_vision_transformer(teacher.module, named, method="vqkd").requires_grad_(False).eval()
        size, wanted = self.teacher.patch_embed, setup.sizes[0]
        if tuple(size.img_size) != (wanted, wanted) or tuple(size.grid_size) != grid:
            raise UsageError(
                f"vqkd: the teacher {teacher.name} has {size.grid_size[0]} x {size.grid_size[1]} patches of images of "
                f"{size.img_size[0]} pixels, the backbone {grid[0]} x {grid[1]} of views of {wanted}",
                "Views and patches of both have to be the same.",
            )
        self._normalisations = setup.normalisation, teacher.preprocessing
        width = vit.embed_dim
        self.projector = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, config.code_dim))
        initialise_linear(self.projector)
        self.codebook = nn.Linear(config.code_dim, config.codes, bias=False)
        # A buffer, as parameters are sharded by strategy=fsdp, and every process moves all codes alike.
        del self.codebook.weight
        self.codebook.register_buffer("weight", random_rows(config.codes, config.code_dim))
        self.decoder = Decoder(vit, config, grid[0] * grid[1], self.teacher.embed_dim)
        self._sums: list[tuple[Tensor, Tensor]] = []

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the tokenizer; the teacher stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the sum of the losses of reproduced patches and of rows and their codes."""
        images = batch.images
        with torch.no_grad():
            wanted = self._patches(self.teacher, renormalise(images, *self._normalisations))
        tokens = self._patches(self.backbone, images)
        rows = unit_length(self.projector(tokens).flatten(0, 1))
        flat = rows.detach()
        if step.index == 0 and not self._sums:
            self._start(flat)
        numbers = nearest_codes(flat, self.codebook.weight)
        codes = self.codebook.weight[numbers]
        counts = counts_of(numbers, len(self.codebook.weight))
        self._sums.append((sums_of(flat, numbers, len(counts)), counts))
        # The gradient of a code is that of the row that it replaces.
        given = (rows + (codes - rows).detach()).view(*tokens.shape[:2], -1)
        of_patches = reproduction_loss(self.decoder(given), wanted)
        of_rows = commitment_loss(rows, codes)
        used = (sum_(counts.clone()) > 0).float().mean() * 100
        parts = {"reproduction": of_patches.detach(), "commitment": of_rows.detach(), "used_codes": used}
        return Loss(of_patches + of_rows, tokens.mean(1).detach(), parts)

    @torch.no_grad()
    def _start(self, rows: Tensor) -> None:
        """Start the codes from k-means of the rows of all processes."""
        rows, codes = gather(rows), self.codebook.weight
        chosen = torch.randperm(len(rows)) if len(rows) >= len(codes) else torch.randint(len(rows), (len(codes),))
        first = broadcast_(chosen[: len(codes)].to(rows.device))
        codes.copy_(spherical_kmeans(rows, rows[first], self.config.iterations)[0])

    def _patches(self, vit: VisionTransformer, images: Tensor) -> Tensor:
        """Return the normalised tokens of the patches (B, patches, D)."""
        return run_blocks(vit, embed(vit, images))[:, vit.num_prefix_tokens :]

    @torch.no_grad()
    def after_update(self, step: Step) -> None:
        """Move the codes towards the rows of all passes and processes."""
        sums, counts = (sum_(torch.stack(part).sum(0)) for part in zip(*self._sums, strict=True))
        self.codebook.weight.copy_(moved_codes(self.codebook.weight, sums, counts.float(), self.config.decay))
        self._sums.clear()
