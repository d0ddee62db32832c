"""Recognition of vision transformers by the names and shapes of their tensors."""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping
from typing import Literal

from sslbench.weights.reading.model_config import NO_CONFIG, ModelConfig

Shapes = Mapping[str, tuple[int, ...]]
Family = Literal["vit", "distilled", "deit3", "dinov2", "clip", "beit", "siglip", "aimv2", "dinov3", "pe"]

# All tensors of the supported kinds; hybrids and the like are not supported.
_KNOWN = re.compile(
    r"(?:cls_token|dist_token|reg_token|pos_embed|rel_pos_bias\.relative_position_bias_table|patch_embed\.proj\.\w+|"
    r"(?:patch_embed\.norm|norm_pre|norm|fc_norm)\.\w+|rope\.periods|"
    r"attn_pool\.(?:latent|(?:q|kv|proj|norm|mlp\.fc[12])\.\w+)|"
    r"blocks\.\d+\.(?:(?:norm[12]|attn\.qkv|attn\.proj|mlp\.fc(?:[12]|1_[gx]))\.\w+|ls[12]\.gamma|"
    r"gamma_[12]|attn\.(?:[qkv]_bias|bias_mask|relative_position_bias_table)))"
)
# timm's tag for a format's own weights, where its models have it.
_TAGS = {"dino": ".dino", "mae": ".mae", "openai_clip": ".openai"}


# (width, blocks, width inside the MLP) -> timm's word and the number of heads, which no tensor shows.
_SIZES: Mapping[tuple[int, int, int], tuple[str, int]] = {
    (192, 12, 768): ("tiny", 3),
    (384, 12, 1536): ("small", 6),
    (768, 12, 3072): ("base", 12),
    (1024, 24, 4096): ("large", 16),
    (1280, 32, 5120): ("huge", 16),
    (1408, 40, 6144): ("giant", 16),
    (1536, 40, 4096): ("giant", 24),  # DINOv2's, with SwiGLU
    (1664, 48, 8192): ("gigantic", 16),
}
_SIZES_OF: Mapping[str, Mapping[tuple[int, int, int], tuple[str, int]]] = {
    "siglip": {(1152, 27, 4304): ("so400m", 16), (1536, 40, 6144): ("giantopt", 16)},
    "aimv2": {
        (1024, 24, 2816): ("large", 8),
        (1536, 24, 4096): ("huge", 12),
        (2048, 24, 5632): ("1b", 16),
        (3072, 24, 8192): ("3b", 24),
    },
    "dinov3": {(1280, 32, 5120): ("huge", 20), (4096, 40, 8192): ("7b", 32)},
    "pe": {(1024, 23, 4096): ("large", 16), (1536, 47, 8960): ("gigantic", 16), (1536, 50, 8960): ("gigantic", 16)},
}
# Activations that the format says and no tensor shows.
_ACTIVATIONS = {
    "openai_clip": "quick_gelu",
    **dict.fromkeys(("huggingface_siglip", "huggingface_siglip2"), "gelu_tanh"),
}
# MoCo v3's ViT-S has twice the usual number of heads (Chen et al. 2021, section 5: 12 heads of 32).
_MOCO_V3_SMALL_HEADS = 12
# DINOv2 finishes its training at this size, and is evaluated at 224 (Oquab et al. 2023, section 7).
_DINOV2_TRAINED, _DINOV2_EVALUATED = 518, 224
# Side of the images that DINOv3 is evaluated with; its positions are computed for any size.
_DINOV3_EVALUATED = 224


