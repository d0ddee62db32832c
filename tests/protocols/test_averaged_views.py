"""Probabilities of videos averaged over clips and crops, against a loop by hand; predictions of them."""

import csv
import json

import numpy as np
import pytest
import torch
from helpers.clips import moving, write_video

from sslbench.backbones.build import build
from sslbench.backbones.classifier import read_classifier
from sslbench.backbones.speed import prepare
from sslbench.cli.main import main
from sslbench.data.decode.transforms import normalise
from sslbench.data.loading import loader
from sslbench.data.open import open_data
from sslbench.protocols._parts.views import over_views
from sslbench.weights.reading import files

NETWORK = "videomae_small,embed_dim=24,depth=2,num_heads=3,patch_size=8,img_size=16,frames=4"
WEIGHTS = ["--weights", "random", "--backbone", NETWORK]
SAMPLING = "frames=4&stride=2&clips=2&crops=2"
PROBES = {
    "linear": ["c=10"],
    "linear-online": ["head=attentive", "epochs=3", "lr=0.3", "lr_scaling=none", "--layers", "last"],
}


def code_of(*words):
    """Run a command; return its exit code."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code or 0


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Folder of wide videos of three classes, whose crops differ."""
    root = tmp_path_factory.mktemp("views") / "videos"
    for number in range(12):
        split, direction = ("train", "test")[number % 2], ("left", "right", "up")[number // 4]
        halves = moving(direction, number), moving("down", number)
        frames = [np.concatenate(both, axis=1) for both in zip(*halves, strict=True)]
        write_video(root / split / direction / f"{number}.mp4", frames)
    return root


def by_hand(backbone, classifier, source, average):
    """Return probabilities of videos, (N, 3), by a loop over their views."""
    encode = prepare(backbone, (classifier.layer,), device=torch.device("cpu"))
    rows = np.arange(len(source))
    (batch,) = loader.batches(source, rows, backbone.preprocessing, batch_size=len(rows), workers=0)
    found = []
    for frames in normalise(batch.images, backbone.preprocessing, torch.float32):
        parts = frames.reshape(2, 2, 4 * 3, 16, 16)
        views = {
            "views": [parts[clip, crop] for clip in range(2) for crop in range(2)],
            "crops": [torch.cat([parts[0, crop], parts[1, crop]]) for crop in range(2)],
        }[average]
        with torch.no_grad():
            outputs = [classifier.head(encode(view[None])[classifier.layer.text]).softmax(1) for view in views]
        found.append(torch.cat(outputs).mean(0))
    return torch.stack(found).numpy()


@pytest.mark.parametrize("average", ["crops", "views"])
@pytest.mark.parametrize("protocol", PROBES)
def test_probabilities_are_averaged_as_by_hand(videos, tmp_path, protocol, average):
    places = ["--data", f"{videos}/?frames=4", "--test-data", f"{videos}/?{SAMPLING}&average={average}"]
    assert code_of("eval", protocol, *PROBES[protocol], *WEIGHTS, *places, "--out", tmp_path) == 0
    (file,) = (tmp_path / protocol).glob("*.probe.torch")
    record = json.loads(file.with_name(file.name.replace("probe.torch", "json")).read_text())
    assert record["metrics"]["top1"]["n"] == 6
    assert f"2 crops, probabilities averaged over {average}" in " ".join(record["notes"])
    backbone, source = build(NETWORK), open_data(f"{videos}/?{SAMPLING}")["test"]
    wanted = by_hand(backbone, read_classifier(files.read(file), backbone), source, average)
    scores = np.load(file.with_name(record["scores_file"]))["scores"]
    np.testing.assert_allclose(torch.from_numpy(scores).softmax(1), wanted, rtol=1e-4, atol=1e-6)
    table, words = tmp_path / "p.csv", ["predict", *WEIGHTS, "--probe", file]
    assert code_of(*words, "--data", f"{videos}/test/?{SAMPLING}&average={average}", "--csv", table) == 0
    likeliest = [float(row["probability"]) for row in csv.DictReader(table.open())]
    np.testing.assert_allclose(likeliest, wanted.max(1), rtol=1e-4)


def test_predict_refuses_clips_of_another_length(videos, tmp_path, capsys):
    assert code_of("eval", "linear", "c=1", *WEIGHTS, "--data", f"{videos}/?frames=4", "--out", tmp_path) == 0
    (probe,) = tmp_path.glob("linear/*.probe.torch")
    table = tmp_path / "p.csv"
    assert code_of("predict", *WEIGHTS, "--probe", probe, "--data", f"{videos}/test/?frames=6", "--csv", table) == 2
    assert "takes clips of 4 frames, and those of" in capsys.readouterr().err and not table.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "knn"], "knn averages no probabilities of one class each"),
        (["extract"], "has no effect on features, which are one row per video"),
    ],
)
def test_where_no_probabilities_are_averaged_it_is_refused(videos, tmp_path, capsys, words, message):
    assert code_of(*words, *WEIGHTS, "--data", f"{videos}/?{SAMPLING}&average=views") == 2
    assert message in capsys.readouterr().err


def test_an_average_without_effect_is_refused(videos, capsys):
    assert code_of("eval", "linear", *WEIGHTS, "--data", f"{videos}/?frames=4&average=views") == 2
    assert "average=views has no effect on one clip" in capsys.readouterr().err
    places = ["--data", f"{videos}/train/?{SAMPLING}&average=views", "--test-data", f"{videos}/test/?frames=4"]
    assert code_of("eval", "linear", *WEIGHTS, *places) == 2
    assert "train/ has no effect: probabilities are averaged in test" in capsys.readouterr().err


def test_labels_that_do_not_exclude_each_other_have_the_mean_of_their_probabilities():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * 3
    found = over_views(logits, 3, single=False).sigmoid()
    torch.testing.assert_close(found, logits.sigmoid().reshape(2, 3, 4).mean(1))
