"""Tokenizers of images: a network that gives each patch the number of a code (BEiT v2, method vqkd)."""

import dataclasses
from collections.abc import Mapping
from typing import Self

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.load import load_file
from sslbench.errors import UsageError, WeightsError
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.memory import random_rows
from sslbench.methods._parts.vision_transformers import embed, grid_of, run_blocks
from sslbench.preprocessing import Preprocessing
from sslbench.train.method import Setup
from sslbench.weights.formats.places import largest
from sslbench.weights.reading import files
from sslbench.weights.reading.files import WeightsFile
from sslbench.weights.reading.model_config import ModelConfig

_CODES = "quantize.embedding.weight"  # in the authors' files
_HEAD_DIM = 64  # of the attention in their encoders
_RANDOM_DIM = 16


@in_float32
def nearest_codes(rows: Tensor, codes: Tensor) -> Tensor:
    """Return the number of the code nearest to each row by cosine: (..., d), (K, d) with rows of length 1 -> (...).

    >>> nearest_codes(torch.tensor([[0.1, 2.0], [3.0, 0.0]]), torch.eye(2)).tolist()
    [1, 0]
    """
    return (functional.normalize(rows, dim=-1) @ codes.T).argmax(-1)


class Tokenizer(nn.Module):
    """Frozen network that gives each patch of an image a code.

    Attributes:
        codes: (K, d), rows of length 1.
        preprocessing: normalisation of its images.
    """

    codes: Tensor

    def __init__(self, codes: Tensor, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing
        self.register_buffer("codes", functional.normalize(codes.float(), dim=1))

    def rows(self, images: Tensor) -> Tensor:
        """Return a row per patch, (B, patches, d), of images normalised for the tokenizer."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return the codes of the patches (B, patches), int64, of images normalised for the tokenizer."""
        return nearest_codes(self.rows(images), self.codes)


class RandomTokenizer(Tokenizer):
    """Random projection of pixels to random codes (Chiu et al. 2022, arXiv 2202.01855, section 3.1, for speech)."""

    projection: Tensor

    def __init__(self, codes: int, patch: tuple[int, int], setup: Setup) -> None:
        super().__init__(random_rows(codes, _RANDOM_DIM), setup.normalisation)
        self.patch = patch
        self.register_buffer("projection", torch.empty(_RANDOM_DIM, setup.channels, *patch))
        nn.init.xavier_uniform_(self.projection.view(_RANDOM_DIM, -1))

    def rows(self, images: Tensor) -> Tensor:
        """Return the projected pixels of each patch."""
        return functional.conv2d(images, self.projection.to(images.dtype), stride=self.patch).flatten(2).mT


class TrainedTokenizer(Tokenizer):
    """Encoder, projection of its patches, and codes, as trained by `vqkd` or by the authors of BEiT v2."""

    def __init__(
        self, encoder: VisionTransformer, projection: nn.Module, codes: Tensor, preprocessing: Preprocessing
    ) -> None:
        super().__init__(codes, preprocessing)
        self.encoder = encoder.requires_grad_(False)
        self.projection = projection.requires_grad_(False)
        self.eval()

    def rows(self, images: Tensor) -> Tensor:
        """Return the projected tokens of the patches."""
        tokens = run_blocks(self.encoder, embed(self.encoder, images))[:, self.encoder.num_prefix_tokens :]
        rows: Tensor = self.projection(tokens)
        return rows


def read_tokenizer(path: str, vit: VisionTransformer, setup: Setup, *, method: str) -> TrainedTokenizer:
    """Read a tokenizer for the patches of a network: a file of `vqkd`, or one that the authors of BEiT v2 published.

    Raises:
        UsageError: its patches are others than the network's.
        WeightsError: the file has no tokenizer.
    """
    file = files.read(path)
    tensors = largest(file.content).tensors
    found = _published(file, tensors) if _CODES in tensors else _own(file)
    size, wanted = found.encoder.patch_embed, grid_of(vit, setup.sizes[0])
    if tuple(size.img_size) != (setup.sizes[0],) * 2 or tuple(size.grid_size) != wanted:
        rows, columns = size.grid_size
        raise UsageError(
            f"{method}: the tokenizer {path} has {rows} x {columns} patches of images of {size.img_size[0]} pixels, "
            f"the backbone {wanted[0]} x {wanted[1]} of views of {setup.sizes[0]}",
            "Views and patches of both have to be the same.",
        )
    return found


def _own(file: WeightsFile) -> TrainedTokenizer:
    backbone = load_file(file, heads=True)
    predictor = [*backbone.heads.get("predictor", ())]
    is_codes = len(predictor) == 1 and isinstance(predictor[0], nn.Linear) and predictor[0].bias is None
    if not is_codes or "head" not in backbone.heads:
        raise WeightsError(
            f"{file.path} is no tokenizer",
            "It is a file of sslbench pretrain vqkd, or vqkd_encoder_base_decoder_3x768x12_clip of BEiT v2's authors.",
        )
    return _checked(file, backbone, backbone.heads["head"], predictor[0].weight, backbone.preprocessing)


def _published(file: WeightsFile, tensors: Mapping[str, Tensor]) -> TrainedTokenizer:
    """Return the tokenizer in a file of modeling_vqkd.py, whose encoder has biases of queries and values only."""
    start = "encoder."
    state = {key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)}
    for key in [key for key in state if key.endswith("attn.q_bias")]:
        query, value = state.pop(key), state.pop(key.replace("q_bias", "v_bias"), None)
        if value is None:
            raise WeightsError(f"{file.path} has {start}{key} without its v_bias")
        state[key.replace("q_bias", "qkv.bias")] = torch.cat([query, torch.zeros_like(query), value])
    token = state.get("cls_token")
    if token is None or token.ndim != 3 or not token.shape[2] or token.shape[2] % _HEAD_DIM:
        raise WeightsError(f"{file.path} has {_CODES}, but no {start}cls_token of a multiple of {_HEAD_DIM} numbers")
    heads = ModelConfig(fields={"num_attention_heads": token.shape[2] // _HEAD_DIM})
    backbone = load_file(dataclasses.replace(file, content=state, config=heads), format="timm")
    layers = []
    for name in ("encode_task_layer.0", "encode_task_layer.2"):
        weight, bias = (tensors.get(f"{name}.{leaf}") for leaf in ("weight", "bias"))
        if weight is None or bias is None or weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise WeightsError(f"{file.path} has {_CODES}, but not both layers of encode_task_layer")
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.load_state_dict({"weight": weight, "bias": bias})
        layers.append(linear)
    # Pixels from 0 to 255 become -1 to 1 there.
    scaling = dataclasses.replace(backbone.preprocessing, mean=(0.5,) * 3, std=(0.5,) * 3)
    projection = nn.Sequential(layers[0], nn.Tanh(), layers[1])
    return _checked(file, backbone, projection, tensors[_CODES], scaling)


def _checked(
    file: WeightsFile, backbone: Backbone, projection: nn.Sequential, codes: Tensor, preprocessing: Preprocessing
) -> TrainedTokenizer:
    """Return a tokenizer whose parts fit each other."""
    if not isinstance(backbone.module, VisionTransformer):
        raise WeightsError(f"{file.path} is no tokenizer: {backbone.name} is no plain vision transformer")
    linear = [layer for layer in projection if isinstance(layer, nn.Linear)]
    sizes = [backbone.module.embed_dim, *(size for each in linear for size in (each.in_features, each.out_features))]
    sizes.append(codes.shape[-1] if codes.ndim == 2 else -1)
    if sizes[::2] != sizes[1::2] or len(codes) < 2 or not bool(torch.isfinite(codes).all()):
        raise WeightsError(
            f"{file.path} is no tokenizer: encoder, projection and codes {tuple(codes.shape)} do not fit each other, "
            "or codes are no numbers"
        )
    return TrainedTokenizer(backbone.module, projection, codes, preprocessing)
