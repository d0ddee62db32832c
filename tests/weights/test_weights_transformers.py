"""Networks of transformers in their own folders and names: the backbone computes what transformers computes."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from sslbench.backbones import named
from sslbench.backbones.convert import convert
from sslbench.backbones.load import load_backbone, load_file
from sslbench.cli.commands.eval.work import with_checkpoints
from sslbench.errors import BackboneError, UsageError, WeightsError
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.formats.tables import load_table
from sslbench.weights.reading import files
from sslbench.weights.reading.folders import read_config

transformers = pytest.importorskip("transformers", reason="pip install 'sslbench[detr]'")

VIT = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
VIT |= {"image_size": 32, "patch_size": 8}
ROTARY = {**VIT, "hidden_size": 48, "num_register_tokens": 3}  # heads of 16 dimensions
GATED = {"use_gated_mlp": True, "hidden_act": "silu", "query_bias": False, "value_bias": False}
CNN = {"hidden_sizes": [8, 12, 16, 20], "depths": [1, 2, 1, 1], "image_size": 32}
RESNET = {"embedding_size": 8, "hidden_sizes": [32, 64, 128, 256], "depths": [1, 2, 1, 1]}
REGNET = {"hidden_sizes": [24, 56, 152, 368], "depths": [1, 1, 4, 7], "groups_width": 8}
RELATIVE = {"use_relative_position_bias": True}
SHARED = {
    "use_shared_relative_position_bias": True,
    "use_absolute_position_embeddings": True,
    "use_mean_pooling": False,
}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
TEXT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 9}
NAFLEX = {key: value for key, value in VIT.items() if key != "image_size"} | {"num_patches": 16}

VIDEO = {key: value for key, value in VIT.items() if key not in ("image_size", "intermediate_size")}
VIDEO |= {"hidden_size": 48, "mlp_ratio": 2, "crop_size": 32, "frames_per_clip": 4, "pred_hidden_size": 12}
VIDEO |= {"pred_num_attention_heads": 2, "pred_num_hidden_layers": 1, "pred_num_mask_tokens": 1}


def encoded_image(model, x):
    return model.encoder(x[:, None]).last_hidden_state.mean(1)  # one frame, which transformers repeats


def pooled(model, x):
    return model(x).pooler_output.flatten(1)


def pooled_before_classifier(model, x):
    return pooled(model.regnet, x)


def class_token(model, x):
    return model(x).last_hidden_state[:, 0]


def class_and_distilled(model, x):
    return model(x).last_hidden_state[:, :2].mean(1)  # as timm has it


def unshuffled(model, x):
    return model(x, noise=torch.arange(16.0).expand(len(x), 16)).last_hidden_state[:, 0]


def mean_of_patches(model, x):
    return model(x).last_hidden_state[:, 1:].mean(1)


def mean(model, x):
    return model(x).last_hidden_state.mean(1)


def pooled_patches(model, x):
    rows = x.reshape(2, 3, 4, 8, 4, 8).permute(0, 2, 4, 3, 5, 1).reshape(2, 16, 192)
    mask, shapes = torch.ones(2, 16, dtype=torch.int64), torch.tensor([[4, 4]] * 2)
    return model(pixel_values=rows, pixel_attention_mask=mask, spatial_shapes=shapes).pooler_output


# Name -> (class, settings, features as transformers computes them, format of the folder, format in memory).
MODELS = {
    "dinov3": ("DINOv3ViTModel", ROTARY, class_token, "huggingface_dinov3", "transformers5_dinov3"),
    "dinov3_gated": (
        "DINOv3ViTModel",
        ROTARY | GATED,
        class_token,
        "huggingface_dinov3_swiglu",
        "transformers5_dinov3_swiglu",
    ),
    "dinov3_convnext": (
        "DINOv3ConvNextModel",
        CNN,
        pooled,
        "huggingface_dinov3_convnext",
        "transformers5_dinov3_convnext",
    ),
    "convnext": ("ConvNextModel", CNN, pooled, "huggingface_convnext", "huggingface_convnext"),
    "convnextv2": ("ConvNextV2Model", CNN, pooled, "huggingface_convnext", "huggingface_convnext"),
    "siglip": ("SiglipVisionModel", VIT, pooled, "huggingface_siglip", "huggingface_siglip"),
    "siglip2": ("Siglip2VisionModel", NAFLEX, pooled_patches, "huggingface_siglip2", "huggingface_siglip2"),
    "clip": ("CLIPVisionModel", VIT, pooled, "huggingface_clip", "huggingface_clip"),
    "laion_clip": ("CLIPVisionModel", VIT | {"hidden_act": "gelu"}, pooled, "huggingface_clip", "huggingface_clip"),
    "aimv2": ("Aimv2VisionModel", VIT, mean, "huggingface_aimv2", "huggingface_aimv2"),
    "ijepa": ("IJepaModel", VIT, mean, "huggingface_vit", "transformers5_vit"),
    "vjepa2": ("VJEPA2Model", VIDEO, encoded_image, "huggingface_vjepa2", "huggingface_vjepa2"),
    "deit": ("DeiTModel", VIT, class_and_distilled, "huggingface_vit", "transformers5_vit"),
    "vit_mae": ("ViTMAEModel", VIT | {"mask_ratio": 0.0}, unshuffled, "huggingface_vit", "transformers5_vit"),
    "vit_msn": ("ViTMSNModel", VIT, class_token, "huggingface_vit", "transformers5_vit"),
    "resnet": ("ResNetModel", RESNET, pooled, "huggingface_resnet", "huggingface_resnet"),
    "beit": ("BeitModel", VIT | RELATIVE, pooled, "huggingface_beit", "transformers5_beit"),
    "beit_shared": ("BeitModel", VIT | SHARED, class_token, "huggingface_beit", "transformers5_beit"),
    "data2vec": (
        "Data2VecVisionModel",
        VIT | RELATIVE | {"use_mean_pooling": False},
        class_token,
        "huggingface_beit",
        "huggingface_beit",
    ),
    "data2vec_bare": ("Data2VecVisionModel", VIT | RELATIVE, mean_of_patches, "huggingface_beit", "huggingface_beit"),
    "swin": ("SwinModel", SWIN, pooled, "huggingface_swin", "transformers5_swin"),
    "regnet": ("RegNetModel", REGNET, pooled, "huggingface_regnet", "huggingface_regnet"),
    "regnet_x": (
        "RegNetForImageClassification",
        REGNET | {"layer_type": "x"},
        pooled_before_classifier,
        "huggingface_regnet_x",
        "huggingface_regnet_x",
    ),
    "swinv2": ("Swinv2Model", SWIN, pooled, "huggingface_swinv2", "huggingface_swinv2"),
    "vit": ("ViTModel", VIT, class_token, "huggingface_vit", "transformers5_vit"),
    "dinov2": ("Dinov2WithRegistersModel", VIT, class_token, "huggingface_dinov2", "transformers5_dinov2"),
    "dinov2_gated": (
        "Dinov2Model",
        VIT | {"use_swiglu_ffn": True},
        class_token,
        "huggingface_dinov2_swiglu",
        "transformers5_dinov2_swiglu",
    ),
}


def model_of(name):
    kind, options, *_ = MODELS[name]
    torch.manual_seed(0)
    network = getattr(transformers, kind)
    model = network(network.config_class(**options)).eval()
    for key, tensor in model.named_parameters():
        torch.nn.init.normal_(tensor, mean=float("norm" in key and key.endswith("weight")), std=0.2)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of save_pretrained, made when they are first asked for."""
    root, made = tmp_path_factory.mktemp("models"), {}

    def folder(name):
        if name not in made:
            made[name] = model_of(name)
            made[name].save_pretrained(root / name)
        return made[name], root / name

    return folder


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_folder_and_names_in_memory_give_the_features_of_transformers(name, folders, tmp_path):
    *_, features, saved, in_memory = MODELS[name]
    model, folder = folders(name)
    images = torch.randn(2, 3, 32, 32)
    torch.save(model.state_dict(), tmp_path / "memory.pth")
    backbone = load_backbone(str(folder))
    other = load_backbone(str(tmp_path / "memory.pth"), backbone=backbone.name)
    assert (backbone.format, other.format) == (saved, in_memory)
    with torch.no_grad():
        wanted = features(model, images)
        for found in (backbone, other):
            assert not found.report.partial and found.report.loaded == found.report.total
            torch.testing.assert_close(found.module(images), wanted, rtol=1e-4, atol=1e-5)
    assert wanted.std() > 0.1


