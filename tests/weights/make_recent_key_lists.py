"""Writes keys/*.txt of networks since 2022; see make_key_lists.py. Those of Hugging Face are asked of transformers.

Run it from the repository's root: `python tests/weights/make_recent_key_lists.py`.
"""

import tempfile
from pathlib import Path

import torch
import transformers
from make_key_lists import Entries, network, prefixed, write
from safetensors.torch import load_file

SMALL = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
TEXT = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 99}


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def in_memory(kind: str, config: str, **options: object) -> Entries:
    """State dict of a model of transformers on the meta device."""
    with torch.device("meta"):
        return dict(getattr(transformers, kind)(getattr(transformers, config)(**options)).state_dict())


def saved(kind: str, config: str, **options: object) -> Entries:
    """Tensors of a model of transformers as `save_pretrained` writes them."""
    with tempfile.TemporaryDirectory() as folder:
        getattr(transformers, kind)(getattr(transformers, config)(**options)).save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def hugging_face() -> None:
    vit = {**SMALL, "num_register_tokens": 4}
    gated = {**vit, "use_gated_mlp": True, "hidden_act": "silu"}
    for name, options in (("dinov3", vit), ("dinov3_swiglu", gated)):
        write(f"huggingface_{name}", "", saved("DINOv3ViTModel", "DINOv3ViTConfig", **options))
        write(f"transformers5_{name}", "", in_memory("DINOv3ViTModel", "DINOv3ViTConfig", **options))
    write("huggingface_dinov3_convnext", "", saved("DINOv3ConvNextModel", "DINOv3ConvNextConfig"))
    write("transformers5_dinov3_convnext", "", in_memory("DINOv3ConvNextModel", "DINOv3ConvNextConfig"))
    write("huggingface_convnext", "", in_memory("ConvNextForImageClassification", "ConvNextConfig"))
    write("huggingface_convnext.v2", "", in_memory("ConvNextV2Model", "ConvNextV2Config"))
    write("huggingface_clip", "", in_memory("CLIPModel", "CLIPConfig", text_config=TEXT))
    write("huggingface_siglip", "", in_memory("SiglipModel", "SiglipConfig", text_config=TEXT))
    write("huggingface_siglip2", "", in_memory("Siglip2Model", "Siglip2Config", text_config=TEXT))
    aim = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24, "num_attention_heads": 8}
    write("huggingface_aimv2", "", in_memory("Aimv2VisionModel", "Aimv2VisionConfig", **aim, use_head=False))
    video = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "pred_num_hidden_layers": 1}
    write("huggingface_vjepa2", "", in_memory("VJEPA2Model", "VJEPA2Config", **video))
    small = {**SMALL, "image_size": 224}
    beit = {**small, "use_relative_position_bias": True}
    write("huggingface_beit", "", saved("BeitForImageClassification", "BeitConfig", **beit))
    write(
        "huggingface_beit.data2vec", "", saved("Data2VecVisionForImageClassification", "Data2VecVisionConfig", **beit)
    )
    masked = {**beit, "use_mask_token": True, "vocab_size": 99}
    write("huggingface_beit_pretraining", "", saved("BeitForMaskedImageModeling", "BeitConfig", **masked))
    write("transformers5_beit", "", in_memory("BeitModel", "BeitConfig", **beit))
    write("huggingface_swin", "", saved("SwinForMaskedImageModeling", "SwinConfig"))
    write("transformers5_swin", "", in_memory("SwinModel", "SwinConfig"))
    write("huggingface_swinv2", "", saved("Swinv2ForImageClassification", "Swinv2Config"))
    write("huggingface_regnet", "", in_memory("RegNetModel", "RegNetConfig"))
    plain = {"layer_type": "x", "hidden_sizes": [24, 56, 152, 368], "depths": [1, 1, 4, 7], "groups_width": 8}
    write("huggingface_regnet_x", "", in_memory("RegNetForImageClassification", "RegNetConfig", **plain))
    write("transformers5_vit", "", in_memory("ViTForImageClassification", "ViTConfig", **small))
    write("transformers5_vit.ijepa", "", in_memory("IJepaModel", "IJepaConfig", **small))
    dino = {**small, "patch_size": 14, "image_size": 518}
    write("transformers5_dinov2", "", in_memory("Dinov2Model", "Dinov2Config", **dino))
    write("transformers5_dinov2_swiglu", "", in_memory("Dinov2Model", "Dinov2Config", **dino, use_swiglu_ffn=True))


def dinov3() -> None:
    for name, architecture in (("dinov3", "small"), ("dinov3_swiglu", "small_plus")):
        timms = network(f"timm:vit_{architecture}_patch16_dinov3_qkvb", num_classes=0)
        found = {"mask_token": empty(1, 384), "rope_embed.periods": empty(16)}
        renames = (("reg_token", "storage_tokens"), ("gamma_1", "ls1.gamma"), ("gamma_2", "ls2.gamma"))
        renames += (("mlp.fc1_g", "mlp.w1"), ("mlp.fc1_x", "mlp.w2"))
        renames += (("mlp.fc2", "mlp.w3"),) if name == "dinov3_swiglu" else ()
        for key, tensor in timms.items():
            if key.endswith("v_bias"):
                continue
            if key.endswith("q_bias"):
                start = key.replace("q_bias", "qkv.bias")
                found |= {start: empty(3 * 384), f"{start}_mask": empty(3 * 384)}
                continue
            for timm, theirs in renames:
                key = key.replace(timm, theirs)
            found[key] = tensor
        write(name, "", found)
    head = {"dino_head.mlp.0.weight": empty(2048, 384), "ibot_head.last_layer.weight": empty(9, 256)}
    write("dinov3_swiglu.training", "teacher", prefixed("backbone.", found) | head)


