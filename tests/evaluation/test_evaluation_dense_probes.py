"""Heads for maps beside their records: maps as files, exports, and what is refused."""

import csv
import json

import numpy as np
import pytest
import torch
from helpers.clips import counting, write_video
from PIL import Image

import sslbench
from sslbench import evaluation
from sslbench.backbones.build import build
from sslbench.data.open import open_as
from sslbench.errors import BackboneError, UsageError, WeightsError
from sslbench.evaluation import RunSettings
from sslbench.evaluation.predicted_maps import MapFiles
from sslbench.metrics.dense.segmentation import class_areas, segmentation_values
from sslbench.targets.label_maps import IGNORED, LabelMaps
from sslbench.targets.pixel_values import Depth
from sslbench.weights import save

RUN = RunSettings(device="cpu", workers=0, batch_size=8, floors=False)
RESNET = "resnet_basic_1-1-1-1w0.125"
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=4,embed_dim=48,num_heads=3"
SHORT = {"steps": 20, "warmup_steps": 1, "batch_size": 4, "lr": [0.01], "size": 32, "crop": [32, 32], "window": None}
CLASSES = ["größer", "=rot", "12 grau"]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Images of sizes that no patch divides with label maps, and two weights files."""
    root, rng = tmp_path_factory.mktemp("dense"), np.random.default_rng(0)
    for part, n in (("train", 6), ("val", 5)):
        for folder in ("images", "masks"):
            (root / "data" / folder / part / "a").mkdir(parents=True)
        for i in range(n):
            labels = np.kron(rng.integers(0, 3, (3, 4)), np.ones((11, 9), dtype=int))[: 30 + i]
            pixels = np.array([(40, 40, 200), (200, 40, 40), (120, 120, 120)])[labels]
            pixels = (pixels + rng.normal(0, 30, pixels.shape)).clip(0, 255).astype(np.uint8)
            labels[0] = 255
            Image.fromarray(pixels).save(root / "data" / "images" / part / "a" / f"{i}.jpg", quality=95)
            Image.fromarray(labels.astype(np.uint8)).save(root / "data" / "masks" / part / "a" / f"{i}.png")
    (root / "data" / "classes.json").write_text(json.dumps(CLASSES))
    for name, backbone in (("resnet", RESNET), ("vit", VIT)):
        built = build(backbone, seed=3)
        save.save(root / f"{name}.torch", built.module.state_dict(), backbone=built.name, metadata={})
    return root


def trained(
    given,
    network="resnet",
    layers=("res4",),
    data="data?ignore=255",
    protocol="segmentation",
    pre=None,
    **settings,
):
    task = evaluation.make_task(protocol, {**SHORT, **settings})
    request = evaluation.Request(
        str(given / f"{network}.torch"), f"{given}/{data}", (task,), layers=layers, preprocessing=pre or {}
    )
    results = evaluation.evaluate(evaluation.prepare(request, RUN), store=None, out=given / "results", command="test")
    return [(result, result.file.parent / result.weights_file) for result in results]


@pytest.fixture(scope="module")
def probe(given):
    [(_, found)] = trained(given)
    return found


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def scored(place, truth):
    """The mIoU of label maps against others, from their files alone."""
    found, wanted = open_as(place, LabelMaps)["val"], open_as(truth, LabelMaps)["val"]
    assert found.target.classes == wanted.target.classes and found.ids == wanted.ids
    areas = 0
    for index in range(len(wanted)):
        predicted, label = (part.target.maps.read_map(index).semantic for part in (found, wanted))
        areas = areas + class_areas(predicted, label, len(wanted.target.classes), ignore=(IGNORED,))
    return 100 * float(segmentation_values(areas)[0])


WINDOWS = {"window": [24, 24], "stride": [16, 16], "scales": [1.0, 1.5], "flip_test": True}
CASES = {
    "rows of layers": ("resnet", ("res3", "res4"), {"upsample": 4, "cls": False}),
    "joined layers": ("resnet", ("concat(res3,res4,res5)",), {"head": "fpn", "width": 16}),
    "last blocks": ("vit", (), {"blocks": [1, 3], "cls": True, "lr": [0.01, 0.001]}),
    "blocks of a pyramid": ("vit", (), {"raw_blocks": "spread4", "head": "upernet", "width": 16, "norm": False}),
    "windows, scales and flips": (
        "vit",
        ("blocks.1",),
        {"head": "conv", "width": 16, **WINDOWS, "pre": {"mean": [0.3, 0.4, 0.5]}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_maps_read_back_as_label_maps_have_the_score_of_the_record(given, tmp_path, case):
    network, layers, settings = CASES[case]
    for number, (result, file) in enumerate(trained(given, network, layers, **settings)):
        maps, out = tmp_path / f"maps{number}", tmp_path / f"{number}.csv"
        counts = sslbench.predict(given / f"{network}.torch", given / "data", out, probe=file, maps=maps, run=RUN)
        assert (counts.predicted, counts.unreadable) == (11, 0)
        back = f"{maps}?images={given}/data/images&maps=."
        assert all(len(np.unique(np.asarray(Image.open(path)))) > 1 for path in maps.rglob("*.png"))
        assert scored(back, f"{given}/data?ignore=255") == pytest.approx(result.metrics["mIoU"].value, abs=1e-9)
        assert {row["map"] for row in rows_of(out)} == {str(path.relative_to(maps)) for path in maps.rglob("*.png")}, (
            "every map stands in the table"
        )
        report = sslbench.export(given / f"{network}.torch", tmp_path / f"{number}.pt2", probe=file)
        side = 24 if "window" in settings else 32
        assert (report.output, report.output_shape, report.shape) == ("maps", (3, side, side), (3, side, side))
        assert report.difference < 1e-4
    with Image.open(maps / "val" / "a" / "0.png") as picture:
        assert picture.mode == "P" and picture.getpalette()[3:6] == [128, 0, 0]


def test_an_exported_head_gives_the_maps_of_its_record_in_onnxruntime(given, tmp_path, probe):
    for module in ("onnx", "onnxscript"):
        pytest.importorskip(module)
    runtime = pytest.importorskip("onnxruntime")
    report = sslbench.export(given / "resnet.torch", tmp_path / "net.onnx", probe=probe)
    session = runtime.InferenceSession(report.path, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    assert (facts["protocol"], facts["layer"], json.loads(facts["classes"])) == ("segmentation", "res4", CLASSES)
    pixels = np.random.default_rng(0).integers(0, 255, (32, 32, 3)).astype(np.uint8)
    (tmp_path / "photos").mkdir()
    Image.fromarray(pixels).save(tmp_path / "photos" / "0.png")
    sslbench.predict(
        given / "resnet.torch", tmp_path / "photos", tmp_path / "out.csv", probe=probe, maps=tmp_path / "maps", run=RUN
    )
    mean, std = (np.array(values, np.float32) for values in (report.preprocessing.mean, report.preprocessing.std))
    images = ((pixels / np.float32(255) - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)
    (scores,) = session.run(["maps"], {"images": images})
    np.testing.assert_array_equal(scores[0].argmax(0), np.asarray(Image.open(tmp_path / "maps" / "0.png")))


def test_a_head_that_cannot_be_exported_is_one_message(given, tmp_path, probe, monkeypatch):
    def fails(*_):
        raise RuntimeError("no such operator")

    monkeypatch.setattr("sslbench.backbones.export._write_pt2", fails)
    with pytest.raises(BackboneError, match="cannot be exported: RuntimeError: no such operator"):
        sslbench.export(given / "resnet.torch", tmp_path / "net.pt2", probe=probe)
    with pytest.raises(UsageError, match="has no effect with probe="):
        sslbench.export(given / "resnet.torch", tmp_path / "net.pt2", probe=probe, layer="res4")
    assert not list(tmp_path.iterdir())


def test_images_without_maps_and_unreadable_ones_are_predicted_as_they_are(given, tmp_path, probe):
    photos = tmp_path / "photos"
    for name in ("x/1.png", "x/1.jpg", "y/2.png"):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 50, 3), 90, np.uint8)).save(photos / name)
    (photos / "y" / "3.png").write_bytes(b"nothing")
    counts = sslbench.predict(
        given / "resnet.torch", photos, tmp_path / "out.csv", probe=probe, maps=tmp_path / "maps", run=RUN
    )
    assert (counts.predicted, counts.unreadable) == (3, 1)
    rows = {row["id"]: row for row in rows_of(tmp_path / "out.csv")}
    assert rows["y/3.png"]["error"] and not rows["y/3.png"]["map"]
    names = [row["map"] for row in rows.values() if row["map"]]
    assert len(set(names)) == 3 and "y/2.png" in names, "two images of one name have maps of two"
    for name in names:
        assert Image.open(tmp_path / "maps" / name).size == (50, 20)


def test_more_classes_than_a_palette_has_are_numbers_of_16_bits(tmp_path):
    photo = tmp_path / "photos" / "0.png"
    photo.parent.mkdir()
    Image.fromarray(np.full((4, 5, 3), 90, np.uint8)).save(photo)
    (tmp_path / "maps").mkdir()
    files = MapFiles(tmp_path / "maps", {}, [f"class {i}" for i in range(300)])
    classes = np.arange(20, dtype=np.uint16).reshape(4, 5) + 270
    assert files.write("all", "0.png", classes) == "0.png"
    (back,) = open_as(f"{tmp_path}/maps?images={tmp_path}/photos&maps=.", LabelMaps).values()
    assert back.target.classes[299] == "class 299"
    np.testing.assert_array_equal(back.target.maps.read_map(0).semantic, classes)


def test_videos_are_refused(given, tmp_path, probe):
    write_video(tmp_path / "videos" / "a" / "1.mp4", counting(8))
    with pytest.raises(UsageError, match="has videos, and maps are of images"):
        sslbench.predict(
            given / "resnet.torch", tmp_path / "videos", tmp_path / "o.csv", probe=probe, maps=tmp_path / "m", run=RUN
        )


def test_nothing_half_written_is_left(given, tmp_path, probe, monkeypatch):
    common = (given / "resnet.torch", given / "data", tmp_path / "out.csv")
    write, written = MapFiles.write, []

    def full(self, split, sample, values):
        written.append(sample)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return write(self, split, sample, values)

    monkeypatch.setattr(MapFiles, "write", full)
    with pytest.raises(UsageError, match=r"cannot write .*maps: No space left"):
        sslbench.predict(*common, probe=probe, maps=tmp_path / "maps", run=RUN)
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.png").write_bytes(b"mine")
    with pytest.raises(UsageError, match="full exists already and is not empty"):
        sslbench.predict(*common, probe=probe, maps=tmp_path / "full", run=RUN)
    (tmp_path / "empty").mkdir()
    for place, maps in ((tmp_path / "empty" / "out.csv", tmp_path / "empty"), (tmp_path / "new", tmp_path / "new")):
        with pytest.raises(UsageError, match=r"lies in .*, which is written as a whole"):
            sslbench.predict(*common[:2], place, probe=probe, maps=maps, run=RUN)
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UsageError, match="is the current folder"):
        sslbench.predict(*common, probe=probe, maps=".", run=RUN)
    image = given / "data" / "images" / "val" / "a" / "0.jpg"
    with pytest.raises(UsageError, match="the predictions would replace it"):
        sslbench.predict(*common[:2], image, probe=probe, maps=tmp_path / "maps", run=RUN)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "full", "mine.png"]


def test_what_has_no_effect_on_maps_is_refused(given, tmp_path, probe):
    common = (given / "resnet.torch", given / "data", tmp_path / "out.csv")
    with pytest.raises(UsageError, match=r"(?s)predicts maps of pixels.*maps="):
        sslbench.predict(*common, probe=probe, run=RUN)
    for beside in ({"top_k": 2}, {"threshold": 0.3}, {"classes": ["a", "b", "c"]}):
        with pytest.raises(UsageError, match="have no effect on the maps"):
            sslbench.predict(*common, probe=probe, maps=tmp_path / "maps", run=RUN, **beside)
    for name, value in (("resize", 64), ("mean", [0.1, 0.1, 0.1]), ("interpolation", "nearest")):
        with pytest.raises(UsageError, match=f"fixes the preprocessing of its images; {name} would change it"):
            sslbench.predict(*common, probe=probe, maps=tmp_path / "maps", run=RUN, preprocessing={name: value})
    task = evaluation.make_task("linear", {"c": [1.0]})
    request = evaluation.Request(str(given / "resnet.torch"), "sklearn:digits", (task,), limit=40)
    (result,) = evaluation.evaluate(
        evaluation.prepare(request, RUN), store=tmp_path / "store", out=given / "results", command="test"
    )
    linear = result.file.parent / result.weights_file
    with pytest.raises(UsageError, match="has no effect on a classifier"):
        sslbench.predict(
            given / "resnet.torch", "sklearn:digits", tmp_path / "out.csv", probe=linear, maps="m", run=RUN
        )
    _depths(given)
    [(_, other)] = trained(given, protocol="depth", data="depths", bins=8)
    with pytest.raises(UsageError, match="has no folders images/ and depth/"):
        sslbench.predict(*common, probe=other, maps=tmp_path / "maps", run=RUN)
    assert not (tmp_path / "out.csv").exists() and not (tmp_path / "maps").exists()


def _depths(given):
    """Write images/ with depth/, of one plane each."""
    for part in ("train", "val"):
        for folder in ("images", "depth"):
            (given / "depths" / folder / part).mkdir(parents=True, exist_ok=True)
        for i in range(4):
            Image.fromarray(np.full((30, 40, 3), 40 * i + len(part), np.uint8)).save(
                given / f"depths/images/{part}/{i}.png"
            )
            plane = 1 + i + np.linspace(0, 1, 40, dtype=np.float32) * np.ones((30, 1), np.float32)
            np.save(given / f"depths/depth/{part}/{i}.npy", plane)


def test_depths_read_back_are_depths(given, tmp_path):
    _depths(given)
    [(_, file)] = trained(given, protocol="depth", data="depths", bins=8)
    sslbench.predict(
        given / "resnet.torch", given / "depths", tmp_path / "o.csv", probe=file, maps=tmp_path / "maps", run=RUN
    )
    back = open_as(f"{tmp_path}/maps?images={given}/depths/images&depth=.", Depth)["val"]
    values = back.target.pixels.read_values(0)
    assert values.shape == (30, 40, 1) and 1 <= values.min() <= values.max() <= 6


def test_a_head_of_other_weights_or_in_another_file_is_refused(given, tmp_path, probe):
    common = (given / "data", tmp_path / "out.csv")
    other = build(RESNET, seed=4)
    path = save.save(tmp_path / "other.torch", other.module.state_dict(), backbone=other.name, metadata={})
    for weights in (path, given / "vit.torch"):
        with pytest.raises(WeightsError, match=r"(?s)not trained on features of .*belongs to .*resnet.torch"):
            sslbench.predict(weights, *common, probe=probe, maps=tmp_path / "maps", run=RUN)
        with pytest.raises(WeightsError, match="not trained on features of"):
            sslbench.export(weights, tmp_path / "net.pt2", probe=probe)
    with pytest.raises(WeightsError, match=r"(?s)is a probe, without the backbone.*--probe"):
        sslbench.load_backbone(str(probe))
    (tmp_path / "cut.torch").write_bytes(probe.read_bytes()[:900])
    with pytest.raises(WeightsError, match=r"cut\.torch"):
        sslbench.predict(given / "resnet.torch", *common, probe=tmp_path / "cut.torch", maps=tmp_path / "maps", run=RUN)


LIES = {
    "other layers": (("layers", ["res3"]), "give no row 'res4'"),
    "layers that there are not": (("layers", ["blocks.11"]), "blocks.11"),
    "a width that the tensors have not": (("settings", {"head": "conv", "width": 10**9}), "of more numbers than"),
    "another head": (("settings", {"head": "conv", "width": 2}), "heads"),
    "other classes": (("task", {"classes": ["a", "b"]}), "heads"),
    "no classes": (("task", {}), "task is incomplete"),
    "an unknown fact": (("task", {"classes": ["a"], "code": 1}), "unknown key 'code'"),
    "a setting that there is not": (("settings", {"blanket": 1}), "unknown key 'blanket'"),
    "sizes that fill the memory": (("sizes", {"short_side": 10**6}), "pixels at all scales"),
    "scales that fill the memory": (("settings", {"scales": [1e6]}), "pixels at all scales"),
    "steps that never end": (("sizes", {"stride": [0, 0]}), "pixels at all scales"),
    "no pixel": (("sizes", {"short_side": 0}), "pixels at all scales"),
    "scales that leave no pixel": (("settings", {"scales": [1e-9]}), "pixels at all scales"),
    "windows with gaps": (("sizes", {"window": [16, 16], "stride": [20, 16]}), "leaves gaps between windows"),
}


@pytest.mark.parametrize("case", LIES)
def test_a_file_that_lies_about_its_head_is_one_message(given, tmp_path, probe, case):
    (key, value), words = LIES[case]
    content = torch.load(probe, weights_only=True)
    entry = json.loads(content["metadata"]["dense"])
    merged = {**entry[key], **value} if key in ("settings", "sizes") else value
    content["metadata"]["dense"] = json.dumps({**entry, key: merged})
    torch.save(content, tmp_path / "lie.torch")
    with pytest.raises(WeightsError, match=words):
        sslbench.predict(
            given / "resnet.torch", given / "data", tmp_path / "o.csv", probe=tmp_path / "lie.torch", maps="m", run=RUN
        )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("os", "was trained by 'os', which is neither built in nor installed"),
        ("my_heads.of_maps", "which is neither built in nor installed"),
        ("linear", "linear trains no heads for maps"),
        (None, "neither built in nor installed"),
    ],
)
def test_a_file_never_chooses_the_code_that_runs(given, tmp_path, probe, monkeypatch, name, words):
    (tmp_path / "my_heads").mkdir()
    (tmp_path / "my_heads" / "of_maps.py").write_text("raise SystemExit('run')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    content = torch.load(probe, weights_only=True)
    content["metadata"]["method"] = name
    entry = json.loads(content["metadata"]["dense"])
    entry["settings"] |= {"optimizer": "my_heads.of_maps", "betas": [0.5, 0.9]}  # some optimizers take no betas
    content["metadata"]["dense"] = json.dumps(entry)
    torch.save(content, tmp_path / "lie.torch")
    common = (given / "resnet.torch", given / "data", tmp_path / "o.csv")
    with pytest.raises(WeightsError, match=words):
        sslbench.predict(*common, probe=tmp_path / "lie.torch", maps=tmp_path / "m", run=RUN)
    content["metadata"]["method"] = "segmentation"
    torch.save(content, tmp_path / "lie.torch")
    sslbench.predict(*common, probe=tmp_path / "lie.torch", maps=tmp_path / "m", run=RUN)


def test_images_that_no_class_folder_holds_are_told(given, tmp_path, probe, caplog):
    for name in ("a.png", "sub/b.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40)).save(tmp_path / "photos" / name)
    with caplog.at_level("WARNING", "sslbench"):
        sslbench.predict(
            given / "resnet.torch", tmp_path / "photos", tmp_path / "o.csv", probe=probe, maps=tmp_path / "m", run=RUN
        )
    assert "1 image outside the class folders left out: a.png" in caplog.text