def test_without_config_json_heads_and_activation_are_asked_for(folders, tmp_path):
    shutil.copy(folders("vit")[1] / "model.safetensors", tmp_path / "vit.safetensors")
    with pytest.raises(BackboneError, match="number of heads is not visible"):
        load_backbone(str(tmp_path / "vit.safetensors"))
    shutil.copy(folders("clip")[1] / "model.safetensors", tmp_path / "clip.safetensors")
    with pytest.raises(BackboneError, match=r"activation of a CLIP and its number of heads .* no config\.json"):
        load_backbone(str(tmp_path / "clip.safetensors"))


def test_the_activation_of_a_clip_of_usual_size_is_asked_for():
    with torch.device("meta"):
        names = transformers.CLIPVisionModel(transformers.CLIPVisionConfig()).state_dict()
    tensors = {key: torch.zeros(()).expand(tensor.shape) for key, tensor in names.items()}
    file = files.WeightsFile(Path("clip.pth"), "0" * 64, tensors, "torch zip")
    with pytest.raises(BackboneError, match=r"activation of a CLIP is not visible .* no config\.json") as error:
        load_file(file)
    assert "clip_quickgelu_224" in error.value.remedy and "patch32_clip_224" in error.value.remedy


def test_mean_and_std_of_the_images_are_those_beside_the_weights(folders, tmp_path):
    folder = shutil.copytree(folders("vit")[1], tmp_path / "vit")
    images = {
        "do_normalize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.25] * 3,
        "size": {"height": 32, "width": 32},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    used = load_backbone(str(folder)).preprocessing
    assert (used.mean, used.std, used.crop) == ((0.5,) * 3, (0.25,) * 3, (32, 32))
    (folder / "preprocessor_config.json").write_text(json.dumps(images | {"image_std": [0, 1, 1]}))
    with pytest.raises(WeightsError, match=r"preprocessor_config\.json: .*std positive"):
        load_backbone(str(folder))


def test_a_configuration_of_another_network_is_refused(folders, tmp_path):
    folder = shutil.copytree(folders("vit")[1], tmp_path / "vit")
    shutil.copy(folders("dinov3")[1] / "config.json", folder)
    with pytest.raises(BackboneError, match="of another network: it has model_type dinov3_vit"):
        load_backbone(str(folder))
    config = json.loads((folders("vit")[1] / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 48}))
    with pytest.raises(BackboneError, match="of another network: it has hidden_size 48"):
        load_backbone(str(folder))