@dataclasses.dataclass(frozen=True)
class ViT:
    """Architecture of a vision transformer.

    Attributes:
        name: name for `--backbone` ('timm:vit_small_patch14_dinov2,img_size=224').
        family: variant: 'clip' has a norm before the blocks, 'dinov2' LayerScale, 'beit' relative positions, 'dinov3'
            and 'pe' rotary ones, 'siglip' attention pooling, 'aimv2' RMSNorm and SwiGLU.
        size: timm's word for width, blocks and MLP; '' for other networks than the published ones.
        heads: of attention; no tensor shows them, except BEiT's. None if no configuration states them and no published
            network has this size.
        image: side in pixels of the images that the position embeddings are for.
        class_token: true if it has a class token.
        attention_pooling: true if the patches are pooled by attention.
        layer_scale: true if the branches are scaled.
        qkv_bias: true if queries, keys and values have a bias.
        swiglu: true if the MLP is gated.
        activation: of the MLP, in timm's words; '' is that of the family. OpenAI's CLIP has 'quick_gelu'.
        eps: of the norms; None is that of the family.
        theta: base of the rotary periods; None is that of the family.
        no_norm: true if there is no last norm (data2vec-vision, whose patches are averaged as they are).
        pooled_norm: true if the last norm comes after averaging the patches (fine-tuned MAE).
    """

    name: str
    family: Family
    size: str
    width: int
    depth: int
    heads: int | None
    patch: int
    image: int
    evaluated: int
    channels: int
    class_token: bool
    registers: int
    attention_pooling: bool
    layer_scale: bool
    qkv_bias: bool
    hidden: int
    swiglu: bool
    activation: str
    eps: float | None
    theta: float | None
    pooled_norm: bool
    no_norm: bool
    notes: tuple[str, ...] = ()

    @property
    def quick_gelu(self) -> bool:
        """True if the MLP has x * sigmoid(1.702 x) for GELU."""
        return self.activation == "quick_gelu"

    @property
    def pre_norm(self) -> bool:
        """True if there is a norm before the first block (CLIP, PE)."""
        return self.family in ("clip", "pe")

    def describe(self) -> str:
        """Return a description: 'ViT of 12 blocks, width 384, 6 heads, patch 14, LayerScale, trained at 518 pixels'."""
        heads = self.heads or "an unknown number of"
        parts = [f"ViT of {self.depth} blocks, width {self.width}, {heads} heads, patch {self.patch}"]
        parts += [f"{self.registers} registers"] if self.registers else []
        parts += ["LayerScale"] if self.layer_scale else []
        parts += ["SwiGLU"] if self.swiglu else []
        parts += ["QuickGELU"] if self.quick_gelu else []
        parts += ["norm before the blocks"] if self.pre_norm else []
        parts += ["relative positions"] if self.family == "beit" else []
        parts += ["rotary positions"] if self.family in ("dinov3", "pe") else []
        parts += ["attention pooling"] if self.attention_pooling else []
        parts += [] if self.class_token else ["no class token"]
        parts += [f"{self.channels} channels"] if self.channels != 3 else []
        return ", ".join([*parts, f"trained at {self.image} pixels"])


