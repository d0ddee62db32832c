"""Pictures of `sslbench show`: of features, of patches and of records."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers.browser import Browser
from helpers.clips import write_classes
from helpers.coloured_pictures import class_folders
from PIL import Image
from sklearn.decomposition import PCA
from sklearn.metrics import average_precision_score

from sslbench.backbones.dense import DenseEncoder
from sslbench.backbones.layers import resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.data.maps.colours import class_colours
from sslbench.errors import BackboneError
from sslbench.metrics.detection import Detections, Truth
from sslbench.results import records
from sslbench.show.detection import image_f1
from sslbench.show.encoded import attention_blocks, attention_input, has_attention, of_class_token, unfused
from sslbench.show.patches import fit_colours, foreground, grid_points, nearest_patches, similarities, unit_patches
from sslbench.show.predictions import image_quality, quality
from sslbench.show.record import choose
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers

NET = ("--weights", "random", "--backbone", "resnet18w0.125", "--no-floors")
COLOURS = {"blue": (30, 30, 200), "green": (30, 200, 30), "red": (200, 30, 30)}


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    class_folders(
        tmp_path / "photos",
        COLOURS,
        lambda c: rng.normal(0, 60, (20, 18, 3)) + list(COLOURS.values())[c],
        {"train": 6, "test": 4},
    )
    return tmp_path


def record_of(protocol):
    [path] = [p for p in Path("results", protocol).glob("*.json") if "predictions" not in p.name]
    return path


def test_best_median_and_worst_are_those_of_a_sort():
    values = np.random.default_rng(0).permutation(21).astype(float)
    best, median, worst = choose(values, 3)
    assert [values[r] for r in best.rows] == [20, 19, 18] and [values[r] for r in worst.rows] == [0, 1, 2]
    assert [values[r] for r in median.rows] == [11, 10, 9]
    few = [row for group in choose(values[:4], 3) for row in group.rows]
    assert sorted(few) == [0, 1, 2, 3]


def test_qualities_against_other_implementations():
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, (6, 5)).astype(np.int8), rng.normal(size=(6, 5))
    expected = [average_precision_score(y, s) if y.any() else np.nan for y, s in zip(labels, scores, strict=True)]
    np.testing.assert_allclose(quality(MultiLabel, labels, scores), expected)
    numbers = quality(Numbers, np.array([[1.0], [3.0]]), np.array([[1.0], [5.0]]))
    np.testing.assert_allclose(numbers, [0, -2])
    areas = np.array([[[2, 0], [4, 0], [2, 0]], [[1, 2], [2, 2], [1, 3]]]).reshape(2, -1)
    np.testing.assert_allclose(image_quality(areas), [0.5, (1 / 2 + 2 / 3) / 2])


def test_the_f_score_of_boxes():
    box = [0, 0, 10, 10]
    truth = Truth(
        3,
        ("a", "b"),
        np.array([0, 0, 1]),
        np.array([box, [20, 20, 30, 30], box], dtype=np.float32),
        np.array([0, 0, 1]),
        np.zeros(3, bool),
        np.array([False, False, False]),
        np.full(3, 100.0),
    )
    found = Detections(
        np.array([0, 0, 0, 1]),
        np.array([box, box, [20, 20, 30, 30], box], dtype=np.float32),
        np.array([0.9, 0.8, 0.3, 0.9], dtype=np.float32),
        np.array([0, 0, 0, 0]),
    )
    # image 0: one found, one found twice, one below the score; image 1: the wrong class; image 2: nothing to find
    np.testing.assert_allclose(image_f1(truth, found), [0.5, 0.0, 1.0])


@pytest.mark.parametrize("protocol", ["knn", "linear"])
def test_a_record_of_classes_is_shown_and_refused_when_its_data_changed(photos, sslbench, protocol):
    options = ("k=2",) if protocol == "knn" else ()
    code, _, err = sslbench("eval", protocol, *options, *NET, "--data", "photos", "--resize", "32", "--crop", "none")
    assert code == 0, err
    record = record_of(protocol)
    code, _, err = sslbench("show", protocol, record, "--limit", "2", "--out", "out")
    assert code == 0, err
    assert {f.name for f in Path("out").iterdir()} == {"best.png", "median.png", "worst.png", "index.html", "show.json"}
    page = Path("out/index.html").read_text()
    scores = records.read_scores(record)
    margin = quality(Classes, scores.labels, scores.scores)
    assert scores.ids[int(np.argmin(margin))] in page and "http" not in page
    assert json.loads(Path("out/show.json").read_text())["id"] == records.read(record).id

    code, _, err = sslbench("show", "svm", record, "--out", "out2")
    assert code == 2 and f"is a record of {protocol}, not of svm" in err
    Image.new("RGB", (18, 20)).save("photos/test/red/0.png")
    code, _, err = sslbench("show", record, "--out", "out2")
    assert code == 1 and "is not the data of" in err and "images or labels have changed" in err
    code, _, err = sslbench("show", record, "--data", "elsewhere", "--out", "out2")
    assert code == 2 and "cannot be used" in err and "elsewhere" in err
    record.with_suffix(".scores.npz").unlink()
    code, _, err = sslbench("show", record, "--out", "out2")
    assert code == 1 and "has no file of scores beside it" in err
    assert not Path("out2").exists()


SMALL = ("--data", "photos", "--resize", "32x32", "--crop", "none")
OTHER = {
    "finetune": (*SMALL, "epochs=1", "size=32"),
    "retrieval": SMALL,
    "similarity": ("--resize", "32", "--crop", "none", "--limit", "40"),
    "tracking": (),
    "robustness": (*SMALL, "corrupt=[brightness]", "severities=[1,2]"),
}


@pytest.mark.parametrize("protocol", OTHER)
def test_records_without_classes_of_single_images_have_pictures_too(photos, sslbench, protocol):
    code, _, err = sslbench("eval", protocol, *NET, *OTHER[protocol])
    assert code == 0, err
    code, _, err = sslbench("show", record_of(protocol), "--limit", "1", "--out", "out")
    assert code == 0 and len(list(Path("out").glob("*.png"))) >= 1, err
    if protocol == "similarity":
        assert "right candidate minus" in Path("out/index.html").read_text()


def test_records_of_further_sets_are_shown_with_their_data(photos, sslbench):
    shutil.copytree("photos/test", "further")
    Image.new("RGB", (18, 20)).save("further/red/0.png")
    sets = ("corrupt=[]", "rotations=[]", "scales=[]", "crops=[]", "sets={further: further}")
    assert sslbench("eval", "robustness", *NET, *SMALL, *sets)[0] == 0
    every = {records.read(file).data.test.name: file for file in Path("results/robustness").glob("*.json")}
    assert len(every) == 2
    for name, file in every.items():
        code, _, err = sslbench("show", file, "--limit", "1", "--out", "out")
        assert code == (name == "further") and ("--test-data" in err) == (name == "further"), err
    code, _, err = sslbench("show", every["further"], "--limit", "1", "--test-data", "further", "--out", "further_out")
    assert code == 0 and Path("further_out/worst.png").is_file(), err


def test_a_record_of_zero_shot_is_shown_without_its_texts_and_its_weights(photos, sslbench):
    np.savez("texts.npz", features=np.random.default_rng(0).normal(size=(3, 64)), names=list(COLOURS))
    assert sslbench("eval", "zero-shot", *NET, *SMALL, "text_features=texts.npz")[0] == 0
    Path("texts.npz").unlink()
    code, _, err = sslbench("show", record_of("zero-shot"), "--limit", "1", "--out", "out")
    assert code == 0 and Path("out/worst.png").is_file(), err


def test_a_record_of_all_features_together_names_the_picture_of_features(photos, sslbench):
    assert sslbench("eval", "geometry", *NET, *SMALL)[0] == 0
    code, _, err = sslbench("show", record_of("geometry"), "--out", "out")
    assert code == 1 and "scores all features together" in err and "show features" in err


def test_a_record_of_videos_is_shown_with_its_frames_and_their_patches_are_refused(tmp_path, sslbench, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "videos", 4, directions=("left", "right"))
    code, _, err = sslbench("eval", "knn", "k=1", *NET, "--data", "videos?frames=3", "--resize", "32", "--crop", "none")
    assert code == 0 and "videos/s)" in err, err
    code, _, err = sslbench("show", record_of("knn"), "--limit", "1", "--out", "out")
    assert code == 0 and "3 frames (spread over the video)" in err, err
    code, _, err = sslbench("show", *NET[:-1], "--data", "videos?frames=3", "--resize", "32", "--out", "out")
    assert code == 2 and "show of patches takes images" in err and "sslbench show RECORD.json" in err


def test_a_record_of_segmentation_is_predicted_again(photos, sslbench, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos / "cache"))
    code, _, err = sslbench("eval", "segmentation-knn", *NET, "--data", "kwcoco:shapes8-64", "--layers", "res4", "k=3")
    assert code == 0, err
    code, _, err = sslbench("show", "segmentation-knn", record_of("segmentation-knn"), "--limit", "1", "--out", "out")
    assert code == 0, err
    page = Path("out/index.html").read_text()
    assert "prediction" in page and "background" in page


def test_a_scatter_of_images_and_of_features(photos, sslbench, monkeypatch):
    code, _, err = sslbench(
        "show", "features", "--weights", "random", "--backbone", "resnet18w0.125", "--data", "photos", "--resize", "32",
        "--crop", "none", "--projection", "pca", "--out", "out",
    )  # fmt: skip
    assert code == 0, err
    page = Path("out/index.html").read_text()
    assert page.count("data:image/jpeg") == 12 and "red/0.png" in page and "http" not in page
    np.save("x.npy", np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32))
    Path("y.csv").write_text("label\n" + "\n".join("ab" * 6) + "\n")
    code, _, err = sslbench(
        "show", "features", "--features", "x.npy", "--labels", "y.csv", "--limit", "8", "--out", "out"
    )
    assert code == 0, err
    assert {f.name for f in Path("out").iterdir()} == {"scatter-features.png", "index.html", "show.json"}

    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = sslbench("show", "features", "--features", "x.npy", "--projection", "umap", "--out", "out2")
    assert code == 2 and "pip install 'sslbench[umap]'" in err
    code, _, err = sslbench("show", "features", "--labels", "y.csv")
    assert code == 2 and "--labels belongs to --features" in err


def test_definitions_are_printed_as_before(sslbench):
    code, out, _ = sslbench("show", "knn")
    assert code == 0 and "temperature=" in out
    code, _, err = sslbench("show", "knn", "--limit", "3")
    assert code == 2 and "--limit does not go with show knn" in err
    code, _, err = sslbench("show")
    assert code == 2 and "there is nothing to show" in err


CODE = [
    (lambda r: r["weights"].update(backbone="bomb_of_a_record:net"), "--backbone bomb_of_a_record:net"),
    (lambda r: r["protocol"].update(name="bomb_of_a_record.protocol"), "sslbench show bomb_of_a_record.protocol"),
    (lambda r: r["preprocessing"].update(decoder=["bomb_of_a_record.decode"]), "--decoder bomb_of_a_record.decode"),
    (lambda r: r["request"].update(data="bomb_of_a_record.source:x"), "--data bomb_of_a_record"),
]


def test_a_record_does_not_choose_code(photos, sslbench, monkeypatch):
    Path("bomb_of_a_record.py").write_text("raise SystemExit('the code of the record ran')\n")
    monkeypatch.syspath_prepend(str(photos))
    assert sslbench("eval", "knn", "k=2", *NET, "--data", "photos", "--resize", "32", "--crop", "none")[0] == 0
    record = record_of("knn")
    text = record.read_text()
    for change, remedy in CODE:
        content = json.loads(text)
        change(content)
        record.write_text(json.dumps(content))
        code, _, err = sslbench("show", record, "--out", "out")
        assert code in (1, 2) and "code named in a file is not run" in err and remedy in err
        assert "bomb_of_a_record" not in sys.modules


def test_a_record_is_inspected_as_one_and_shown_with_the_preprocessing_that_was_changed(sslbench, photos):
    code, _, err = sslbench("eval", "knn", *NET, "--data", "photos", "--resize", 24, "--crop", 24, "--no-overlaps")
    assert code == 0 and "changed: resize, crop)" in err, err
    record = record_of("knn")
    code, out, err = sslbench("inspect", record)
    assert code == 0 and f"sslbench show {record} " in out and f"sslbench compare {record} OTHER.json" in out, err
    assert f"{json.loads(record.read_text())['metrics']['top1']['value']:.2f} (95 % interval " in out
    assert sslbench("inspect", "results")[1].startswith("results: 1 result record of sslbench\n")
    code, _, err = sslbench("show", record, "--out", "shown")
    assert code == 0 and "changed: resize, crop)" in err, err


VIT = "timm:vit_tiny_patch16_224,embed_dim=48,depth=2,num_heads=3"


@pytest.fixture
def three_sizes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for name, size in (("a.png", (64, 96)), ("b.png", (80, 64)), ("c.png", (64, 64))):
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(tmp_path / "photos" / name)
    return tmp_path


def test_colours_are_those_of_a_pca_by_another_library():
    x = np.random.default_rng(0).normal(size=(200, 7)) * [5, 4, 3, 1, 1, 1, 1] + 2
    colours = fit_colours(x)
    other = PCA(3, svd_solver="full").fit(x)
    signs = np.sign((colours.components * other.components_).sum(axis=1))
    np.testing.assert_allclose(colours.components, other.components_ * signs[:, None], atol=1e-9)
    np.testing.assert_allclose(colours.explained, other.explained_variance_ratio_, atol=1e-9)
    np.testing.assert_allclose(colours.project(x), other.transform(x) * signs, atol=1e-8)


def test_signs_of_components_do_not_depend_on_those_of_the_features_order():
    x = np.random.default_rng(1).normal(size=(50, 5)) * [5, 4, 3, 1, 1]
    one, other = fit_colours(x), fit_colours(x[::-1])
    np.testing.assert_allclose(one.components, other.components, atol=1e-9)
    assert (one.components[np.arange(3), np.abs(one.components).argmax(axis=1)] > 0).all()


def test_two_channels_and_equal_patches_have_colours_too():
    assert fit_colours(np.eye(2)).rgb(np.eye(2)).shape == (2, 3)
    assert fit_colours(np.ones((5, 4))).rgb(np.ones((5, 4))).shape == (5, 3)


def test_the_foreground_is_the_side_away_from_the_borders():
    grid = np.zeros((6, 6, 3))
    grid[2:4, 2:4] = [3, 1, 0]
    [kept] = foreground([grid])
    assert kept.sum() == 4 and kept[2:4, 2:4].all()


@pytest.mark.parametrize("size", [(64, 64), (96, 64)])
def test_attention_is_softmax_of_queries_and_keys(size):
    torch.manual_seed(0)
    backbone = load_backbone("random", backbone=VIT, seed=0)
    images = torch.randn(2, 3, *size)
    found = DenseEncoder(unfused(backbone), [attention_input("blocks.1")])(images)["attention blocks.1"]

    grid = (size[0] // 16, size[1] // 16)
    net = timm.create_model(
        "vit_tiny_patch16_224", embed_dim=48, depth=2, num_heads=3, num_classes=0, img_size=size
    ).eval()
    # Resampled positions of the encoder: the second implementation gets the same.
    encoder = DenseEncoder(unfused(backbone), [attention_input("blocks.1")])
    encoder.for_size(size)
    net.load_state_dict({**backbone.module.state_dict(), "pos_embed": encoder._module.pos_embed})
    seen = []
    net.blocks[1].attn.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        net(images)
        qkv = net.blocks[1].attn.qkv(seen[0]).reshape(2, -1, 3, 3, 16)
        q, k = qkv[:, :, 0], qkv[:, :, 1]
        weights = (torch.einsum("bihd,bjhd->bhij", q, k) / 4).softmax(-1)
    torch.testing.assert_close(found, weights, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:3]), atol=1e-5, rtol=0)
    of_patches = of_class_token(found, grid)
    torch.testing.assert_close(of_patches.flatten(2), weights[:, :, 0, 1:], atol=1e-5, rtol=1e-4)
    assert backbone.module.blocks[1].attn.fused_attn  # the original is as it was


def test_blocks_of_layers_and_networks_without_attention():
    vit = load_backbone("random", backbone=VIT, seed=0)
    assert has_attention(vit)
    assert attention_blocks(vit, resolve_layers(vit, ["blocks.0"])) == ("blocks.0",)
    assert attention_blocks(vit, resolve_layers(vit, ["last", "blocks.0"])) == ("blocks.0", "blocks.1")
    resnet = load_backbone("random", backbone="resnet18w0.125", seed=0)
    assert not has_attention(resnet)
    with pytest.raises(BackboneError, match=r"resnet18w0\.125 is no vision transformer"):
        attention_blocks(resnet, ())


def test_the_nearest_patch_of_a_patch_is_itself_and_the_others_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    grids = [rng.normal(size=(h, w, 8)) for h, w in ((3, 4), (2, 5))]
    patches = [unit_patches(grid) for grid in grids]
    found = nearest_patches(patches[0], patches)
    assert found.patch[:, 0].tolist() == list(range(12))
    np.testing.assert_allclose(found.similarity[:, 0], 1, atol=1e-6)
    for i, query in enumerate(grids[0].reshape(-1, 8)):
        cosines = [query @ p / np.linalg.norm(query) / np.linalg.norm(p) for p in grids[1].reshape(-1, 8)]
        assert found.patch[i, 1] == np.argmax(cosines)
        np.testing.assert_allclose(similarities(patches[0][i], patches[1], (2, 5)).ravel(), cosines, atol=1e-6)


def test_points_of_a_page_are_bounded():
    for n in (1, 12, 64):
        points, grid = grid_points((60, 80), n)
        assert len(points) == grid[0] * grid[1] and len(points) * n * n <= 100_000


def test_colours_of_classes_differ():
    assert len({tuple(colour) for colour in class_colours(256).tolist()}) == 256


def test_a_page_of_patches_holds_all_images_and_needs_no_network(three_sizes, sslbench):
    words = ("--weights", "random", "--backbone", VIT, "--data", "photos", "--resize", "64", "--out", "out")
    code, _, err = sslbench("show", *words, "--point", "a.png:10,20", "--layers", "blocks.0,last")
    assert code == 0, err
    files = {"pca.png", "attention-blocks.0.png", "attention-blocks.1.png", "nearest-blocks.0.png", "nearest-last.png"}
    assert files | {"index.html", "show.json"} == {file.name for file in (three_sizes / "out").iterdir()}
    page = (three_sizes / "out" / "index.html").read_text()
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)|https?://|url\(", page)
    for name in ("a.png", "b.png", "c.png"):
        assert f'alt="{name}"' in page
    said = json.loads((three_sizes / "out" / "show.json").read_text())
    assert said["data"]["images"] == ["a.png", "b.png", "c.png"] and said["weights"]["sha256"]
    [own] = [row for row in said["nearest"] if row["image"] == "a.png" and row["layer"] == "last"]
    assert (own["row"], own["column"], own["grid"]) == (1, 0, [4, 6]) and own["cosine"] == 1.0

    code, _, err = sslbench("show", *words, "--views", "pca")  # an earlier folder is written anew
    assert code == 0 and {"pca.png", "index.html", "show.json"} == {f.name for f in (three_sizes / "out").iterdir()}
    (three_sizes / "out" / "mine.txt").write_text("x")
    (three_sizes / "out" / "show.json").unlink()
    code, _, err = sslbench("show", *words)
    assert code == 2 and "out holds other files" in err


def test_a_map_of_one_cell_gives_way_to_the_nearest_earlier_one(three_sizes, sslbench):
    words = (
        "--weights",
        "random",
        "--backbone",
        "resnet18w0.125",
        "--data",
        "photos",
        "--resize",
        "32",
        "--limit",
        "2",
    )
    code, _, err = sslbench("show", *words)
    assert code == 0 and "res5 has a map of 1 x 1 for images of 32 x 32 pixels, so res4 is shown" in err, err
    assert json.loads((three_sizes / "show" / "show.json").read_text())["layers"] == ["res4"]
    page = (three_sizes / "show" / "index.html").read_text()
    assert "res4 (res5 has a map of 1 x 1" in page and page.count("2 of 3") == 1 and "2 of photos" not in page
    code, _, err = sslbench("show", *words, "--layers", "res5")
    assert code == 0 and "map of 1 x 1" not in err
    code, _, err = sslbench("show", *words, "--resize", "64")
    assert json.loads((three_sizes / "show" / "show.json").read_text())["layers"] == ["res5"]


@pytest.mark.parametrize("dark", [False, True])
def test_a_page_of_pictures_fits_a_phone(three_sizes, sslbench, dark):
    Image.new("RGB", (64, 64)).save(three_sizes / "photos" / "d.png")
    with Browser() as browser:
        words = ("--weights", "random", "--backbone", VIT, "--data", "photos", "--resize", "64")
        for command in (("show",), ("show", "features", "--crop", "64", "--projection", "pca")):
            code, _, err = sslbench(*command, *words)
            assert code == 0, err
            browser.open(three_sizes / "show" / "index.html", width=390, dark=dark)
            assert browser.run("document.documentElement.scrollWidth") <= 390
            colour = browser.run("getComputedStyle(document.body).backgroundColor")
            assert (colour != "rgb(255, 255, 255)") == dark


BAD = [
    (("--point", "a.png:96,20"), "--point a.png:96,20 is outside the image, which is 96 x 64 pixels"),
    (("--point", "a.png"), "--point a.png: should be IMAGE:X,Y"),
    (("--point", "d.png:1,1"), "none of the 3 shown images is called 'd.png'"),
    (("--layers", "block.0"), "has no layer 'block.0'"),
    (("--views", "pac"), "there is no view 'pac'"),
    (("--crop", "32"), "--crop does not go with"),
    (("--projection", "pca"), "--projection does not go with"),
    (("--backbone", "resnet18w0.125", "--views", "attention"), "so there is no attention to show"),
]


def test_bad_input_of_patches_is_one_message(three_sizes, sslbench):
    wrong = []
    for more, message in BAD:
        backbone = () if "--backbone" in more else ("--backbone", VIT)
        code, _, err = sslbench("show", "--weights", "random", *backbone, "--data", "photos", "--resize", "64", *more)
        if code not in (1, 2) or message not in err or "Traceback" in err:
            wrong.append((more, code, err))
    assert wrong == []
    assert not (three_sizes / "show").exists()