def test_shards_with_an_index_are_one_file(folders, tmp_path):
    model, whole = folders("vit")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    shards = sorted((tmp_path / "shards").glob("*.safetensors"))
    assert len(shards) > 1
    backbone = load_backbone(str(tmp_path / "shards"))
    assert backbone.weights_sha256 == load_backbone(str(whole)).weights_sha256
    assert files.read(tmp_path / "shards").size == sum(shard.stat().st_size for shard in shards)
    assert load_backbone(str(tmp_path / "shards" / "model.safetensors.index.json")).name == backbone.name
    with pytest.raises(WeightsError, match=r"one shard of model\.safetensors\.index\.json") as error:
        load_backbone(str(shards[0]))
    assert str(tmp_path / "shards") in error.value.remedy
    shards[1].unlink()
    with pytest.raises(WeightsError, match=f"1 are missing: {shards[1].name}"):
        load_backbone(str(tmp_path / "shards"))


def test_hf_and_a_folder_is_that_folder(folders, tmp_path, monkeypatch):
    _, folder = folders("vit")
    monkeypatch.chdir(folder.parent)
    for weights in (f"hf:{folder}", "hf:./vit", "hf:vit", "vit"):
        assert load_backbone(weights).format == "huggingface_vit"
        assert named.weights_name(weights) == "vit"
        assert with_checkpoints([weights]) == ([weights], {}), "taken for checkpoints of a pretraining run"
    with pytest.raises(UsageError, match="there is no folder"):
        load_backbone("hf:./nothing")
    with pytest.raises(UsageError, match="a folder has no SHA-256"):
        load_backbone("hf:./vit#sha256=" + 64 * "a")
    (tmp_path / "elsewhere" / "vit").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert named.local("hf:./vit").path == tmp_path / "elsewhere" / "vit", "not the folder of the last directory"