def recognise_vit(shapes: Shapes, *, format: str = "", config: ModelConfig = NO_CONFIG) -> ViT | None:
    """Return the vision transformer with these tensors, or None if it is not of timm's kinds.

    shapes: canonical name -> shape, without heads.
    """
    stem = shapes.get("patch_embed.proj.weight", ())
    fc1, fc2 = _any(shapes, "mlp.fc1.weight") or _any(shapes, "mlp.fc1_x.weight"), _any(shapes, "mlp.fc2.weight")
    depth = 1 + max((int(m[1]) for name in shapes if (m := re.match(r"blocks\.(\d+)\.", name))), default=-1)
    if not all(_KNOWN.fullmatch(name) for name in shapes):
        return None
    family = _family(shapes, format)
    image = _DINOV3_EVALUATED if family == "dinov3" else _image(shapes, config)
    if (
        family is None
        or len(stem) != 4
        or stem[2] != stem[3]
        or len(fc1) != 2
        or len(fc2) != 2
        or not depth
        or image is None
    ):
        return None
    width, hidden = stem[0], fc2[1]
    size, heads = {**_SIZES, **_SIZES_OF.get(family, {})}.get((width, depth, hidden), ("", None))
    if format == "moco_v3_vit" and size == "small":
        heads = _MOCO_V3_SMALL_HEADS
    swiglu = fc1[0] == 2 * fc2[1] or bool(_any(shapes, "mlp.fc1_g.weight"))
    # DINOv2's gate is SiLU in transformers too, whatever the configuration says.
    told = "" if swiglu and family == "dinov2" else config.activation
    activation = told or _ACTIVATIONS.get(format, "")
    notes = []
    if family == "clip" and not activation:
        notes.append("GELU is assumed; models that open_clip calls -quickgelu need timm's clip_quickgelu names")
    if family == "vit" and width == 384 and format in ("timm", "module", "mmpretrain_vit", "lightly_vit"):
        notes.append("6 heads are assumed as in DeiT, DINO and timm; MoCo v3's ViT-S has 12 (add ,num_heads=12)")
    trained_by_dinov2 = family == "dinov2" and image == _DINOV2_TRAINED
    vit = ViT(
        name="",
        family=family,
        width=width,
        depth=depth,
        size=size,
        heads=_told_heads(shapes, config) or heads,
        patch=stem[2],
        image=image,
        evaluated=_DINOV2_EVALUATED if trained_by_dinov2 else image,
        channels=stem[1],
        class_token="cls_token" in shapes,
        registers=shapes.get("reg_token", (1, 0))[1],
        attention_pooling="attn_pool.latent" in shapes,
        layer_scale=bool(_any(shapes, "ls1.gamma") or _any(shapes, "gamma_1")),
        qkv_bias=bool(_any(shapes, "attn.qkv.bias") or _any(shapes, "attn.q_bias")),
        hidden=hidden,
        swiglu=swiglu,
        activation=activation,
        eps=config.number("layer_norm_eps") or config.number("rms_norm_eps"),
        theta=config.number("rope_theta"),
        pooled_norm="fc_norm.weight" in shapes,
        no_norm=family == "beit" and not {"norm.weight", "fc_norm.weight"} & shapes.keys(),
        notes=tuple(notes),
    )
    return dataclasses.replace(vit, name=_name(vit, shapes, _TAGS.get(format, "")))


