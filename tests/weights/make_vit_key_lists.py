"""Writes keys/*.txt of the formats of vision transformers; see make_key_lists.py. Foreign names are spelt out here.

Run it from the repository's root: `python tests/weights/make_vit_key_lists.py`.
"""

import re
from collections.abc import Callable

import torch
from make_key_lists import Entries, network, prefixed, write

Rename = Callable[[str], str | None]


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def vit(name: str, **options: object) -> Entries:
    return network(f"timm:{name}", num_classes=0, **options)


def renamed(entries: Entries, names: dict[str, str]) -> Entries:
    """Names with {i} stand for every block; a name that is not listed is an error."""
    found = {}
    for key, tensor in entries.items():
        parts = re.fullmatch(r"blocks\.(\d+)\.(.+)", key)
        found[names["*" + parts[2]].replace("{i}", parts[1]) if parts else names[key]] = tensor
    return found


def dino_head(prefix: str, width: int, out: int, *, second: bool = False) -> Entries:
    head = {"mlp.0.weight": empty(2048, width), "mlp.0.bias": empty(2048)}
    head |= {"mlp.2.weight": empty(2048, 2048), "mlp.2.bias": empty(2048)}
    head |= {"mlp.4.weight": empty(256, 2048), "mlp.4.bias": empty(256)}
    for layer in ("last_layer", *(("last_layer2",) if second else ())):
        head |= {f"{layer}.weight_g": empty(out, 1), f"{layer}.weight_v": empty(out, 256)}
    return prefixed(prefix, head)


def dino() -> None:
    small = vit("vit_small_patch16_224")
    resnet = {key: tensor for key, tensor in network("resnet50").items() if not key.startswith("fc.")}
    head = dino_head("head.", 384, 65536)
    write("dino", "teacher", prefixed("backbone.", small) | head)
    write("dino.vitb8", "teacher", prefixed("backbone.", vit("vit_base_patch8_224")) | dino_head("head.", 768, 65536))
    write("dino.resnet50", "teacher", prefixed("module.", prefixed("backbone.", resnet) | head))
    write("dino.student", "student", prefixed("module.", prefixed("backbone.", small) | head))
    both = dino_head("head.", 384, 8192, second=True)
    write("ibot", "teacher", prefixed("backbone.", small) | both)
    masked = {"backbone.masked_embed": empty(1, 384)}
    write("ibot.student", "student", prefixed("module.", prefixed("backbone.", small) | masked | both))
    write("ibot.backbone", "state_dict", small | {"masked_embed": empty(1, 384)})
    write("timm.dino_hub", "", small)


def dinov2_names(entries: Entries, *, chunks: int = 0) -> Entries:
    """As DINOv2 has them: a position for the class token also with registers, SwiGLU as w12 and w3."""
    depth = 1 + max(int(key.split(".")[1]) for key in entries if key.startswith("blocks."))
    found = {"mask_token": empty(1, entries["cls_token"].shape[-1])}
    for key, tensor in entries.items():
        swiglu = "blocks.0.mlp.fc1.weight" in entries and entries["blocks.0.mlp.fc1.weight"].shape[0] == 8192
        key = key.replace("reg_token", "register_tokens")
        if key == "pos_embed" and "reg_token" in entries:
            tensor = empty(1, tensor.shape[1] + 1, tensor.shape[2])
        if swiglu:
            key = key.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3")
        if chunks and (block := re.fullmatch(r"blocks\.(\d+)\.(.+)", key)):
            key = f"blocks.{int(block[1]) // (depth // chunks)}.{block[1]}.{block[2]}"
        found[key] = tensor
    return found


def dinov2() -> None:
    write("dinov2", "", dinov2_names(vit("vit_small_patch14_dinov2")))
    write("dinov2.registers", "", dinov2_names(vit("vit_base_patch14_reg4_dinov2")))
    heads = dino_head("dino_head.", 1024, 131072) | dino_head("ibot_head.", 1024, 131072)
    large = vit("vit_large_patch14_dinov2", patch_size=16, img_size=224)
    write("dinov2.training", "teacher", prefixed("backbone.", dinov2_names(large)) | heads)
    write("dinov2_swiglu", "", dinov2_names(vit("vit_giant_patch14_dinov2")))
    write("dinov2_swiglu.registers", "", dinov2_names(vit("vit_giant_patch14_reg4_dinov2")))
    write("dinov2_chunked24", "teacher", prefixed("backbone.", dinov2_names(large, chunks=4)) | heads)
    small = dinov2_names(vit("vit_small_patch14_dinov2", img_size=224), chunks=4)
    write("dinov2_chunked12", "teacher", prefixed("backbone.", small) | dino_head("dino_head.", 384, 65536))
    giant = dinov2_names(vit("vit_giant_patch14_reg4_dinov2", img_size=224), chunks=4)
    write("dinov2_chunked40", "teacher", prefixed("backbone.", giant) | dino_head("dino_head.", 1536, 131072))