def test_a_folder_is_converted_to_timm_and_computes_the_same(folders, tmp_path):
    _, folder = folders("dinov3")
    backbone, images = load_backbone(str(folder)), torch.randn(2, 3, 32, 32)
    convert(folder, tmp_path / "timm.safetensors", to="timm")
    again = load_backbone(str(tmp_path / "timm.safetensors"), backbone=backbone.name)
    assert torch.equal(again.module(images), backbone.module(images))


def test_a_folder_of_timm_says_its_architecture(tmp_path):
    import timm

    model = timm.create_model("test_vit", pretrained=False, num_classes=0)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    config = {
        "architecture": "test_vit",
        "num_classes": 0,
        "pretrained_cfg": {"tag": "r160_in1k", "mean": [0.5] * 3, "std": [0.5] * 3},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_backbone(str(tmp_path)).name == "timm:test_vit.r160_in1k"
    config["pretrained_cfg"] |= {"tag": "mine", "std": [0.25] * 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    own = load_backbone(str(tmp_path))
    assert (own.name, own.preprocessing.std) == ("timm:test_vit", (0.25,) * 3)
    config["model_args"] = {"norm_layer": "os.system"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BackboneError, match="not taken from a file"):
        load_backbone(str(tmp_path))


def test_the_first_vjepa_is_not_taken_for_the_second(folders, tmp_path):
    _, folder = folders("vjepa2")
    backbone = load_backbone(str(folder))
    found = recognise(files.read(folder)).canonical
    theirs = load_table("vjepa2").from_canonical(dict(found))
    for patches, refused in ((1568, True), (2048, False)):
        torch.save(
            {"target_encoder": theirs | {"module.backbone.pos_embed": torch.ones(1, patches, 48)}}, tmp_path / "w.pth"
        )
        if refused:
            with pytest.raises(WeightsError, match="of the first V-JEPA"):
                load_backbone(str(tmp_path / "w.pth"), backbone=backbone.name)
            continue
        again = load_backbone(str(tmp_path / "w.pth"), backbone=backbone.name)
        assert again.format == "vjepa2" and "unused position embeddings left out" in again.report.line()
        assert again.weights_sha256 == backbone.weights_sha256


def test_biases_of_dinov3_are_left_out_only_where_they_are_zero(folders, tmp_path):
    _, folder = folders("dinov3")
    named = load_backbone(str(folder)).name.replace("_qkvb", "")
    with pytest.raises(WeightsError, match="the same name with _qkvb has them") as error:
        load_backbone(str(folder), backbone=named)
    assert "would compute another network" in error.value.remedy
    zero = {k: t * 0 if k.endswith("_bias") else t for k, t in recognise(files.read(folder)).canonical.items()}
    torch.save(load_table("transformers5_dinov3").from_canonical(zero), tmp_path / "w.pth")
    without, images = load_backbone(str(tmp_path / "w.pth"), backbone=named), torch.randn(1, 3, 32, 32)
    assert not without.report.partial and "all zero, left out" in without.report.line()
    biased = load_backbone(str(tmp_path / "w.pth"), backbone=named.replace("dinov3", "dinov3_qkvb"))
    torch.testing.assert_close(without.module(images), biased.module(images))


def test_masks_and_periods_of_dinov3s_own_files_are_used(folders, tmp_path):
    """The authors' layer multiplies its bias by the mask; the bias of the keys matters with rotary positions."""
    _, folder = folders("dinov3")
    name, images = load_backbone(str(folder)).name, torch.randn(2, 3, 32, 32)
    found = recognise(files.read(folder)).canonical
    keys = torch.randn(48)
    for i in range(2):
        found[f"blocks.{i}.attn.k_bias"] = torch.full((48,), torch.nan)
        found[f"blocks.{i}.attn.bias_mask"] = torch.ones(144).index_fill(0, torch.arange(48, 96), 0)
    periods = 100 ** (2 * torch.arange(4) / 8)
    theirs = load_table("dinov3").from_canonical({**found, "rope.periods": periods})
    torch.save(theirs, tmp_path / "w.pth")
    masked = load_backbone(str(tmp_path / "w.pth"))
    assert (masked.name, masked.format) == (name, "dinov3") and not masked.report.partial
    with torch.no_grad():
        wanted = load_backbone(str(folder)).module(images)
        torch.testing.assert_close(masked.module(images), wanted)
        theirs["rope_embed.periods"] = periods * 1.5
        torch.save(theirs, tmp_path / "w.pth")
        assert not torch.allclose(load_backbone(str(tmp_path / "w.pth")).module(images), wanted, atol=1e-3)
        plain = {key: tensor for key, tensor in found.items() if "bias_mask" not in key}
        plain |= {f"blocks.{i}.attn.k_bias": keys for i in range(2)}
        torch.save(load_table("dinov3").from_canonical({**plain, "rope.periods": periods}), tmp_path / "w.pth")
        assert not torch.allclose(load_backbone(str(tmp_path / "w.pth")).module(images), wanted, atol=1e-3)
    report = convert(folder, tmp_path / "own.torch", to="sslbench", backbone=name)
    assert report.tensors and torch.equal(load_backbone(str(tmp_path / "own.torch")).module(images), wanted)


@pytest.mark.parametrize(
    ("scale", "mean"), [({"do_rescale": False}, 127.5), ({"rescale_factor": 1 / 127.5}, 1.0), ({}, 0.5)]
)
def test_mean_and_std_of_other_ranges_than_0_to_1_are_converted(scale, mean, tmp_path):
    images = {"image_mean": [mean] * 3, "image_std": [mean] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images | scale))
    found = read_config(tmp_path / "model.safetensors")
    assert found.mean == found.std == pytest.approx((0.5,) * 3)


@pytest.mark.parametrize("wrong", [{"image_mean": "0.5"}, {"image_std": [1, None, 1]}, {"rescale_factor": 0}])
def test_numbers_of_the_images_that_make_no_sense_are_refused(wrong, tmp_path):
    images = {"image_mean": 0.5, "image_std": [0.25] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images))
    assert read_config(tmp_path / "model.safetensors").mean == (0.5,) * 3
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images | wrong))
    with pytest.raises(WeightsError, match=f"preprocessor_config.json: {next(iter(wrong))} should be"):
        read_config(tmp_path / "model.safetensors")


