"""Text towers of networks of images and texts (CLIP, SigLIP), from the weights file of both towers.

The text tower is that of open_clip (files of OpenAI and of open_clip) or of transformers (folders of the Hugging Face
Hub), filled strictly. Tokenisers come with these libraries or lie in the folder. Nothing is downloaded.
"""

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sslbench.arrays import Matrix
from sslbench.errors import UsageError, WeightsError
from sslbench.weights.fill import fill, tensors_sha256
from sslbench.weights.reading import files
from sslbench.weights.reading.model_config import read_json

_TEXTS = 256  # encoded together
_EXTRA = "pip install 'sslbench[text]', or give embeddings of the texts: text_features=FILE."
_ELSEWHERE = "Encode the texts elsewhere, and give their embeddings: text_features=FILE."
_TOKENISERS = ("tokenizer.json", "vocab.json", "tokenizer.model", "spiece.model")
# These and the tokeniser change embeddings, and no tensor shows them.
_BESIDE = (
    *_TOKENISERS,
    "config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)
_COPY = f"Copy tokenizer.json and tokenizer_config.json of the model there. Or: {_ELSEWHERE}"
# Tensors of open_clip's text tower, behind the prefix.
_OF_TEXTS = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection", "cls_emb")
_VOCABULARY = 49408  # of the byte pairs of CLIP, the only ones that open_clip brings


@dataclasses.dataclass(frozen=True)
class TextTower:
    """Text tower, with the projection of the image tower in the same file.

    Attributes:
        title: file and number of its tensors, for notes.
        sha256: digest of tensors and structure of tower and projection, of configuration and tokeniser.
        projection: (W, D), from the output of the image tower to the space of the texts; None: it is that space.
        quick_gelu: activation of the image tower that belongs to it; None: its configuration says it.
        tokens: function from texts to the keyword arguments of `embeddings`.
        embeddings: function from tokens to (N, D).
        module: the tower.
    """

    title: str
    sha256: str
    projection: Matrix | None
    quick_gelu: bool | None
    tokens: Callable[[list[str]], Mapping[str, Tensor]]
    embeddings: Callable[..., Tensor]
    module: nn.Module

    @functools.cached_property
    def width(self) -> int:
        """Length of the embeddings."""
        return int(self.encode([""], "cpu").shape[1])

    def encode(self, texts: Sequence[str], device: str) -> Matrix:
        """Return the embeddings (N, D) of texts, float32."""
        self.module.to(device)
        found = []
        with torch.inference_mode():
            for start in range(0, len(texts), _TEXTS):
                tokens = self.tokens(list(texts[start : start + _TEXTS]))
                found.append(self.embeddings(**{name: each.to(device) for name, each in tokens.items()}).float().cpu())
        return np.asarray(torch.cat(found).numpy())


def read_text_tower(path: str) -> TextTower:
    """Return the text tower of a weights file, or of a folder of the Hugging Face Hub.

    Raises:
        WeightsError: the file has no text tower, one that neither library builds, or one with missing tensors.
        UsageError: the library of the tower is not installed.
    """
    place = Path(path)
    parts = sorted(place.iterdir()) if place.is_dir() else [place]
    return _read(path, tuple((part.name, part.stat().st_mtime_ns) for part in parts if part.exists()))


@functools.lru_cache(maxsize=1)
def _read(path: str, stamps: tuple[tuple[str, int], ...]) -> TextTower:
    """Return the tower of files that last changed at these times."""
    file = files.read(path)
    config = file.config.path
    tensors = {
        name.removeprefix("module."): tensor for name, tensor in _state(file.content).items() if tensor is not None
    }
    if config is not None and config.name == "config.json" and any(name.startswith("text_model.") for name in tensors):
        return _of_transformers(config.parent)
    prefix = next((prefix for prefix in ("", "text.") if f"{prefix}token_embedding.weight" in tensors), None)
    if prefix is None:
        if any(name.startswith("text_model.") for name in tensors):
            raise WeightsError(
                f"{path}: the text tower is of transformers, and no config.json is beside it",
                f"Give the folder of the model, with its tokeniser. Or: {_ELSEWHERE}",
            )
        raise WeightsError(f"{path} has no text tower: its network takes images only", _ELSEWHERE)
    model = read_json(config).get("model_cfg", {}) if config is not None else {}
    return _of_open_clip(path, tensors, prefix, model if isinstance(model, Mapping) else {})


def _state(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tensors of a file by their names, also those below `state_dict` or `model`."""
    inner = next((content[key] for key in ("state_dict", "model") if isinstance(content.get(key), Mapping)), content)
    return {str(name): value if isinstance(value, Tensor) else None for name, value in inner.items()}


def _of_open_clip(path: str, tensors: Mapping[str, Tensor], prefix: str, model: Mapping[str, Any]) -> TextTower:
    """Return the tower of OpenAI's or open_clip's tensors; of files without configuration, sizes are their shapes."""
    try:
        from open_clip import SimpleTokenizer
        from open_clip.transformer import QuickGELU, TextTransformer
    except ImportError as error:
        raise UsageError(f"{path}: its text tower needs the package open_clip_torch", _EXTRA) from error
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    own = {name: tensor.float() for name, tensor in own.items() if name.startswith(_OF_TEXTS)}
    given = model.get("text_cfg", {})
    options = {**_sizes(own, path), **(given if isinstance(given, Mapping) else {})}
    output = own.get("text_projection", own.get("text_projection.weight"))
    takes = inspect.signature(TextTransformer.__init__).parameters
    if other := [name for name in options if name not in takes or name == "act_layer"]:
        raise WeightsError(f"{path}: its text tower has {other[0]}={options[other[0]]}, which is not built", _ELSEWHERE)
    if options["vocab_size"] != _VOCABULARY:
        raise WeightsError(
            f"{path}: its tokeniser has {options['vocab_size']:,} tokens, and that of CLIP {_VOCABULARY:,}", _ELSEWHERE
        )
    # OpenAI's files alone name the sizes of their inputs, and have this activation.
    quick = bool(model.get("quick_gelu", "input_resolution" in tensors))
    width = None if output is None else output.shape[-1] if "text_projection" in own else output.shape[0]
    module = TextTransformer(output_dim=width, act_layer=QuickGELU if quick else nn.GELU, **options)
    fill(module, own, what=f"{path}: text tower", format="open_clip")
    module = module.eval().requires_grad_(False)
    tokenizer = SimpleTokenizer(context_length=options["context_length"])
    projection = tensors.get("visual.proj")
    return TextTower(
        title=f"the text tower of {path}, {len(own)} tensors",
        sha256=_digest(module, projection, repr(sorted(options.items())).encode()),
        projection=None if projection is None else np.asarray(projection.float().numpy()),
        quick_gelu=quick,
        tokens=lambda texts: {"text": tokenizer(texts)},
        embeddings=module,
        module=module,
    )


def _sizes(tensors: Mapping[str, Tensor], path: str) -> dict[str, Any]:
    """Return the sizes of a text tower as its tensors show them; heads are 64 wide, as in all models of CLIP."""
    positions = tensors.get("positional_embedding")
    if positions is None or positions.ndim != 2:
        raise WeightsError(f"{path}: its text tower has no positional_embedding (L, W)", "Copy the file again.")
    blocks = {name.split(".")[2] for name in tensors if name.startswith("transformer.resblocks.")}
    length, width = positions.shape
    return {
        "context_length": length,
        "width": width,
        "heads": max(1, width // 64),
        "layers": len(blocks),
        "vocab_size": len(tensors["token_embedding.weight"]),
    }


def _of_transformers(folder: Path) -> TextTower:
    """Return the tower of a folder of the Hugging Face Hub; its tokeniser lies there too."""
    try:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise UsageError(f"{folder}: its text tower needs the package transformers", _EXTRA) from error
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model, report = AutoModel.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, output_loading_info=True, dtype=torch.float32
        )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise WeightsError(f"{folder}: transformers cannot read the model: {_line(error)}", _ELSEWHERE) from error
    if missing := sorted(report["missing_keys"]):
        raise WeightsError(f"{folder} lacks {len(missing)} tensors, such as {missing[0]}", "Copy the folder again.")
    if not hasattr(model, "get_text_features"):
        raise WeightsError(f"{folder} has no text tower: its network is a {type(model).__name__}", _ELSEWHERE)
    # Without these files transformers makes a tokeniser of no words, and says nothing.
    if not any((folder / name).is_file() for name in _TOKENISERS):
        raise WeightsError(f"{folder} has no tokeniser: none of {', '.join(_TOKENISERS)}", _COPY)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise WeightsError(f"{folder} has no tokeniser that transformers reads: {_line(error)}", _COPY) from error
    model = model.eval().requires_grad_(False)
    length = model.config.text_config.max_position_embeddings
    # SigLIP was trained on texts that are all filled up to the full length, without a mask.
    filled = model.config.model_type.startswith("siglip")

    def tokens(texts: list[str]) -> Mapping[str, Tensor]:
        padding = "max_length" if filled else True
        try:
            found = tokenizer(texts, padding=padding, truncation=True, max_length=length, return_tensors="pt")
        except Exception as error:  # of a tokeniser that lacks its own marks: tokenizers raises nothing narrower
            raise WeightsError(f"{folder}: its tokeniser fails: {_line(error)}", _COPY) from error
        if (most := int(found["input_ids"].max())) >= model.config.text_config.vocab_size:
            raise WeightsError(
                f"{folder}: its tokeniser has the token {most:,}, and the text tower "
                f"{model.config.text_config.vocab_size:,} tokens",
                _COPY,
            )
        return {name: found[name] for name in (("input_ids",) if filled else ("input_ids", "attention_mask"))}

    def embeddings(**given: Tensor) -> Tensor:
        found = model.get_text_features(**given)
        return found if isinstance(found, Tensor) else found.pooler_output

    layer = getattr(model, "visual_projection", None)
    projection = None if layer is None else layer.weight.detach().T
    return TextTower(
        title=f"the text tower of {folder} ({type(model).__name__})",
        sha256=_digest(
            model, projection, *((folder / name).read_bytes() for name in _BESIDE if (folder / name).is_file())
        ),
        projection=None if projection is None else np.ascontiguousarray(projection.numpy()),
        quick_gelu=None,
        tokens=tokens,
        embeddings=embeddings,
        module=model,
    )


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__


def _digest(module: nn.Module, projection: Tensor | None, *facts: bytes) -> str:
    """Return a digest of a tower's tensors, of its structure, activations included, of the projection and of facts."""
    structure = [str(module).encode(), *(hashlib.sha256(fact).digest() for fact in facts)]
    tensors = {**module.state_dict(), "structure": torch.tensor(list(b"".join(structure)))}
    return tensors_sha256(tensors if projection is None else {**tensors, "projection": projection})[:32]