def check_config(vit: ViT, shapes: Shapes, config: ModelConfig, weights: str) -> None:
    """Refuse a configuration of another network than the one with these tensors, or of one that timm does not have.

    shapes: canonical name -> shape.
    """
    if config.heads and vit.width % config.heads:
        raise config.wrong("num_attention_heads", f"a divisor of the width, {vit.width}")
    ratio = config.number("mlp_ratio")
    gated = (int(vit.width * (ratio or 0)) * 2 // 3 + 7) // 8 * 8 if vit.swiglu else 0
    first = "blocks.0.attn."
    shown = {
        "model_type": _MODEL_TYPES.get(vit.family, frozenset()),
        "hidden_size": vit.width,
        "num_hidden_layers": vit.depth,
        "intermediate_size": vit.hidden if ratio is None else config.fields.get("intermediate_size"),
        "mlp_ratio": ratio if gated == vit.hidden else config.ratio(vit.width, vit.hidden),
        "num_channels": vit.channels,
        "patch_size": vit.patch,
        "image_size": config.fields.get("image_size") if vit.family == "dinov3" else vit.image,
        "num_patches": (vit.image // vit.patch) ** 2,
        "num_register_tokens": vit.registers,
        "qkv_bias": vit.qkv_bias,
        "query_bias": f"{first}q_bias" in shapes,
        "key_bias": f"{first}k_bias" in shapes,
        "value_bias": f"{first}v_bias" in shapes,
        "proj_bias": f"{first}proj.bias" in shapes,
        "mlp_bias": "blocks.0.mlp.fc2.bias" in shapes,
        "use_swiglu_ffn": vit.swiglu,
        "use_gated_mlp": vit.swiglu,
        "vision_use_head": vit.attention_pooling,
        "is_native": "pos_embed" not in shapes,
        "use_absolute_position_embeddings": "pos_embed" in shapes,
        "use_relative_position_bias": f"{first}relative_position_bias_table" in shapes,
        "use_shared_relative_position_bias": "rel_pos_bias.relative_position_bias_table" in shapes,
        "use_mean_pooling": vit.pooled_norm or vit.no_norm,
        "num_attention_heads": (_any(shapes, "relative_position_bias_table") or (0, config.heads))[1],
    }
    if config.fields.get("architectures") == ["BeitForMaskedImageModeling"]:
        del shown["use_mean_pooling"]  # it has its norm beside the encoder
    config.compare(shown, weights, vit.name)
    fixed = {"pool_type": "tok", "final_ln_after_pool": False}  # of open_clip
    if vit.activation and (gate := _FIXED_ACTIVATIONS.get(vit.family)):
        wanted = "silu" if vit.swiglu else gate
        fixed |= {} if vit.activation == wanted else {"hidden_act": wanted}
    config.require(fixed)


# Words of transformers for the networks of a family.
_MODEL_TYPES: Mapping[Family, frozenset[str]] = {
    "vit": frozenset(("vit", "deit", "vit_mae", "vit_msn", "ijepa")),
    "distilled": frozenset(("deit",)),
    "dinov2": frozenset(("dinov2", "dinov2_with_registers")),
    "clip": frozenset(("clip", "clip_vision_model")),
    "beit": frozenset(("beit", "data2vec-vision")),
    "siglip": frozenset(("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model")),
    "aimv2": frozenset(("aimv2", "aimv2_vision_model")),
    "dinov3": frozenset(("dinov3_vit",)),
}
# Activations of families whose networks take no other in timm; that of gates is SiLU.
_FIXED_ACTIVATIONS: Mapping[Family, str] = {"dinov3": "gelu", "beit": "gelu", "pe": "gelu"}


def _told_heads(shapes: Shapes, config: ModelConfig) -> int | None:
    """Return the number of heads that the configuration states or that a tensor shows; None for neither."""
    if config.heads:
        return config.heads
    if table := _any(shapes, "relative_position_bias_table"):
        return table[1]
    if periods := shapes.get("rope.periods"):
        return shapes["patch_embed.proj.weight"][0] // (4 * periods[0])
    return None


def _any(shapes: Shapes, end: str) -> tuple[int, ...]:
    """Return the shape of the first tensor whose name ends so; () if there is none."""
    return next((shape for name, shape in shapes.items() if name.endswith("." + end)), ())


def _family(shapes: Shapes, format: str) -> Family | None:
    """Return the kind of network; None for EVA's, whose rotary positions and activations differ from size to size."""
    pooling = "attn_pool.latent" in shapes
    if _any(shapes, "relative_position_bias_table"):
        return "beit"
    if "norm_pre.weight" in shapes:
        return "pe" if pooling or "norm.weight" not in shapes else "clip"
    if "patch_embed.norm.weight" in shapes:
        return "aimv2"
    if pooling:
        return "siglip"
    if "pos_embed" not in shapes and "cls_token" in shapes and ("reg_token" in shapes or "dinov3" in format):
        return "dinov3"
    if _any(shapes, "attn.q_bias") or _any(shapes, "mlp.fc1_g.weight"):
        return None
    if "dist_token" in shapes:
        return "distilled"
    if _any(shapes, "ls1.gamma"):
        count = shapes.get("pos_embed", (1, 0, 0))[1]
        return "deit3" if "reg_token" not in shapes and math.isqrt(count) ** 2 == count else "dinov2"
    return "vit"


def _image(shapes: Shapes, config: ModelConfig) -> int | None:
    """Return the side of the images in pixels from the position embeddings; None if their grid is not square.

    That of the configuration is taken if it has the same grid: SigLIP has 27 patches of 14 pixels for 384 pixels.
    """
    patch = shapes.get("patch_embed.proj.weight", (0,))[-1]
    if (positions := shapes.get("pos_embed", ())) and len(positions) == 3:
        prefix = sum(name in shapes for name in ("cls_token", "dist_token"))
        side = grid_side(positions[1], (0, prefix, prefix + shapes.get("reg_token", (1, 0))[1]))
        if side and (told := config.count("image_size")) and told // patch == side:
            return told
        return side * patch if side else None
    if not (table := _any(shapes, "relative_position_bias_table")):
        return None
    side = (math.isqrt(table[0] - 3) + 1) // 2  # BEiT: (2 side - 1)^2 distances, and 3 for the class token
    return side * patch if (2 * side - 1) ** 2 + 3 == table[0] else None


def grid_side(count: int, prefixes: tuple[int, ...]) -> int | None:
    """Return the side of the square grid of `count` embeddings less one of these numbers of prefix tokens, or None."""
    for prefix in prefixes:
        side = math.isqrt(max(count - prefix, 0))
        if side and side * side == count - prefix:
            return side
    return None


def _name(vit: ViT, shapes: Shapes, tag: str) -> str:
    """Return timm's name, followed by the options that differ from it."""
    base, says = _base(vit, tag)
    options: dict[str, object] = {}
    if not vit.size or says["size"] != vit.size:
        ratio = (2 if vit.swiglu and vit.family == "dinov2" else 1) * mlp_ratio(vit.hidden, vit.width)
        options |= {"embed_dim": vit.width, "depth": vit.depth, "num_heads": vit.heads, "mlp_ratio": ratio}
    elif vit.heads != {**_SIZES, **_SIZES_OF.get(vit.family, {})}[vit.width, vit.depth, vit.hidden][1]:
        options |= {"num_heads": vit.heads}
    if vit.heads is None:
        options["num_heads"] = UNKNOWN
    if says["patch"] != vit.patch:
        options["patch_size"] = vit.patch
    if says["image"] != vit.evaluated:
        options["img_size"] = vit.evaluated
    options |= _options_of_family(vit, shapes, says)
    if vit.channels != 3:
        options["in_chans"] = vit.channels
    if not vit.qkv_bias and vit.family not in ("dinov3", "aimv2"):
        options["qkv_bias"] = False
    if vit.activation and vit.family not in _FIXED_ACTIVATIONS and vit.activation != says.get("activation", "gelu"):
        options["act_layer"] = vit.activation
    if vit.eps not in (None, _EPS.get(vit.family, 1e-6)):
        options["norm_eps"] = vit.eps
    if not vit.class_token and vit.family in ("vit", "dinov2", "deit3"):
        options |= {"class_token": False, "global_pool": "avg", "fc_norm": vit.pooled_norm}
    return f"timm:{base}" + "".join(f",{key}={value}" for key, value in options.items())


# Of the norms in timm's networks of a family, where it is not 1e-6.
_EPS: Mapping[Family, float] = dict.fromkeys(("clip", "aimv2", "dinov3", "pe"), 1e-5)
_THETA = 100.0
# What stands in a name for a number of heads that nobody can know.
UNKNOWN = "NUMBER"


def _options_of_family(vit: ViT, shapes: Shapes, says: Mapping[str, object]) -> dict[str, object]:
    """Return the options for registers, positions, pooling and LayerScale."""
    options: dict[str, object] = {}
    if vit.family != "beit" and says.get("registers", 0) != vit.registers:
        options["num_reg_tokens" if vit.family == "dinov3" else "reg_tokens"] = vit.registers
    if vit.family in ("vit", "dinov2", "clip") and _of_patches_only(vit, shapes) != bool(says.get("registers")):
        options["no_embed_class"] = _of_patches_only(vit, shapes)
    if vit.family == "beit":
        per_block = "blocks.0.attn.relative_position_bias_table" in shapes
        options |= {"use_abs_pos_emb": "pos_embed" in shapes, "use_rel_pos_bias": per_block}
        options |= {
            "use_shared_rel_pos_bias": not per_block,
            "global_pool": "avg" if vit.pooled_norm or vit.no_norm else "token",
        }
        options |= {"final_norm": False} if vit.no_norm else {}
        options |= {"init_values": 0.1 if vit.layer_scale else None}
    elif vit.pooled_norm:
        options["global_pool"] = "avg"
    if vit.family == "dinov3":
        options |= {"global_pool": "token"} | ({} if vit.layer_scale else {"init_values": None})
        options |= {"swiglu_align_to": 1} if vit.swiglu and vit.size != "7b" and vit.hidden % 8 else {}
        options |= {} if vit.theta in (None, _THETA) else {"rope_temperature": vit.theta}
    if vit.family == "pe":
        options |= _options_of_pe(vit, says)
    return options


def _of_patches_only(vit: ViT, shapes: Shapes) -> bool:
    """Return whether only patches have position embeddings; one of DINOv2's class token is added to the token."""
    others = shapes.get("pos_embed", (1, 0))[1] - (vit.image // vit.patch) ** 2
    return others < vit.class_token + vit.registers if vit.registers else vit.class_token and not others


def _options_of_pe(vit: ViT, says: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a Perception Encoder; its rotary positions count from 1 behind a class token."""
    options: dict[str, object] = {}
    if vit.layer_scale != says["layer_scale"]:
        options["init_values"] = 0.1 if vit.layer_scale else None
    if vit.class_token != says["class_token"]:
        options |= {"class_token": vit.class_token, "rope_grid_offset": 1.0 if vit.class_token else 0.0}
    if says["image"] != vit.image or says["patch"] != vit.patch:
        options["ref_feat_shape"] = vit.image // vit.patch
    return options


def mlp_ratio(hidden: int, width: int) -> float:
    """Return a ratio that timm rounds down to the hidden width."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else (hidden + 0.5) / width


def _base(vit: ViT, tag: str) -> tuple[str, dict[str, object]]:
    """Return the nearest existing name of timm and the properties it implies."""
    import timm

    # Only DINOv2's giant has SwiGLU by default.
    sizes = (vit.size, "giant") if vit.swiglu and vit.family == "dinov2" else (vit.size, "small", "base", "large")
    # Its own patch and image first.
    nearest = [
        (vit.patch, vit.evaluated),
        *itertools.product((vit.patch, 16, 14, 32), (224, 256, 336, 384, 448, 512)),
    ]
    for size, (patch, image) in itertools.product(filter(None, sizes), nearest):
        registers = 4 if vit.registers else 0
        gated = "_plus" if vit.swiglu and size != "7b" else ""
        biased = "_qkvb" if vit.qkv_bias and size != "7b" else ""
        kind = "core" if vit.attention_pooling else "lang" if vit.layer_scale and vit.depth in (23, 47) else "spatial"
        name = {
            "vit": f"vit_{size}_patch{patch}_{image}",
            "distilled": f"deit_{size}_distilled_patch{patch}_{image}",
            "deit3": f"deit3_{size}_patch{patch}_{image}",
            "dinov2": f"vit_{size}_patch14{'_reg4' if registers else ''}_dinov2",
            "clip": f"vit_{size}_patch{patch}_clip{'_quickgelu' if vit.quick_gelu else ''}_{image}",
            "beit": f"beit_{size}_patch{patch}_{image}",
            "siglip": f"vit_{size}_patch{patch}_siglip_{image}",
            "aimv2": f"aimv2_{size}_patch{patch}_{image}",
            "dinov3": f"vit_{size}{gated}_patch16_dinov3{biased}",
            "pe": f"vit_pe_{kind}_{size}_patch{patch}_{image}",
        }[vit.family]
        if not timm.is_model(name):
            continue
        says: dict[str, object] = {"size": size, "patch": patch, "image": image}
        if vit.family == "dinov2":
            says |= {"patch": 14, "image": _DINOV2_TRAINED, "registers": registers}
        if vit.family == "dinov3":
            says |= {"patch": 16, "image": 256, "registers": 4}
        if vit.family == "pe":
            big = size == "gigantic"
            says |= {"class_token": not big, "layer_scale": kind == "lang" or (kind == "spatial" and big)}
        if vit.family in ("aimv2", "siglip"):
            says["activation"] = "silu" if vit.family == "aimv2" else ""  # SigLIP's differ from size to size
        if (vit.family == "clip" and vit.quick_gelu) or size == "giantopt":
            says["activation"] = "quick_gelu" if vit.quick_gelu else "gelu_tanh"
        return name + (tag if tag and name + tag in timm.list_pretrained(f"{name}*") else ""), says
    raise AssertionError(f"timm has no base model of the family {vit.family}")
