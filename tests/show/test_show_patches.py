"""Colours, attention and nearest patches against second implementations."""

import json
import re

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from sklearn.decomposition import PCA

from sslbench.backbones.dense import DenseEncoder
from sslbench.backbones.layers import resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.cli.main import main
from sslbench.data.maps.colours import class_colours
from sslbench.errors import BackboneError
from sslbench.show.encoded import attention_blocks, attention_input, has_attention, of_class_token, unfused
from sslbench.show.patches import fit_colours, foreground, grid_points, nearest_patches, similarities, unit_patches

VIT = "timm:vit_tiny_patch16_224,embed_dim=48,depth=2,num_heads=3"


@pytest.fixture
def run(capsys):
    def command(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return command


@pytest.fixture
def photos(tmp_path, monkeypatch):
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
    encoder._for_size(size)
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


def test_a_page_of_patches_holds_all_images_and_needs_no_network(photos, run):
    words = ("--weights", "random", "--backbone", VIT, "--data", "photos", "--resize", "64", "--out", "out")
    code, _, err = run("show", *words, "--point", "a.png:10,20", "--layers", "blocks.0,last")
    assert code == 0, err
    files = {"pca.png", "attention-blocks.0.png", "attention-blocks.1.png", "nearest-blocks.0.png", "nearest-last.png"}
    assert files | {"index.html", "show.json"} == {file.name for file in (photos / "out").iterdir()}
    page = (photos / "out" / "index.html").read_text()
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)|https?://|url\(", page)
    for name in ("a.png", "b.png", "c.png"):
        assert f'alt="{name}"' in page
    said = json.loads((photos / "out" / "show.json").read_text())
    assert said["data"]["images"] == ["a.png", "b.png", "c.png"] and said["weights"]["sha256"]
    [own] = [row for row in said["nearest"] if row["image"] == "a.png" and row["layer"] == "last"]
    assert (own["row"], own["column"], own["grid"]) == (1, 0, [4, 6]) and own["cosine"] == 1.0

    code, _, err = run("show", *words, "--views", "pca")  # an earlier folder is written anew
    assert code == 0 and {"pca.png", "index.html", "show.json"} == {f.name for f in (photos / "out").iterdir()}
    (photos / "out" / "mine.txt").write_text("x")
    (photos / "out" / "show.json").unlink()
    code, _, err = run("show", *words)
    assert code == 2 and "out holds other files" in err


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


def test_bad_input_of_patches_is_one_message(photos, run):
    wrong = []
    for more, message in BAD:
        backbone = () if "--backbone" in more else ("--backbone", VIT)
        code, _, err = run("show", "--weights", "random", *backbone, "--data", "photos", "--resize", "64", *more)
        if code not in (1, 2) or message not in err or "Traceback" in err:
            wrong.append((more, code, err))
    assert wrong == []
    assert not (photos / "show").exists()
