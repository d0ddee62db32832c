"""BEiT v2: prediction of the codes of masked patches (Peng et al. 2022, arXiv 2208.06366).

A frozen tokenizer gives each patch of the view a code. The network sees the masked patches as a mask token and predicts
their codes. A shallow head predicts them too, from the last class token and the patches of an earlier block, so that
the class token has to describe the image (section 3.3).

Departures: plain vision transformers of timm with absolute positions, where the authors' have a bias of relative
positions that all blocks share.
"""

import copy
import dataclasses
import math
from typing import Any

import torch
from timm.layers.layer_scale import LayerScale
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sslbench.config import setting
from sslbench.data.decode.transforms import renormalise
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import cross_entropy, top1
from sslbench.methods._parts.masks import filled_masks_of, masked_rows, need_masked_count, take_rows
from sslbench.methods._parts.tokenizers import RandomTokenizer, Tokenizer, read_tokenizer
from sslbench.methods._parts.vision_transformers import embed, grid_of, need_plain_blocks, need_vision_transformer
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step

_RANDOM_CODES = 8192


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of BEiT v2."""

    tokenizer: str = setting(
        "",
        "file of the tokenizer (of vqkd, or of the authors); 'random' for random codes of pixels",
        required=True,
        by_content=True,
    )
    masked: float = setting(0.383, "share of masked patches, rounded down", within="(0, 1)")
    smallest_block: int = setting(16, "least area of a masked rectangle", unit="patches", within="[1, inf)")
    early_blocks: int = setting(
        9, "blocks after which the head of the class token takes its patches", within="[1, inf)"
    )
    head_blocks: int = setting(2, "blocks of the head of the class token; 0: none", within="[0, inf)")


class Method(method.Method[Config]):
    """BEiT v2 on views of one size, each a separate sample (the published augmentation makes one)."""

    config_type = Config
    compiled_methods = ("_tokens",)
    backbone: VisionTransformer

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a plain vision transformer for views of this size, and blocks for the head of the class token."""
        vit = need_vision_transformer(backbone, setup, method="beitv2", own_size=True)
        need_plain_blocks(vit, setup, method="beitv2")
        need_masked_count(config.masked, vit.patch_embed.num_patches, method="beitv2")
        if config.head_blocks and config.early_blocks + config.head_blocks > len(vit.blocks):
            raise UsageError(
                f"beitv2: early_blocks={config.early_blocks} and head_blocks={config.head_blocks} are more than the "
                f"{len(vit.blocks)} blocks of the backbone",
                "Set method.early_blocks (9 of 12 blocks, 21 of 24), or method.head_blocks=0.",
            )
        if config.head_blocks and vit.cls_token is None:
            raise UsageError(
                f"beitv2: {setup.backbone} has no class token, which the head of the class token needs",
                "Set method.head_blocks=0, or choose a network with one, such as timm:vit_base_patch16_224.",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        vit = self.backbone
        self.grid = grid_of(vit, setup.sizes[0])
        self.masked = int(config.masked * self.grid[0] * self.grid[1])
        self.normalisation = setup.normalisation
        self.tokenizer: Tokenizer = (
            RandomTokenizer(_RANDOM_CODES, vit.patch_embed.patch_size, setup)
            if config.tokenizer == "random"
            else read_tokenizer(config.tokenizer, vit, setup, method="beitv2")
        )
        self.mask_token = nn.Parameter(torch.empty(1, vit.embed_dim))
        self.classifier = nn.Linear(vit.embed_dim, len(self.tokenizer.codes))
        # Copies have the width, the LayerScale and the stochastic depth of the blocks that they continue.
        after = config.early_blocks + config.head_blocks
        self.class_blocks = (
            copy.deepcopy(vit.blocks[config.early_blocks : after]) if config.head_blocks else nn.Sequential()
        )
        for number, block in enumerate(self.class_blocks):
            initialise_block(block, config.early_blocks + number + 1)
        if not setup.loaded:
            for number, block in enumerate(vit.blocks):
                initialise_block(block, number + 1)
        for parameter in (self.mask_token, self.classifier.weight):
            nn.init.trunc_normal_(parameter, std=0.02, a=-0.02, b=0.02)
        nn.init.zeros_(self.classifier.bias)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the sum of the cross entropies of network and head."""
        config = self.config
        images = batch.images
        mask = filled_masks_of(batch, step, self.seed, self.grid, self.masked, smallest=config.smallest_block)
        rows = masked_rows(mask, images.device)
        codes = self.tokenizer(renormalise(images, self.normalisation, self.tokenizer.preprocessing))
        labels = codes.flatten().index_select(0, rows)
        tokens, of_head = self._tokens(images, mask.to(images.device, non_blocking=True))
        prefix = self.backbone.num_prefix_tokens
        logits = self.classifier(take_rows(tokens[:, prefix:], rows))
        value = cross_entropy(logits, labels)
        parts = {"accuracy": top1(logits, labels)}
        if of_head is not None:
            logits = self.classifier(take_rows(of_head[:, prefix:], rows))
            parts |= {"patch_loss": value.detach(), "head_accuracy": top1(logits, labels)}
            value = value + cross_entropy(logits, labels)
        return Loss(value, tokens[:, prefix:].mean(1).detach(), parts)

    def _tokens(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the normalised tokens (B, prefix + patches, D) of the network, and of the head if there is one."""
        vit, prefix = self.backbone, self.backbone.num_prefix_tokens
        early = last = vit.norm_pre(embed(vit, images, mask, self.mask_token))
        for number, block in enumerate(vit.blocks, 1):
            last = self._run(block, last)
            early = last if number == self.config.early_blocks else early
        if not len(self.class_blocks):
            return self._normed(last), None
        of_head = torch.cat([last[:, :prefix], early[:, prefix:]], dim=1)
        for block in self.class_blocks:
            of_head = self._run(block, of_head)
        return self._normed(last), self._normed(of_head)

    def _run(self, block: nn.Module, tokens: Tensor) -> Tensor:
        checkpointed = self.backbone.grad_checkpointing
        out: Tensor = checkpoint(block, tokens, use_reentrant=False) if checkpointed else block(tokens)
        return out

    def _normed(self, tokens: Tensor) -> Tensor:
        normed: Tensor = self.backbone.fc_norm(self.backbone.norm(tokens))
        return normed


@torch.no_grad()
def initialise_block(block: Any, number: int) -> None:
    """Initialise a block as the authors do; `number` counts from 1 and shrinks what its branches add."""
    for module in block.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02, a=-0.02, b=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm | LayerScale):
            module.reset_parameters()
    for linear in (block.attn.proj, block.mlp.fc2):
        linear.weight /= math.sqrt(2 * number)
