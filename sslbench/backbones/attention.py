"""Attention of learnt queries to the tokens of a layer: the heads of attentive probes.

Keys and values are linear in the tokens, and the queries are the same for all images. So a head's scores are products
of the tokens with one vector per query and attention head, and its value is the projection of a weighted mean of
tokens. Keys and values of single tokens are never computed: for B images of N tokens of D features, Q queries and H
attention heads that saves 2 B N D numbers of memory and all but H Q / D of the products, exactly.

A bias of the keys adds the same number to the scores of all tokens, which a softmax cancels, so there is none.

Shapes: B images, N tokens, D features, Q queries, H attention heads of d = D / H features.
"""

import dataclasses
import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sslbench.config import setting
from sslbench.errors import UsageError

_STD = 0.02  # of initial queries and projections, in the code of CAPI and V-JEPA 2


class AttentivePool(nn.Module):
    """Outputs of the queries, averaged: (B, N, D) -> (B, D); the queries themselves are learnt.

    AIM (El-Nouby et al. 2024, arXiv 2401.08541), whose code has no bias, and CAPI (Darcet et al. 2025, arXiv
    2502.08769), whose code has one of keys and values.
    """

    def __init__(self, features: int, options: "Attention") -> None:
        super().__init__()
        self.heads = options.heads
        self.queries = nn.Parameter(torch.empty(options.queries, features))
        self.key = nn.Linear(features, features, bias=False)
        self.value = nn.Linear(features, features)

    def initialise(self) -> None:
        """Draw queries and projections; biases begin with 0."""
        nn.init.trunc_normal_(self.queries, std=_STD)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=_STD)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean output of the queries."""
        return self.attended(tokens, self.queries).mean(1)

    def attended(self, tokens: Tensor, queries: Tensor) -> Tensor:
        """Return what each query (Q, D) finds in the tokens, (B, Q, D)."""
        (number, width), heads = queries.shape, self.heads
        small = width // heads
        by_head = queries.view(number, heads, small) * small**-0.5
        probes = torch.einsum("qhd,hdw->qhw", by_head, self.key.weight.view(heads, small, width))
        shares = (tokens @ probes.flatten(0, 1).T).softmax(dim=1)
        means = (shares.transpose(1, 2) @ tokens).view(-1, number, heads, width)
        values = torch.einsum("bqhw,hdw->bqhd", means, self.value.weight.view(heads, small, width))
        found: Tensor = values.flatten(2) + self.value.bias
        return found


class MapPool(AttentivePool):
    """Multi-head attention pooling: projected queries, an output projection, and an MLP with a residual.

    The head of SigLIP (`MAPHead` of big_vision; Zhai et al. 2022, arXiv 2106.04560) and of Perception Encoder
    (`AttentionPooling` of its code; Bolya et al. 2025, arXiv 2504.13181).
    """

    eps: ClassVar[float] = 1e-6  # of flax; 1e-5 in Perception Encoder

    def __init__(self, features: int, options: "Attention") -> None:
        from timm.layers.mlp import Mlp

        super().__init__(features, options)
        self.query = nn.Linear(features, features)
        self.output = nn.Linear(features, features)
        self.norm = nn.LayerNorm(features, eps=self.eps)
        self.mlp = Mlp(features, int(features * options.mlp_ratio))

    def initialise(self) -> None:
        """Draw all of it as big_vision does."""
        nn.init.xavier_uniform_(self.queries)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean output of the queries."""
        found = self.output(self.attended(tokens, self.query(self.queries)))
        pooled: Tensor = (found + self.mlp(self.norm(found))).mean(1)
        return pooled


class BlockPool(AttentivePool):
    """Transformer block of the queries, with residuals, after blocks of self-attention over the tokens.

    V-JEPA 2 (`AttentivePooler` of its code; Assran et al. 2025, arXiv 2506.09985), with four blocks there.
    Each head has blocks of its own: activations are computed again on the way back, so that memory does not grow with
    the number of heads.
    """

    def __init__(self, features: int, options: "Attention") -> None:
        from timm.layers.mlp import Mlp
        from timm.models.vision_transformer import Block

        super().__init__(features, options)
        ratio, heads = options.mlp_ratio, options.heads
        self.blocks = nn.Sequential(
            *(Block(features, heads, ratio, qkv_bias=True, norm_layer=nn.LayerNorm) for _ in range(options.depth - 1))
        )
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.query = nn.Linear(features, features)
        self.mlp = Mlp(features, int(features * ratio))

    def initialise(self) -> None:
        """Draw all of it as V-JEPA 2 does: outputs of residual branches begin smaller, the deeper they are."""
        super().initialise()
        with torch.no_grad():
            for number, block in enumerate(self.blocks, start=1):
                for name in ("attn.proj.weight", "mlp.fc2.weight"):
                    block.get_parameter(name).div_(math.sqrt(2 * number))
            self.mlp.fc2.weight.div_(math.sqrt(2 * max(1, len(self.blocks))))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean output of the queries."""
        if torch.is_grad_enabled() and len(self.blocks):
            pooled: Tensor = checkpoint(self._forward, tokens, use_reentrant=False)
            return pooled
        return self._forward(tokens)

    def _forward(self, tokens: Tensor) -> Tensor:
        found = self.queries + self.attended(self.norm1(self.blocks(tokens)), self.query(self.queries))
        pooled: Tensor = (found + self.mlp(self.norm2(found))).mean(1)
        return pooled


POOLS = {"attentive": AttentivePool, "map": MapPool, "block": BlockPool}


@dataclasses.dataclass(frozen=True)
class Attention:
    """Structure of a head that attends to tokens; a weights file has it beside the tensors.

    Attributes:
        kind: key of `POOLS`.
    """

    kind: Literal["attentive", "map", "block"]
    queries: int = setting(1, "learnt queries", within="[1, 10000]")
    heads: int = setting(1, "attention heads", within="[1, 10000]")
    mlp_ratio: float = setting(4.0, "hidden features of the MLP, relative to the layer's", within="(0, 100]")
    depth: int = setting(1, "blocks", within="[1, 100]")

    def pool(self, features: int) -> AttentivePool:
        """Return a new pool for tokens of D features.

        Raises:
            UsageError: the attention heads do not divide the features.
        """
        if features % self.heads:
            fitting = [str(n) for n in range(1, features + 1) if features % n == 0 and features // n >= 8]
            raise UsageError(
                f"attention_heads={self.heads} do not divide the {features:,} features of the layer",
                f"Numbers that do: {', '.join(fitting) or '1'}.",
            )
        pool = POOLS[self.kind](features, self)
        pool.initialise()
        return pool


def default_heads(features: int) -> int:
    """Return the attention heads of a width: one per 64 features, or the next smaller number that divides it.

    >>> default_heads(768), default_heads(2048), default_heads(100), default_heads(12)
    (12, 32, 1, 1)
    """
    return next(n for n in range(max(1, features // 64), 0, -1) if features % n == 0)