def moco_v3() -> None:
    small = vit("vit_small_patch16_224", num_heads=12)
    mlp: Entries = {"head.0.weight": empty(4096, 384)}
    for index, width in ((1, 4096), (4, 4096)):
        mlp |= {f"head.{index}.{leaf}": empty(width) for leaf in ("weight", "bias", "running_mean", "running_var")}
        mlp[f"head.{index}.num_batches_tracked"] = empty(dtype=torch.int64)
    mlp |= {"head.3.weight": empty(4096, 4096), "head.6.weight": empty(256, 4096)}
    mlp |= {f"head.7.{leaf}": empty(256) for leaf in ("running_mean", "running_var")}
    mlp["head.7.num_batches_tracked"] = empty(dtype=torch.int64)
    encoders = {
        k: t for name in ("base", "momentum") for k, t in prefixed(f"module.{name}_encoder.", small | mlp).items()
    }
    predictor = {"module.predictor.0.weight": empty(4096, 256), "module.predictor.3.weight": empty(256, 4096)}
    write("moco_v3_vit", "state_dict", encoders | predictor)


def msn_and_mae() -> None:
    small, base = vit("vit_small_patch16_224"), vit("vit_base_patch16_224")
    head = {"fc.fc1.weight": empty(2048, 384), "fc.fc1.bias": empty(2048), "fc.bn1.running_mean": empty(2048)}
    head |= {"fc.fc3.weight": empty(256, 2048), "fc.fc3.bias": empty(256)}
    write("msn", "target_encoder", prefixed("module.", small | head))
    decoder = network("timm:vit_base_patch16_224", embed_dim=512, depth=8, num_heads=16, num_classes=0)
    blocks = {key: tensor for key, tensor in decoder.items() if key.startswith(("blocks.", "norm."))}
    rest = {"mask_token": empty(1, 1, 512), "decoder_pos_embed": empty(1, 197, 512)}
    rest |= {"decoder_embed.weight": empty(512, 768), "decoder_embed.bias": empty(512)}
    rest |= {"decoder_pred.weight": empty(768, 512), "decoder_pred.bias": empty(768)}
    write("mae", "model", base | prefixed("decoder_", blocks) | rest)
    write("timm.mae_encoder", "model", base)
    write("timm.mae_finetuned", "model", network("timm:vit_base_patch16_224", global_pool="avg"))
    write("timm.deit", "model", network("timm:deit_small_patch16_224"))
    write("timm.deit_distilled", "model", network("timm:deit_small_distilled_patch16_224"))
    masked = prefixed("backbone.", {"mask_token": empty(1, 1, 768)} | prefixed("vit.", base))
    write("lightly_vit", "state_dict", masked | prefixed("decoder.", rest))
    teacher = prefixed("teacher_backbone.vit.", small)
    student = prefixed("student_backbone.vit.", small) | prefixed("student_head.", {"layers.0.weight": empty(4, 4)})
    write("lightly_vit.dino", "state_dict", teacher | student)