def test_mean_and_std_of_the_images_are_also_those_in_a_processor_of_transformers_5(tmp_path):
    images = {"image_processor": {"image_mean": [0.25] * 3, "image_std": [0.5] * 3}}
    (tmp_path / "processor_config.json").write_text(json.dumps(images))
    assert read_config(tmp_path / "model.safetensors").mean == (0.25,) * 3


def test_an_activation_that_is_no_name_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_act": ["gelu"]}))
    config = read_config(tmp_path / "model.safetensors")
    with pytest.raises(BackboneError, match="timm does not have this activation"):
        _ = config.activation


UNUSED = {  # fields of all configurations of transformers that no forward of an encoder reads
    *("architectures", "chunk_size_feed_forward", "dtype", "id2label", "is_encoder_decoder", "label2id"),
    *("output_attentions", "output_hidden_states", "problem_type", "return_dict", "transformers_version"),
    *("out_features", "out_indices", "stage_names"),  # of the maps that transformers' detectors take
    *("add_fpn", "mask_ratio"),  # of detectors, and of pretraining
}


def changed_value(key, value):
    """Another value of the same kind; 1 more for numbers that are divided by others would be refused for that alone."""
    others = {"hidden_act": ("relu", "silu"), "model_type": ("swin", "vit")}
    others["layer_type"] = ("x", "y") if value in ("x", "y") else ("basic", "bottleneck")
    if key in others:
        return next(other for other in others[key] if other != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, list) and value and isinstance(value[0], int):
        return [2 * number for number in value]
    if isinstance(value, int):
        return 2 * value or 3
    return 30 * value or 0.3 if isinstance(value, float) else None


