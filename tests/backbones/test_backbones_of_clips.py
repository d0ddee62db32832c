"""Networks of clips: the features of transformers' own forward pass, from its files."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers.clips import write_classes

from sslbench.backbones.build import build
from sslbench.backbones.dense import DenseEncoder
from sslbench.backbones.grids import resolve_grids
from sslbench.backbones.layers import resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.backbones.sizes import built_for
from sslbench.backbones.speed import prepare
from sslbench.cli.main import main
from sslbench.data.open import open_data
from sslbench.errors import UsageError, WeightsError
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.formats.tables import load_table
from sslbench.weights.reading import files

transformers = pytest.importorskip("transformers", reason="pip install 'sslbench[detr]'")

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 8}
PREDICTOR = {"pred_hidden_size": 12, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 1}
VJEPA = {**SIZES, **PREDICTOR, "hidden_size": 48, "mlp_ratio": 2, "crop_size": 32, "pred_num_mask_tokens": 1}
VIDEOMAE = {**SIZES, "hidden_size": 24, "intermediate_size": 48, "image_size": 32, "num_frames": 4}
BARE = {**VIDEOMAE, "use_mean_pooling": True}
# Name -> (class, settings, options that the name of the network gets).
MODELS = {
    "vjepa2": ("VJEPA2Model", VJEPA, ",frames=4"),
    "videomae": ("VideoMAEModel", {**VIDEOMAE, "use_mean_pooling": False}, ""),
    "videomae_pretraining": ("VideoMAEForPreTraining", {**VIDEOMAE, "use_mean_pooling": False}, ""),
    "videomae_finetuned": ("VideoMAEForVideoClassification", BARE, ""),
}
SMALL = "embed_dim=48,depth=2,num_heads=3,patch_size=8,img_size=32"
USERS = """
import torch
from torch import nn


class Network(nn.Module):
    frames = 4
    preprocessing = {"resize": 16, "crop": (16, 16)}

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv3d(3, 8, (2, 8, 8), (2, 8, 8)), nn.ReLU(), nn.Conv3d(8, 8, 2))

    def forward(self, clips):
        batch, channels, time, height, width = clips.shape
        return self.body(clips).mean((2, 3, 4))


def make():
    torch.manual_seed(0)
    return Network()


def spoilt():
    network = make()
    network.frames = "4"
    return network
"""
TINY = "videomae_small,embed_dim=24,depth=2,num_heads=3,patch_size=8,img_size=16,frames=4"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models of transformers, and their folders; made when they are first asked for."""
    root, made = tmp_path_factory.mktemp("models"), {}

    def model(name):
        if name not in made:
            kind, options, _ = MODELS[name]
            network = getattr(transformers, kind)
            made[name] = network(network.config_class(**options)).eval()
            for key, tensor in made[name].named_parameters():
                torch.nn.init.normal_(tensor, mean=float("norm" in key and key.endswith("weight")), std=0.2)
            made[name].save_pretrained(root / name)
        return made[name], root / name

    return model


def tokens_of_transformers(name, model, clips):
    """Return the last tokens of a model for clips (B, T, C, H, W)."""
    return (model.encoder if name == "vjepa2" else getattr(model, "videomae", model))(clips).last_hidden_state