def simmim() -> None:
    options = {"use_abs_pos_emb": False, "use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}
    encoder = vit("beit_base_patch16_224", global_pool="token", init_values=0.1, **options)
    encoder |= {"mask_token": empty(1, 1, 768)}
    encoder["rel_pos_bias.relative_position_index"] = empty(197, 197, dtype=torch.int64)
    decoder = {"decoder.0.weight": empty(768, 768, 1, 1), "decoder.0.bias": empty(768)}
    write("simmim", "model", prefixed("encoder.", encoder) | decoder)


def leaves(pairs: dict[str, str]) -> dict[str, str]:
    return {f"{a}.{leaf}": f"{b}.{leaf}" for a, b in pairs.items() for leaf in ("weight", "bias")}


def thirds(entries: Entries, whole: str, names: tuple[str, str, str]) -> Entries:
    """The keys with 'WHOLE' in them, as three."""
    found: Entries = {}
    for key, tensor in entries.items():
        parts = [key.replace(whole, name) for name in names] if whole in key else [key]
        for part in parts:
            found[part] = empty(tensor.shape[0] // len(parts), *tensor.shape[1:]) if len(parts) > 1 else tensor
    return found


def hugging_face() -> None:
    attention = "encoder.layer.{i}.attention."
    shared = {"cls_token": "embeddings.cls_token", "pos_embed": "embeddings.position_embeddings"}
    shared |= leaves({"patch_embed.proj": "embeddings.patch_embeddings.projection", "norm": "layernorm"})
    shared |= leaves({"*attn.qkv": attention + "QKV", "*attn.proj": attention + "output.dense"})
    layer = "encoder.layer.{i}."
    names = shared | leaves({"*norm1": layer + "layernorm_before", "*norm2": layer + "layernorm_after"})
    names |= leaves({"*mlp.fc1": layer + "intermediate.dense", "*mlp.fc2": layer + "output.dense"})
    three = ("attention.query", "attention.key", "attention.value")
    base = thirds(renamed(vit("vit_base_patch16_224"), names), "QKV", three)
    write(
        "huggingface_vit",
        "",
        prefixed("vit.", base) | {"classifier.weight": empty(1000, 768), "classifier.bias": empty(1000)},
    )
    pooler = {"pooler.dense.weight": empty(768, 768), "pooler.dense.bias": empty(768)}
    write("huggingface_vit.bare", "", base | pooler)
    names = shared | leaves({"*norm1": layer + "norm1", "*norm2": layer + "norm2"})
    names |= {"*ls1.gamma": layer + "layer_scale1.lambda1", "*ls2.gamma": layer + "layer_scale2.lambda1"}
    names |= {"reg_token": "embeddings.register_tokens", "mask_token": "embeddings.mask_token"}
    names |= {"register_tokens": "embeddings.register_tokens"}
    mlp = leaves({"*mlp.fc1": layer + "mlp.fc1", "*mlp.fc2": layer + "mlp.fc2"})
    gated = leaves({"*mlp.w12": layer + "mlp.weights_in", "*mlp.w3": layer + "mlp.weights_out"})
    for name, prefix, model in (
        ("huggingface_dinov2", "", "vit_small_patch14_dinov2"),
        ("huggingface_dinov2.registers", "dinov2_with_registers.", "vit_small_patch14_reg4_dinov2"),
        ("huggingface_dinov2_swiglu", "dinov2.", "GIANT"),
    ):
        # A giant of two blocks: its queries, keys and values are really concatenated in the tests.
        model, options = ("vit_giant_patch14_dinov2", {"depth": 2}) if model == "GIANT" else (model, {})
        entries = renamed(dinov2_names(vit(model, **options)), names | mlp | gated)
        write(name, "", prefixed(prefix, thirds(entries, "QKV", three)))


def clip() -> None:
    layer = "transformer.resblocks.{i}."
    names = {
        "cls_token": "class_embedding",
        "pos_embed": "positional_embedding",
        "patch_embed.proj.weight": "conv1.weight",
    }
    names |= leaves({"norm_pre": "ln_pre", "norm": "ln_post", "*norm1": layer + "ln_1", "*norm2": layer + "ln_2"})
    names |= {f"*attn.qkv.{leaf}": f"{layer}attn.in_proj_{leaf}" for leaf in ("weight", "bias")}
    names |= leaves({"*attn.proj": layer + "attn.out_proj"})
    names |= leaves({"*mlp.fc1": layer + "mlp.c_fc", "*mlp.fc2": layer + "mlp.c_proj"})
    text = {"positional_embedding": empty(77, 512), "text_projection": empty(512, 512), "logit_scale": empty()}
    text |= {"token_embedding.weight": empty(49408, 512), "ln_final.weight": empty(512), "ln_final.bias": empty(512)}
    text |= {"transformer.resblocks.0.attn.in_proj_weight": empty(1536, 512)}
    for name, model, dtype, more in (
        ("openai_clip", "vit_base_patch32_clip_quickgelu_224", torch.float16, True),
        ("open_clip", "vit_base_patch16_clip_224", torch.float32, False),
        ("open_clip.large", "vit_large_patch14_clip_224", torch.float32, False),
    ):
        tower = renamed(vit(model), names)
        width = tower["class_embedding"].shape[-1]
        tower["class_embedding"] = empty(width)
        tower["positional_embedding"] = empty(*tower["positional_embedding"].shape[1:])
        tower["proj"] = empty(width, 512)
        entries = prefixed("visual.", {key: empty(*t.shape, dtype=dtype) for key, t in tower.items()}) | text
        if more:
            entries |= {key: empty(dtype=torch.int64) for key in ("input_resolution", "context_length", "vocab_size")}
        write(name, "" if more else "state_dict" if name.endswith("large") else "", entries)


def mmpretrain() -> None:
    layer = "layers.{i}."
    names = {"cls_token": "cls_token", "pos_embed": "pos_embed"}
    names |= leaves(
        {"patch_embed.proj": "patch_embed.projection", "norm": "ln1", "*norm1": layer + "ln1", "*norm2": layer + "ln2"}
    )
    names |= leaves({"*attn.qkv": layer + "attn.qkv", "*attn.proj": layer + "attn.proj"})
    names |= leaves({"*mlp.fc1": layer + "ffn.layers.0.0", "*mlp.fc2": layer + "ffn.layers.1"})
    names |= {"*ls1.gamma": layer + "attn.gamma1.weight", "*ls2.gamma": layer + "ffn.gamma2.weight"}
    head = {"head.layers.head.weight": empty(1000, 768), "head.layers.head.bias": empty(1000)}
    write("mmpretrain_vit", "state_dict", prefixed("backbone.", renamed(vit("vit_base_patch16_224"), names)) | head)
    dinov2 = vit("vit_small_patch14_dinov2")
    write("mmpretrain_vit.dinov2", "state_dict", prefixed("backbone.", renamed(dinov2, names)))


def torchvision() -> None:
    entries = network("vit_b_16")
    write("torchvision_vit", "", entries)
    old = {key.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): entries[key] for key in entries}
    write("torchvision_vit_files", "", old)


def main() -> None:
    for part in (dino, dinov2, moco_v3, msn_and_mae, simmim, hugging_face, clip, mmpretrain, torchvision):
        part()


if __name__ == "__main__":
    main()