@pytest.mark.parametrize("name", sorted(MODELS))
def test_no_field_of_a_configuration_is_read_past(name, folders, tmp_path):
    """With any field changed, the features are those of transformers' network of that configuration, or a message."""
    kind, options, features, *_ = MODELS[name]
    network = getattr(transformers, kind)
    model, folder = folders(name)
    folder, images = shutil.copytree(folder, tmp_path / "model"), torch.randn(2, 3, 32, 32)
    written = json.loads((folder / "config.json").read_text())
    same = []
    for key, value in written.items():
        if key in UNUSED or (other := changed_value(key, value)) is None:
            continue
        (folder / "config.json").write_text(json.dumps(written | {key: other}))
        try:
            backbone = load_backbone(str(folder))
        except BackboneError as error:
            assert key in error.message and "config.json" in error.message and "--backbone" in error.remedy, error
            continue
        changed = network(network.config_class(**options | {key: other})).eval()
        shapes = {name: tensor.shape for name, tensor in changed.state_dict().items()}
        tensors = {name: t for name, t in model.state_dict().items() if shapes.get(name) == t.shape}
        changed.load_state_dict(tensors, strict=False)  # heads may differ
        seen = torch.randn(2, 3, other, other) if key in ("crop_size", "image_size") else images
        with torch.no_grad():
            torch.testing.assert_close(
                backbone.module(seen), features(changed, seen), rtol=1e-4, atol=1e-5, msg=f"{key}: {other}"
            )
        same.append(key)
    assert {"layer_norm_eps", "rms_norm_eps"} & {*same} or name.startswith(("resnet", "regnet", "swin")), same