def code_of(*words):
    """Run a command; return its exit code."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code or 0


@pytest.mark.parametrize("name", MODELS)
def test_features_and_tokens_of_clips_are_those_of_transformers(name, models, tmp_path):
    model, folder = models(name)
    backbone = load_backbone(str(folder))
    if options := MODELS[name][2]:
        backbone = load_backbone(str(folder), backbone=backbone.name + options)
    assert backbone.report.loaded == backbone.report.total and not backbone.report.partial
    assert "shows another network" not in backbone.report.line()
    torch.save(model.state_dict(), tmp_path / "memory.pth")
    again = load_backbone(str(tmp_path / "memory.pth"), backbone=backbone.name)
    assert again.weights_sha256 == backbone.weights_sha256
    clips = torch.randn(3, 4, 3, 32, 32)
    layers = resolve_layers(backbone, ["features", "last:mean", "last:tokens"], tokens=True)
    encoder = prepare(backbone, layers, device=torch.device("cpu"))
    found = encoder(clips.flatten(1, 2))
    with torch.no_grad():
        wanted = tokens_of_transformers(name, model, clips)
        moved = backbone.module(clips.transpose(1, 2))
        still = backbone.module(clips[:, 0])
        of_still = tokens_of_transformers(name, model, clips[:, :1].expand(-1, 4, -1, -1, -1))
    assert wanted.shape == (3, 2 * 4 * 4, wanted.shape[2]) and wanted.std() > 0.1
    torch.testing.assert_close(found["last:tokens"], wanted, rtol=1e-5, atol=1e-5)
    for vectors in (found["features"], found["last:mean"], moved):
        torch.testing.assert_close(vectors, wanted.mean(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(still, of_still.mean(1), rtol=1e-5, atol=1e-5)  # an image is shown in every frame


def test_the_authors_names_of_videomae_hold_the_same_network(models, tmp_path):
    backbone = load_backbone(str(models("videomae")[1]))
    canonical = recognise(files.read(models("videomae")[1])).canonical
    rest = {"mask_token": torch.ones(1), "decoder.blocks.0.attn.q_bias": torch.ones(9)}
    torch.save({"model": {**load_table("videomae").from_canonical(dict(canonical)), **rest}}, tmp_path / "w.pth")
    again = load_backbone(str(tmp_path / "w.pth"), backbone=backbone.name)
    assert (again.format, again.weights_sha256) == ("videomae", backbone.weights_sha256)


def test_positions_that_are_computed_for_other_clips_are_told(models):
    folder = str(models("videomae")[1])
    backbone = load_backbone(folder)
    assert "positions" not in backbone.report.line()
    longer = load_backbone(folder, backbone=backbone.name.replace("frames=4", "frames=8"))
    told = "fixed positions computed anew for clips of 8 frames of 32 pixels (trained on 4 frames of 32 pixels)"
    assert told in longer.report.line()
    larger = dataclasses.replace(backbone.preprocessing, resize=48, crop=(48, 48))
    fitted = built_for(dataclasses.replace(backbone, preprocessing=larger))
    assert "clips of 4 frames of 48 pixels (trained on 4 frames of 32 pixels)" in fitted.report.line()
    rotary = load_backbone(
        str(models("vjepa2")[1]), backbone=f"vjepa2_large,{SMALL.replace('depth=2', 'depth=2,mlp_ratio=2')},frames=6"
    )
    assert "positions computed" not in rotary.report.line()


def test_files_of_another_number_of_blocks_or_tubelets_are_refused(models, tmp_path):
    backbone = load_backbone(str(models("videomae")[1]))
    tensors = safetensors.torch.load_file(models("videomae")[1] / "model.safetensors")
    safetensors.torch.save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match="blocks"):
        load_backbone(str(tmp_path / "w.safetensors"), backbone=backbone.name.replace("depth=2", "depth=3"))
    with pytest.raises(UsageError, match="clips of 5 frames of 32 pixels are not cut into tubelets of 2 frames of 8"):
        build(backbone.name.replace("frames=4", "frames=5"))


@pytest.fixture
def users(tmp_path, monkeypatch):
    """Name of a network of clips in a user's module."""
    (tmp_path / "my_clips.py").write_text(USERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_clips", raising=False)
    return "my_clips:make"


@pytest.mark.parametrize(
    ("name", "query"),
    [
        (TINY, "frames=4"),
        (TINY, "frames=4&stride=2&clips=2"),
        (TINY, "frames=4&crops=2"),
        ("my_clips:make", "frames=4&stride=2&clips=2"),
    ],
)
def test_features_of_a_video_are_the_mean_over_its_clips(tmp_path, users, name, query):
    write_classes(tmp_path / "videos", train=2, test=1)
    videos = open_data(f"{tmp_path / 'videos'}/?{query}")["train"]
    backbone = build(name)
    settings = ExtractSettings(torch.device("cpu"), batch_size=3, workers=0)
    layers = resolve_layers(backbone, ())
    found = (
        extract(backbone, videos, layers, settings, root=tmp_path / "store", split="train")
        .features[backbone.default_layer]
        .x
    )
    from sslbench.data.decode import transforms
    from sslbench.data.loading import loader

    batch = next(
        loader.batches(videos, np.arange(len(videos)), backbone.preprocessing, batch_size=len(videos), workers=0)
    )
    frames = transforms.normalise(
        batch.images.unflatten(1, (-1, 3)).flatten(0, 1), backbone.preprocessing, torch.float32
    )
    clips = frames.unflatten(0, (len(videos), -1, 4)).flatten(0, 1)
    with torch.no_grad():
        wanted = backbone.module(clips.transpose(1, 2)).unflatten(0, (len(videos), -1)).mean(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_clips_tell_directions_of_motion_and_shuffled_labels_are_at_chance(tmp_path, capsys):
    """In every frame alone, a square that moves to the left looks like one that moves to the right."""
    write_classes(tmp_path / "videos", train=24, test=24)
    network = "videomae_small,embed_dim=48,depth=1,num_heads=3,patch_size=8,img_size=32,frames=8"
    rows = []
    for part in ("train", "test"):
        # Each label has as many videos of either direction, so that no other rule holds by chance.
        for path, label in zip(
            sorted((tmp_path / "videos" / part).rglob("*.mp4")), ["left", "right"] * 24, strict=True
        ):
            rows.append(f"{path.relative_to(tmp_path)},{label},{part}")
    (tmp_path / "shuffled.csv").write_text("\n".join(["path,label,split", *rows]))
    scores = {}
    for name, place in (("true", "videos/"), ("shuffled", "shuffled.csv")):
        words = ["--weights", "random", "--backbone", network, "--data", f"{tmp_path / place}?frames=8&stride=1"]
        assert code_of("eval", "linear", *words, "--out", tmp_path / name) == 0
        (file,) = (tmp_path / name / "linear").glob("videomae*.json")
        record = json.loads(file.read_text())
        scores[name] = record["metrics"]["top1"]
        assert record["floors"]["pixels"]["top1"] < 75
    assert scores["true"]["value"] > 85 and scores["true"]["low"] > 60
    assert scores["shuffled"]["low"] < 50 < scores["shuffled"]["high"]


def test_networks_of_clips_of_the_users_are_evaluated(tmp_path, users, capsys):
    write_classes(tmp_path / "videos", train=4, test=2)
    words = ["--weights", "random", "--backbone", users, "--data", f"{tmp_path / 'videos'}/?frames=4&stride=2&clips=2"]
    assert code_of("eval", "knn", *words, "--out", tmp_path) == 0
    heads = ["linear-online", "head=attentive", "epochs=1", "lr=0.001", "--layers", "body"]
    assert code_of("eval", *heads, *words, "--out", tmp_path) == 0
    assert json.loads(next((tmp_path / "linear-online").glob("*.json")).read_text())["metrics"]["top1"]["n"] == 4
    assert code_of("eval", "knn", *words[:2], "--backbone", "my_clips:spoilt", *words[4:]) == 1
    assert "'frames' of my_clips:spoilt should be the number of frames of a clip, not '4'" in capsys.readouterr().err


def test_clips_of_another_length_are_refused_before_anything_is_decoded(tmp_path, capsys):
    write_classes(tmp_path / "videos", train=2, test=1)
    words = ["--weights", "random", "--backbone", TINY, "--data", f"{tmp_path / 'videos'}/?frames=6"]
    assert code_of("eval", "knn", *words) == 2
    error = capsys.readouterr().err
    assert "takes clips of 4 frames, and those of" in error and "have 6" in error and "?frames=4" in error


def test_clips_have_no_maps_of_an_image():
    backbone = load_backbone("random", backbone=f"vjepa2_large,{SMALL},frames=8")
    for maps in (lambda: resolve_grids(backbone, ["last"], (32, 32)), lambda: DenseEncoder(backbone, ())):
        with pytest.raises(UsageError, match="tokens of clips, which are no map of an image"):
            maps()


def test_an_exported_network_of_clips_takes_any_number_of_clips():
    module = build(TINY).module.eval()
    clips = torch.rand(3, 4 * 3, 16, 16)
    size = {0: torch.export.Dim("batch", min=1, max=64)}
    program = torch.export.export(module, (clips,), dynamic_shapes=(size,))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(clips[:1]), module(clips[:1]))