def convnext() -> None:
    for name, architecture in (("convnext", "convnext_tiny"), ("convnext.v2", "convnextv2_tiny")):
        found = {}
        for key, tensor in network(f"timm:{architecture}").items():
            segments = key.split(".")
            if segments[0] == "stem":
                segments[:1] = ["downsample_layers", "0"]
            if segments[0] == "head":
                segments = ["norm", segments[2]] if segments[1] == "norm" else ["head", segments[2]]
            if segments[0] == "stages" and segments[2] == "downsample":
                segments = ["downsample_layers", segments[1], *segments[3:]]
            if segments[0] == "stages":
                del segments[2]
            theirs = ".".join(segments)
            for timm, other in (("conv_dw", "dwconv"), ("mlp.fc1", "pwconv1"), ("mlp.fc2", "pwconv2")):
                theirs = theirs.replace(timm, other)
            if "grn" in key:
                theirs = theirs.replace("mlp.grn.weight", "grn.gamma").replace("mlp.grn.bias", "grn.beta")
                tensor = tensor[None, None, None]
            found[theirs] = tensor
        write(name, "model", found)
    dinov3 = {key: tensor for key, tensor in found.items() if not key.startswith("head.") and ".grn." not in key}
    dinov3 |= {f"stages.{i}.{j}.gamma": empty(96 * 2**i) for i, depth in enumerate((3, 3, 9, 3)) for j in range(depth)}
    write("convnext.dinov3", "", dinov3 | {f"norms.3.{leaf}": empty(768) for leaf in ("weight", "bias")})


def others() -> None:
    found = {}
    for key, tensor in network("timm:aimv2_large_patch14_224", num_classes=0).items():
        key = key.replace("mlp.fc1_g", "mlp.fc1").replace("mlp.fc1_x", "mlp.fc3")
        key = key.replace("norm1", "norm_1").replace("norm2", "norm_2")
        start = "preprocessor." if key == "pos_embed" else "trunk." if key.startswith("blocks.") else ""
        key = key.replace("patch_embed.", "preprocessor.patchifier.")
        found["trunk.post_trunk_norm.weight" if key == "norm.weight" else start + key] = tensor
    write("aimv2", "", found)
    encoder = network("timm:vit_base_patch16_224", num_classes=0, class_token=False, global_pool="avg", fc_norm=False)
    write("ijepa", "target_encoder", prefixed("module.", encoder))
    encoder["patch_embed.proj.weight"] = empty(768, 3, 2, 16, 16)
    write("vjepa2", "target_encoder", prefixed("module.backbone.", encoder))
    tower = perception_encoder(network("timm:vit_pe_core_base_patch16_224", num_classes=0))
    tower["proj"] = empty(768, 1024)
    text = {"transformer.resblocks.0.ln_1.weight": empty(1024), "token_embedding.weight": empty(9, 1024)}
    text |= {"positional_embedding": empty(32, 1024), "text_projection": empty(1024, 1024)}
    text |= {"ln_final.weight": empty(1024), "ln_final.bias": empty(1024), "logit_scale": empty()}
    write("perception_encoder", "", prefixed("visual.", tower) | text)
    write(
        "perception_encoder_vision",
        "",
        perception_encoder(network("timm:vit_pe_spatial_base_patch16_512", num_classes=0)),
    )
    write(
        "perception_encoder_vision.lang",
        "",
        perception_encoder(network("timm:vit_pe_lang_large_patch14_448", num_classes=0, depth=2)),
    )
    write("timm.convnextv2", "", network("timm:convnextv2_tiny"))
    write("timm.dinov3", "", network("timm:vit_base_patch16_dinov3", num_classes=0))
    write("timm.siglip", "", network("timm:vit_base_patch16_siglip_256", num_classes=0))


def perception_encoder(timms: Entries) -> Entries:
    found = {}
    for key, tensor in timms.items():
        if key == "attn_pool.q.weight":
            found |= {
                f"attn_pool.attn.in_proj_{leaf}": empty(*size)
                for leaf, size in (("weight", (2304, 768)), ("bias", (2304,)))
            }
        if key.startswith(("attn_pool.q.", "attn_pool.kv.")):
            continue
        if key in ("cls_token", "pos_embed"):
            tensor = tensor.reshape(-1, tensor.shape[-1])[0 if key == "cls_token" else slice(None)]
        for timm, theirs in (
            ("patch_embed.proj", "conv1"), ("cls_token", "class_embedding"), ("pos_embed", "positional_embedding"),
            ("attn_pool.latent", "attn_pool.probe"), ("attn_pool.proj", "attn_pool.attn.out_proj"),
            ("attn_pool.norm", "attn_pool.layernorm"), ("blocks.", "transformer.resblocks."), ("norm_pre", "ln_pre"),
            ("norm1", "ln_1"), ("norm2", "ln_2"), ("gamma_1", "ls_1.gamma"), ("gamma_2", "ls_2.gamma"),
            ("attn.qkv.", "attn.in_proj_"), ("attn.proj", "attn.out_proj"), ("mlp.fc1", "mlp.c_fc"),
            ("mlp.fc2", "mlp.c_proj"),
        ):  # fmt: skip
            key = key.replace(timm, theirs)
        found[key.replace("norm.", "ln_post.") if key.startswith("norm.") else key] = tensor
    return found


if __name__ == "__main__":
    hugging_face()
    dinov3()
    convnext()
    others()