def test_fields_that_transformers_does_not_write_have_its_defaults(folders, tmp_path):
    """The inner configuration of a CLIP holds only what differs: transformers leaves out its QuickGELU and 12 heads."""
    options = VIT | {"hidden_size": 48, "num_attention_heads": 12}
    whole = transformers.CLIPConfig(vision_config=options, text_config=TEXT)
    model = transformers.CLIPModel(whole).eval()
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    for key in ("num_attention_heads", "hidden_act", "layer_norm_eps"):
        del written["vision_config"][key]
    (tmp_path / "config.json").write_text(json.dumps(written))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = model.vision_model(images).pooler_output
        torch.testing.assert_close(load_backbone(str(tmp_path)).module(images), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message", "remedy"),
    [
        ({"hidden_act": "laplace"}, "hidden_act is laplace", "--backbone MODULE:FUNCTION"),
        ({"num_attention_heads": 0}, "num_attention_heads should be a positive whole number, not 0", "--backbone NAME"),
        ({"num_attention_heads": "3"}, 'not "3"', "--backbone NAME"),
        ({"num_attention_heads": 5}, "a divisor of the width, 24, not 5", "--backbone NAME"),
        ({"layer_norm_eps": -1}, "layer_norm_eps should be a positive number", "--backbone NAME"),
        ({"layer_norm_eps": "1e-6"}, "layer_norm_eps should be a positive number", "--backbone NAME"),
        ({"mlp_ratio": math.nan}, "mlp_ratio should be a positive number", "--backbone NAME"),
        ({"image_size": [32, 48]}, "image_size should be a positive whole number", "--backbone NAME"),
    ],
)
def test_values_that_no_network_has_are_refused_by_name_until_the_network_is_named(
    fields, message, remedy, folders, tmp_path
):
    _, source = folders("vit")
    named = load_backbone(str(source)).name
    folder = shutil.copytree(source, tmp_path / "vit")
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | fields))
    with pytest.raises(BackboneError, match=re.escape(message)) as error:
        load_backbone(str(folder))
    assert str(folder / "config.json") in error.value.message and remedy in error.value.remedy
    assert load_backbone(str(folder), backbone=named).name == named


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[1]", "it holds a list"),
        (b"", "it is empty"),
        (b'{"hidden_size": ', "Expecting value"),
        ("{}".encode("utf-16"), "can't decode"),
        (None, "is a link to gone, which does not exist"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_one_message(content, problem, folders, tmp_path):
    folder = shutil.copytree(folders("vit")[1], tmp_path / "vit")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("gone") if content is None else (folder / "config.json").write_bytes(content)
    with pytest.raises(WeightsError, match=re.escape(problem)) as error:
        load_backbone(str(folder))
    assert str(folder / "config.json") in error.value.message and error.value.remedy


def test_a_named_network_that_the_configuration_does_not_show_is_noted(folders):
    _, folder = folders("vit")
    name = load_backbone(str(folder)).name
    same, other = (load_backbone(str(folder), backbone=n) for n in (name, name.replace("num_heads=3", "num_heads=2")))
    assert "another network" not in same.report.note
    assert f"config.json shows another network: --backbone {name}" in other.report.note


def test_a_byte_order_mark_is_no_part_of_a_configuration(folders, tmp_path):
    folder = shutil.copytree(folders("vit")[1], tmp_path / "vit")
    (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + (folder / "config.json").read_bytes())
    assert load_backbone(str(folder)).name == load_backbone(str(folders("vit")[1])).name


def test_lists_in_the_arguments_of_timm_are_options(tmp_path):
    import timm

    sizes = {"depths": [1, 2, 3, 1], "dims": [8, 16, 24, 32]}
    model = timm.create_model("convnext_tiny", pretrained=False, num_classes=0, **sizes)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    written = {"architecture": "convnext_tiny", "model_args": sizes | {"num_classes": 7}}
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert load_backbone(str(tmp_path)).name == "timm:convnext_tiny,depths=1-2-3-1,dims=8-16-24-32"
    for value in ("", "a,b", [7], [[1, 2], [3, 4]]):
        written["model_args"] = {"depths": value}
        (tmp_path / "config.json").write_text(json.dumps(written))
        with pytest.raises((WeightsError, BackboneError), match="is not taken from a file") as error:
            load_backbone(str(tmp_path))
        assert "--backbone timm:convnext_tiny" in error.value.remedy


def test_open_clips_configuration_is_compared_too(tmp_path):
    import timm

    options = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "mlp_ratio": 2}
    model = timm.create_model("vit_base_patch16_clip_224", pretrained=False, num_classes=0, **options)
    tensors = load_table("open_clip").from_canonical(model.state_dict())
    safetensors.torch.save_file(
        {k: t.contiguous() for k, t in tensors.items()}, tmp_path / "open_clip_model.safetensors"
    )
    tower = {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8, "mlp_ratio": 2.0}
    images = torch.randn(1, 3, 32, 32)
    for fields, refused in (
        ({}, ""),
        ({"head_width": 64, "norm_kwargs": {"eps": 0.1}}, "other"),
        ({"layers": 3}, "num_hidden_layers 3"),
        ({"mlp_ratio": 4.0}, "intermediate_size 256"),
        ({"pool_type": "avg"}, "pool_type is avg"),
        ({"final_ln_after_pool": True}, "final_ln_after_pool is true"),
    ):
        config = {"model_cfg": {"vision_cfg": tower | fields}}
        (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
        if refused not in ("", "other"):
            with pytest.raises(BackboneError, match=refused):
                load_backbone(str(tmp_path))
            continue
        with torch.no_grad():
            found = load_backbone(str(tmp_path)).module(images)
            assert torch.allclose(found, model.eval()(images), rtol=1e-4, atol=1e-5) == (not refused)


def test_folders_without_a_whole_network_say_the_way_out(folders, tmp_path):
    model, whole = folders("vit")
    for step in (500, 1000):
        shutil.copytree(whole, tmp_path / "run" / f"checkpoint-{step}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "model.safetensors").symlink_to("../blobs/gone")
    model.save_pretrained(tmp_path / "lone", max_shard_size="20KB")
    index = tmp_path / "lone" / "model.safetensors.index.json"
    shutil.copytree(tmp_path / "lone", tmp_path / "stale")
    written = json.loads(index.read_text())
    written["weight_map"]["other.weight"] = written["weight_map"]["layernorm.bias"]
    (tmp_path / "stale" / index.name).write_text(json.dumps(written))
    index.unlink()
    first = min(path.name for path in (tmp_path / "lone").glob("model-*"))
    (tmp_path / "pair").mkdir()
    shutil.copy(tmp_path / "lone" / first, tmp_path / "pair" / "model-00001-of-00002.safetensors")
    for path, problem, remedy in (
        ("run", "is a folder", "checkpoint-1000, the last of 2"),
        ("empty", "is a folder", "It is empty"),
        ("links", "model.safetensors is a link to ../blobs/gone", "with the file that it stands for"),
        ("links/model.safetensors", "is a link to ../blobs/gone", "with the file that it stands for"),
        ("lone", "without their index model.safetensors.index.json", "the index included"),
        (f"lone/{first}", "without their index model.safetensors.index.json", "the index included"),
        ("pair", "1 of the 2 shards of a network are here, without their index", "the index included"),
        ("stale", "1 tensors that its shards do not hold, such as 'other.weight'", "copy the whole folder"),
    ):
        with pytest.raises(WeightsError, match=re.escape(problem)) as error:
            load_backbone(str(tmp_path / path))
        assert remedy in error.value.remedy, path
    assert load_backbone(str(tmp_path / "run" / "checkpoint-500")).name == load_backbone(str(whole)).name


@pytest.mark.parametrize(
    ("patch", "mean", "words"), [(8, 0.485, "ImageNet's are assumed"), (16, 0.5, "0.5,0.5,0.5 and")]
)
def test_the_note_about_mean_and_std_says_those_that_are_used(patch, mean, words, tmp_path):
    """Below 64 pixels they are those of timm's network: of DINO for patches of 8 pixels, of AugReg for 16."""
    transformers.ViTModel(transformers.ViTConfig(**VIT | {"patch_size": patch})).save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path))
    assert backbone.preprocessing.mean[0] == mean and words in backbone.report.note


