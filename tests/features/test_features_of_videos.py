"""Features of videos: the mean over their frames, each encoded as an image."""

import json

import numpy as np
import pytest
import torch
from helpers.clips import write_classes
from PIL import Image

from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.cli.main import main
from sslbench.data.decode.handlers import picture_decoder, picture_of
from sslbench.data.open import open_data
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract

NETWORK = "resnet_basic_1-1-1-1w0.125_cifar"


def code_of(*words):
    """Run a command; return its exit code."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code or 0


@pytest.mark.parametrize("query", ["frames=3", "frames=2&stride=2&clips=2"])
def test_features_of_a_video_are_the_mean_of_those_of_its_frames(tmp_path, query):
    write_classes(tmp_path / "videos", train=2, test=1)
    videos = open_data(f"{tmp_path / 'videos'}/?{query}")["train"]
    backbone = build(NETWORK)
    settings = ExtractSettings(torch.device("cpu"), batch_size=4, workers=0)
    layers = resolve_layers(backbone, ["res5avg", "res3"])
    found = extract(backbone, videos, layers, settings, root=tmp_path / "a", split="train").features
    decoder = picture_decoder(backbone.preprocessing, videos.images)
    for row in range(len(videos)):
        for number, frame in enumerate(picture_of(videos.images, row, decoder).image.split(3)):
            file = tmp_path / "frames" / f"{row}-{number}.png"
            file.parent.mkdir(exist_ok=True)
            Image.fromarray(frame.permute(1, 2, 0).numpy()).save(file)
    frames = open_data(f"{tmp_path / 'frames'}/")["all"]
    single = extract(backbone, frames, layers, settings, root=tmp_path / "b", split="all").features
    for layer in ("res5avg", "res3"):
        means = np.asarray(single[layer].x).reshape(len(videos), -1, single[layer].x.shape[1]).mean(1)
        np.testing.assert_allclose(found[layer].x, means, rtol=1e-4, atol=1e-5)


def test_an_evaluation_of_videos_has_intervals_and_floors(tmp_path, capsys):
    write_classes(tmp_path / "videos")
    data = f"{tmp_path / 'videos'}/?frames=2"
    words = ["--weights", "random", "--backbone", NETWORK, "--data", data, "--out", tmp_path]
    assert code_of("eval", "knn", *words) == 0
    (file,) = (tmp_path / "knn").glob("resnet_basic*.json")
    record = json.loads(file.read_text())
    assert record["metrics"]["top1"]["n"] == record["data"]["test"]["n"] == 8 and {"pixels", "majority"} <= set(
        record["floors"]
    )
    assert "2 frames (spread over the video) of each of 8 videos" in " ".join(record["notes"])


def test_heads_attend_to_the_tokens_of_all_frames(tmp_path, capsys):
    write_classes(tmp_path / "videos", train=3, test=2)
    network = "timm:vit_tiny_patch16_224,img_size=32,depth=2"
    words = ["eval", "linear-online", "head=attentive", "epochs=1", "lr=0.001", "--resize", "32", "--crop", "32"]
    words += ["--weights", "random", "--backbone", network, "--data", f"{tmp_path / 'videos'}/?frames=2"]
    assert code_of(*words, "--out", tmp_path) == 0


def test_protocols_of_images_refuse_videos(tmp_path, capsys):
    write_classes(tmp_path / "videos", train=2, test=1)
    words = ["--weights", "random", "--backbone", NETWORK, "--data", f"{tmp_path / 'videos'}/"]
    assert code_of("eval", "finetune", *words) == 2
    assert "finetune takes images, and" in capsys.readouterr().err
