"""Recognition of vision transformers by the names and shapes of their tensors."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Literal

Shapes = Mapping[str, tuple[int, ...]]
Family = Literal["vit", "distilled", "deit3", "dinov2", "clip", "beit"]

# All tensors of the supported kinds; hybrids, rotary positions and the like are not supported.
_KNOWN = re.compile(
    r"(?:cls_token|dist_token|reg_token|pos_embed|rel_pos_bias\.relative_position_bias_table|patch_embed\.proj\.\w+|"
    r"(?:norm_pre|norm|fc_norm)\.\w+|blocks\.\d+\.(?:(?:norm[12]|attn\.qkv|attn\.proj|mlp\.fc[12])\.\w+|ls[12]\.gamma|"
    r"gamma_[12]|attn\.(?:q_bias|v_bias|relative_position_bias_table)))"
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
# MoCo v3's ViT-S has twice the usual number of heads (Chen et al. 2021, section 5: 12 heads of 32).
_MOCO_V3_SMALL_HEADS = 12
# DINOv2 finishes its training at this size, and is evaluated at 224 (Oquab et al. 2023, section 7).
_DINOV2_TRAINED, _DINOV2_EVALUATED = 518, 224


@dataclasses.dataclass(frozen=True)
class ViT:
    """Architecture of a vision transformer.

    Attributes:
        name: name for `--backbone` ('timm:vit_small_patch14_dinov2,img_size=224').
        family: variant: 'clip' has a norm before the blocks, 'dinov2' LayerScale, 'beit' relative positions.
        width: of a token.
        depth: number of blocks.
        heads: of attention; no tensor shows them, except BEiT's.
        heads_known: all published networks of this size have the same number of heads; else `heads` is a guess.
        patch: side of a patch in pixels.
        image: side in pixels of the images that the position embeddings are for.
        evaluated: side in pixels of the images that it is evaluated with.
        channels: of an image.
        class_token: whether there is one.
        registers: number of register tokens.
        layer_scale: whether the branches are scaled.
        qkv_bias: whether queries, keys and values have a bias.
        swiglu: whether the MLP is gated.
        quick_gelu: whether the MLP has x * sigmoid(1.702 x) for GELU (OpenAI's CLIP).
        pooled_norm: whether the last norm comes after averaging the patches (fine-tuned MAE).
        notes: assumptions that no tensor shows.
    """

    name: str
    family: Family
    width: int
    depth: int
    heads: int
    heads_known: bool
    patch: int
    image: int
    evaluated: int
    channels: int
    class_token: bool
    registers: int
    layer_scale: bool
    qkv_bias: bool
    swiglu: bool
    quick_gelu: bool
    pooled_norm: bool
    notes: tuple[str, ...] = ()

    @property
    def pre_norm(self) -> bool:
        """True if there is a norm before the first block (CLIP)."""
        return self.family == "clip"

    def describe(self) -> str:
        """Return a description: 'ViT of 12 blocks, width 384, 6 heads, patch 14, LayerScale, trained at 518 pixels'."""
        parts = [f"ViT of {self.depth} blocks, width {self.width}, {self.heads} heads, patch {self.patch}"]
        parts += [f"{self.registers} registers"] if self.registers else []
        parts += ["LayerScale"] if self.layer_scale else []
        parts += ["SwiGLU"] if self.swiglu else []
        parts += ["QuickGELU"] if self.quick_gelu else []
        parts += ["norm before the blocks"] if self.pre_norm else []
        parts += ["relative positions"] if self.family == "beit" else []
        parts += [] if self.class_token else ["no class token"]
        parts += [f"{self.channels} channels"] if self.channels != 3 else []
        return ", ".join([*parts, f"trained at {self.image} pixels"])


def recognise_vit(shapes: Shapes, *, format: str = "") -> ViT | None:  # the name of the command-line flag
    """Return the vision transformer with these tensors, or None if it is not of timm's kinds.

    Args:
        shapes: canonical name -> shape, without heads.
        format: format of the file, for facts that shapes do not show (heads of MoCo v3, QuickGELU of CLIP).
    """
    stem, fc1, fc2 = (
        shapes.get("patch_embed.proj.weight", ()),
        _any(shapes, "mlp.fc1.weight"),
        _any(shapes, "mlp.fc2.weight"),
    )
    depth = 1 + max((int(m[1]) for name in shapes if (m := re.match(r"blocks\.(\d+)\.", name))), default=-1)
    image = _image(shapes)
    if not all(_KNOWN.fullmatch(name) for name in shapes):
        return None
    if len(stem) != 4 or stem[2] != stem[3] or len(fc1) != 2 or len(fc2) != 2 or not depth or image is None:
        return None
    width, hidden, family = stem[0], fc2[1], _family(shapes)
    word, heads = _SIZES.get((width, depth, hidden), ("", 0))
    known = bool(word)
    if format == "moco_v3_vit" and word == "small":
        heads = _MOCO_V3_SMALL_HEADS
    if table := _any(shapes, "relative_position_bias_table"):
        heads, known = table[1], True
    if not heads:
        heads = max(1, width // 64)
    registers = shapes.get("reg_token", (1, 0))[1]
    trained_by_dinov2 = family == "dinov2" and image == _DINOV2_TRAINED
    vit = ViT(
        name="",
        family=family,
        width=width,
        depth=depth,
        heads=heads,
        heads_known=known,
        patch=stem[2],
        image=image,
        evaluated=_DINOV2_EVALUATED if trained_by_dinov2 else image,
        channels=stem[1],
        class_token="cls_token" in shapes,
        registers=registers,
        layer_scale=bool(_any(shapes, "ls1.gamma") or _any(shapes, "gamma_1")),
        qkv_bias=bool(_any(shapes, "attn.qkv.bias") or _any(shapes, "attn.q_bias")),
        swiglu=fc1[0] == 2 * fc2[1],
        quick_gelu=format == "openai_clip",
        pooled_norm="fc_norm.weight" in shapes,
        notes=tuple(_notes(family, width, format)),
    )
    return dataclasses.replace(vit, name=_name(vit, word, hidden, shapes, _TAGS.get(format, "")))


def _any(shapes: Shapes, end: str) -> tuple[int, ...]:
    """Return the shape of the first tensor whose name ends so; () if there is none."""
    return next((shape for name, shape in shapes.items() if name.endswith("." + end)), ())


def _family(shapes: Shapes) -> Family:
    if _any(shapes, "relative_position_bias_table"):
        return "beit"
    if "norm_pre.weight" in shapes:
        return "clip"
    if "dist_token" in shapes:
        return "distilled"
    if _any(shapes, "ls1.gamma"):
        count = shapes.get("pos_embed", (1, 0, 0))[1]
        return "deit3" if "reg_token" not in shapes and math.isqrt(count) ** 2 == count else "dinov2"
    return "vit"


def _image(shapes: Shapes) -> int | None:
    """Return the side of the images in pixels from the position embeddings; None if their grid is not square."""
    patch = shapes.get("patch_embed.proj.weight", (0,))[-1]
    if (positions := shapes.get("pos_embed", ())) and len(positions) == 3:
        prefix = sum(name in shapes for name in ("cls_token", "dist_token"))
        side = grid_side(positions[1], (0, prefix, prefix + shapes.get("reg_token", (1, 0))[1]))
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


def _notes(family: Family, width: int, format: str) -> list[str]:
    notes = []
    if family == "clip" and format == "open_clip":
        notes.append("GELU is assumed; models that open_clip calls -quickgelu need timm's clip_quickgelu names")
    if family == "vit" and width == 384 and format in ("timm", "module", "mmpretrain_vit", "lightly_vit"):
        notes.append("6 heads are assumed as in DeiT, DINO and timm; MoCo v3's ViT-S has 12 (add ,num_heads=12)")
    return notes


def _name(vit: ViT, word: str, hidden: int, shapes: Shapes, tag: str) -> str:
    """Return timm's name, followed by the options that differ from it."""
    base, says = _base(vit, word, tag)
    options: dict[str, object] = {}
    if not word or says["size"] != word:
        ratio = (2 if vit.swiglu else 1) * hidden / vit.width
        options |= {"embed_dim": vit.width, "depth": vit.depth, "num_heads": vit.heads, "mlp_ratio": ratio}
    elif vit.heads != _SIZES[vit.width, vit.depth, hidden][1]:
        options |= {"num_heads": vit.heads}
    if says["patch"] != vit.patch:
        options["patch_size"] = vit.patch
    if says["image"] != vit.evaluated:
        options["img_size"] = vit.evaluated
    if vit.family != "beit" and says.get("registers", 0) != vit.registers:
        options |= {"reg_tokens": vit.registers, "no_embed_class": True}
    if vit.family == "beit":
        per_block = "blocks.0.attn.relative_position_bias_table" in shapes
        options |= {"use_abs_pos_emb": "pos_embed" in shapes, "use_rel_pos_bias": per_block}
        options |= {"use_shared_rel_pos_bias": not per_block, "global_pool": "avg" if vit.pooled_norm else "token"}
        options |= {"init_values": 0.1 if vit.layer_scale else None}
    elif vit.pooled_norm:
        options["global_pool"] = "avg"
    if vit.channels != 3:
        options["in_chans"] = vit.channels
    if not vit.qkv_bias:
        options["qkv_bias"] = False
    if not vit.class_token and vit.family in ("vit", "dinov2", "deit3"):
        options |= {"class_token": False, "global_pool": "avg", "fc_norm": vit.pooled_norm}
    return f"timm:{base}" + "".join(f",{key}={value}" for key, value in options.items())


def _base(vit: ViT, word: str, tag: str) -> tuple[str, dict[str, object]]:
    """Return the nearest existing name of timm and the properties it implies."""
    import timm

    sizes = (word, "giant") if vit.swiglu else (word, "small", "base")  # only DINOv2's giant has SwiGLU by default
    for size, patch, image in ((w, p, i) for w in sizes if w for p, i in _nearest(vit)):
        registers = 4 if vit.registers else 0
        name = {
            "vit": f"vit_{size}_patch{patch}_{image}",
            "distilled": f"deit_{size}_distilled_patch{patch}_{image}",
            "deit3": f"deit3_{size}_patch{patch}_{image}",
            "dinov2": f"vit_{size}_patch14{'_reg4' if registers else ''}_dinov2",
            "clip": f"vit_{size}_patch{patch}_clip{'_quickgelu' if vit.quick_gelu else ''}_{image}",
            "beit": f"beit_{size}_patch{patch}_{image}",
        }[vit.family]
        if not timm.is_model(name):
            continue
        says: dict[str, object] = {"size": size, "patch": patch, "image": image}
        if vit.family == "dinov2":
            says |= {"patch": 14, "image": _DINOV2_TRAINED, "registers": registers}
        return name + (tag if tag and name + tag in timm.list_pretrained(f"{name}*") else ""), says
    raise AssertionError(f"timm has no base model of the family {vit.family}")


def _nearest(vit: ViT) -> list[tuple[int, int]]:
    """Return (patch, image) in the order in which names are tried: its own first."""
    return [(vit.patch, vit.evaluated), (vit.patch, 224), (16, 224), (14, 224), (32, 224)]