def test_a_beit_with_its_head_for_pretraining_has_its_norm_beside_the_encoder(tmp_path):
    config = transformers.BeitConfig(**VIT | RELATIVE | {"use_mask_token": True, "vocab_size": 20})
    model = transformers.BeitForMaskedImageModeling(config).eval()
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, std=0.2)
    model.save_pretrained(tmp_path)
    backbone, images = load_backbone(str(tmp_path)), torch.randn(2, 3, 32, 32)
    assert backbone.format == "huggingface_beit_pretraining" and not backbone.report.partial
    with torch.no_grad():
        wanted = model.layernorm(model.beit(images).last_hidden_state)[:, 0]
        torch.testing.assert_close(backbone.module(images), wanted, rtol=1e-4, atol=1e-5)


def test_windows_of_a_swin_v2_are_asked_for_and_those_of_its_pretraining_are_used(tmp_path):
    options = SWIN | {"pretrained_window_sizes": [2, 2]}
    model = transformers.Swinv2Model(transformers.Swinv2Config(**options)).eval()
    for key, tensor in model.named_parameters():
        torch.nn.init.normal_(tensor, mean=float("norm" in key and key.endswith("weight")), std=0.2)
    model.save_pretrained(tmp_path)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        found = load_backbone(str(tmp_path))
        torch.testing.assert_close(found.module(images), pooled(model, images), rtol=1e-4, atol=1e-5)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"image_size": 36}))
    with pytest.raises(BackboneError, match="windows of 4 cells do not fill the 18x18 cells"):
        load_backbone(str(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(BackboneError, match=r"windows of a Swin .* no config\.json") as error:
        load_backbone(str(tmp_path))
    assert "window_size=NUMBER" in error.value.remedy
