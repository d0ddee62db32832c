"""Discovery of objects and salient regions, against loops over patches and pixels."""

import numpy as np
import pytest
import timm
import torch
from helpers.targets import bright_objects, filled, write_manifest
from PIL import Image
from torch import nn

from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.data.objects import with_objects
from sslbench.data.open import open_as
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import ImageInputs, discovery, saliency
from sslbench.protocols._parts.objects import _sizes, searched_maps
from sslbench.runtime.seeds import seeded
from sslbench.targets.label_maps import Foreground
from sslbench.targets.objects import Boxes

PLAIN = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
MODULES = {"boxes": discovery, "mask": saliency}


def colours():
    """A network whose map is the mean colour of cells of 4 x 4 pixels."""
    with seeded(0):
        conv = nn.Conv2d(3, 3, 4, stride=4, bias=False)
        conv.weight.data = torch.eye(3)[:, :, None, None].expand(3, 3, 4, 4) / 16
        module = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return from_module("colours", module.eval().requires_grad_(False), PLAIN)


def small_vit():
    with seeded(0):
        module = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=0
        )
    return from_module("vit", module.eval().requires_grad_(False), PLAIN)


def run(module, backbone, layers, source, folder, **settings):
    chosen = module.Settings(**settings)
    module.PROTOCOL.kind.check(chosen, source.target)
    layers = resolve_layers(backbone, layers)
    engine = ExtractSettings(torch.device("cpu"), workers=0)
    rows = module.PROTOCOL.kind.rows(backbone, layers, source, chosen, seed=0)
    found = module.PROTOCOL.kind.run(ImageInputs(chosen, 0, source, source, backbone, layers, engine, folder, None))
    assert tuple(found) == rows
    return found[rows[0]]


@pytest.mark.parametrize("method", ["lost", "tokencut"])
@pytest.mark.parametrize("kind", ["boxes", "mask"])
def test_an_object_of_its_own_colour_is_found_exactly(kind, method, tmp_path):
    source = bright_objects(12, 1, kind=kind)
    outcome = run(MODULES[kind], colours(), ["0"], source, tmp_path, method=method)
    assert all(value == pytest.approx(1.0) for value, _, _ in outcome.metrics.values())
    assert outcome.headline == {"boxes": "corloc", "mask": "saliency_max_f"}[kind]
    assert set(outcome.floors) == {"pixels", "whole image", "centred box"}
    assert outcome.floors["pixels"][outcome.headline] == pytest.approx(1.0), "the network gives the colours"
    assert outcome.floors["whole image"][outcome.headline] < 0.7
    assert outcome.scores.shape == (12, {"boxes": 3, "mask": 257}[kind]) and not outcome.per_class
    assert outcome.picture.startswith(b"\x89PNG")


def keys_and_attention(backbone, image, heads=4):
    """Keys (P, C) and attention (heads, P) of the last block, from one image in a plain forward pass."""
    taken = {}
    attention = backbone.module.blocks[-1].attn
    handle = attention.qkv.register_forward_hook(lambda module, args, output: taken.update(qkv=output[0]))
    with torch.no_grad():
        backbone.module.forward_features(image[None])
    handle.remove()
    q, k, _ = taken["qkv"].double().chunk(3, dim=1)
    width = k.shape[1] // heads
    rows = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        rows.append(torch.softmax(k[:, part] @ q[0, part] / width**0.5, dim=0)[1:])
    return k[1:].numpy(), torch.stack(rows).numpy()


def region_of(mask, seed):
    """The cells connected with one by sides, found one by one."""
    found, left = set(), [seed]
    while left:
        row, column = left.pop()
        inside = 0 <= row < mask.shape[0] and 0 <= column < mask.shape[1]
        if not inside or not mask[row, column] or (row, column) in found:
            continue
        found.add((row, column))
        left += [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
    return found


def slow_lost(keys, grid, k):
    n = len(keys)
    similar = [[float(keys[i] @ keys[j]) for j in range(n)] for i in range(n)]
    degree = [sum(similar[i][j] > 0 for j in range(n) if j != i) for i in range(n)]
    order = sorted(range(n), key=lambda i: (degree[i], i))
    seed, *_ = order
    chosen = [i for i in order[:k] if similar[seed][i] > 0]
    mask = np.array([sum(similar[i][j] for i in chosen) > 0 for j in range(n)]).reshape(grid)
    return region_of(mask, divmod(seed, grid[1]))


def slow_dino_seg(attention, grid, mass):
    order = sorted(range(len(attention)), key=lambda i: -attention[i])
    kept, total = set(), 0.0
    for i in order:
        if total >= mass * attention.sum():
            break
        kept.add(i)
        total += attention[i]
    mask = np.array([i in kept for i in range(len(attention))]).reshape(grid)
    regions = [region_of(mask, cell) for cell in zip(*np.nonzero(mask), strict=True)]
    return max(regions, key=len)


def sides(region, cell, height, width):
    rows, columns = [row for row, _ in region], [column for _, column in region]
    right, bottom = min(cell * (max(columns) + 1), width), min(cell * (max(rows) + 1), height)
    return cell * min(columns), cell * min(rows), right, bottom


def slow_overlap(box, other):
    """IoU by counting pixels."""
    a, b = ({(x, y) for x in range(c[0], c[2]) for y in range(c[1], c[3])} for c in (box, other))
    return len(a & b) / len(a | b)


@pytest.mark.parametrize("method", ["lost", "dino_seg"])
def test_results_of_a_transformer_are_those_of_a_plain_pass_and_loops(method, tmp_path):
    """Images of 28 pixels are padded to 32 with zeros behind the normalisation."""
    backbone, source = small_vit(), bright_objects(6, 3, side=28)
    settings = {"lost": {"k": 7}, "dino_seg": {"head": 2, "mass": 0.5}}[method]
    outcome = run(discovery, backbone, ["blocks.1"], source, tmp_path, method=method, **settings)
    for i in range(len(source)):
        image = torch.zeros(3, 32, 32)
        image[:, :28, :28] = (torch.from_numpy(source.images.read(i)).permute(2, 0, 1) / 255 - 0.5) / 0.25
        keys, attention = keys_and_attention(backbone, image)
        found = slow_lost(keys, (4, 4), 7) if method == "lost" else slow_dino_seg(attention[2], (4, 4), 0.5)
        box = sides(found, 8, 28, 28)
        true = tuple(source.target.objects[i].boxes[0].astype(int).tolist())
        mask = np.zeros((28, 28), dtype=bool)
        for row, column in found:
            mask[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = True
        truth = filled(source.target.objects[i].boxes[0].astype(int), 28, 28)
        wanted = [slow_overlap(box, true) >= 0.5, slow_overlap(box, true), (mask & truth).sum() / (mask | truth).sum()]
        np.testing.assert_allclose(outcome.scores[i], wanted, atol=1e-6)


def test_the_metrics_are_means_over_images_with_intervals(tmp_path):
    outcome = run(discovery, small_vit(), ["blocks.1"], bright_objects(9, 4), tmp_path, method="lost")
    for column, name in enumerate(("corloc", "discovery_box_iou", "discovery_mask_iou")):
        value, low, high = outcome.metrics[name]
        assert value == pytest.approx(outcome.scores[:, column].mean(), abs=1e-6)
        assert low < value + 1e-9 and value < high + 1e-9 and low < high


def test_without_masks_there_is_no_iou_of_masks(tmp_path):
    outcome = run(discovery, colours(), ["0"], bright_objects(9, 4, masked=False), tmp_path, method="lost")
    assert set(outcome.metrics) == {"corloc", "discovery_box_iou"} == set(outcome.floors["centred box"])


def test_several_layers_and_other_parts_of_the_attention_are_rows_of_their_own():
    backbone = small_vit()
    layers = resolve_layers(backbone, ["blocks.0", "blocks.1"])
    names = {
        ("lost", "auto"): ["blocks.0@key", "blocks.1@key"],
        ("lost", "value"): ["blocks.0@value", "blocks.1@value"],
        ("lost", "token"): ["blocks.0", "blocks.1"],
        ("dino_seg", "auto"): ["blocks.0@attention", "blocks.1@attention"],
    }
    for (method, features), wanted in names.items():
        found = searched_maps(
            backbone,
            layers,
            discovery.Settings(method=method, features=features, **({"head": 0} if method == "dino_seg" else {})),
        )
        assert [each.name for each in found] == wanted
    last = resolve_layers(backbone, ["norm"])
    assert [each.name for each in searched_maps(backbone, last, discovery.Settings())] == ["blocks.1@key"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "lost", "threshold": 0.3}, "threshold has no effect without method=tokencut"),
        ({"k": 50}, "k has no effect without method=lost"),
        ({"method": "lost", "k": 0}, "k should be 1 or more"),
        ({"threshold": 1.5}, "threshold should be from -1 to below 1"),
        ({"method": "dino_seg", "mass": 0.0}, "mass should be above 0 to 1"),
        ({"method": "dino_seg", "features": "key"}, "features has no effect"),
        ({"longest_side": -1}, "longest_side should be 0 or more"),
    ],
)
def test_settings_that_cannot_work_or_have_no_effect_are_refused(settings, message):
    for kind, module in MODULES.items():
        with pytest.raises(UsageError, match=message):
            module.PROTOCOL.kind.check(module.Settings(**settings), bright_objects(2, 1, kind=kind).target)


@pytest.mark.parametrize("module", [discovery, saliency])
def test_attention_that_is_not_there_is_refused_before_any_image(module):
    source = bright_objects(2, 1)
    for backbone, head, message in ((colours(), 0, "has none"), (small_vit(), 4, "heads 0 to 3")):
        layers = resolve_layers(backbone, ["0"] if head == 0 else ["blocks.1"])
        with pytest.raises(UsageError, match=message):
            module.PROTOCOL.kind.rows(backbone, layers, source, module.Settings(method="dino_seg", head=head), seed=0)


def test_a_map_of_too_many_cells_names_the_image_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr("sslbench.protocols._parts.objects.MOST_CELLS", 50)
    with pytest.raises(DataError, match=r"32 x 32 pixels are a map of 8 x 8 cells.*\n.*longest_side=640"):
        run(discovery, colours(), ["0"], bright_objects(3, 1), tmp_path)
    run(discovery, colours(), ["0"], bright_objects(3, 1), tmp_path, longest_side=16)


@pytest.mark.parametrize(
    ("size", "fit", "longest", "wanted"),
    [
        ((30, 45), "pad", 0, ((30, 45), (32, 48))),
        ((30, 45), "resize", 0, ((32, 48), (32, 48))),
        ((35, 3), "resize", 0, ((32, 16), (32, 16))),
        ((100, 200), "pad", 64, ((32, 64), (32, 64))),
    ],
)
def test_images_become_multiples_of_the_patch(size, fit, longest, wanted):
    assert _sizes(size, 16, fit, longest) == wanted


def test_boxes_of_a_reduced_image_are_in_pixels_of_the_file(tmp_path):
    source = bright_objects(8, 5, side=64, cell=16)
    outcome = run(discovery, colours(), ["0"], source, tmp_path, method="lost", longest_side=32)
    assert outcome.metrics["discovery_box_iou"][0] > 0.9


def test_images_without_an_object_are_left_out_and_counted(tmp_path):
    path = write_manifest(tmp_path, [[(2, 3, 10, 10)], [], [(5, 5, 8, 8)], [(1, 1, 4, 4)]], crowd=(3,))
    (source,) = with_objects(open_as(str(path), Boxes)).values()
    assert len(source) == 2 and any("2 of 4 images have no object" in note for note in source.notes)
    assert source.target.boxes_of(1).tolist() == [[5, 5, 13, 13]]
    assert source.select([1]).target.boxes_of(0).tolist() == [[5, 5, 13, 13]]
    assert source.select([1]).fingerprint() != source.select([0]).fingerprint()


def test_data_without_any_object_are_one_message(tmp_path):
    path = write_manifest(tmp_path, [[], []])
    with pytest.raises(DataError, match="none of the 2 images"):
        with_objects(open_as(str(path), Boxes))


def masks_folder(folder, arrays):
    for name in ("img", "gt"):
        (folder / name).mkdir(parents=True)
    for i, array in enumerate(arrays):
        Image.new("RGB", (6, 4), (40 * i, 0, 0)).save(folder / "img" / f"{i}.png")
        Image.fromarray(np.asarray(array, dtype=np.uint8)).save(folder / "gt" / f"{i}.png")
    return folder


def test_soft_masks_are_cut_at_one_half_and_masks_of_ones_are_kept(tmp_path):
    soft, ones = np.zeros((4, 6)), np.zeros((4, 6))
    soft[1, :4], ones[2, 2] = (255, 128, 127, 60), 1
    source = open_as(str(masks_folder(tmp_path / "set", [soft, ones, np.zeros((4, 6))])), Foreground)["all"]
    assert isinstance(source.target, Foreground) and len(source) == 3
    found = [source.target.maps.read_map(i).semantic for i in range(3)]
    assert found[0].sum() == 2 and found[0][1, :2].all() and found[1].sum() == 1 == found[1][2, 2]
    assert not found[2].any()
    assert source.select([1]).target.maps.read_map(0).semantic.sum() == 1


@pytest.mark.parametrize(
    ("array", "message"),
    [(np.full((4, 5), 255), "5 x 4 pixels, but its image 6 x 4"), (np.full((4, 6), 20), "up to 20")],
)
def test_masks_of_another_size_or_of_classes_are_one_message(tmp_path, array, message):
    source = open_as(str(masks_folder(tmp_path / "set", [array])), Foreground)["all"]
    with pytest.raises(DataError, match=message):
        source.target.maps.read_map(0)


def test_label_maps_need_a_background(tmp_path):
    folder = masks_folder(tmp_path / "set", [np.ones((4, 6)), np.zeros((4, 6))])
    (folder / "classes.txt").write_text("Background\ncat\n")
    source = open_as(str(folder), Foreground)["all"]
    assert isinstance(source, Source) and source.target.maps.read_map(0).semantic.min() == 1
    assert source.target.maps.read_map(1).semantic.max() == 0
    (folder / "classes.txt").write_text("dog\ncat\n")
    with pytest.raises(DataError, match="none is called background"):
        open_as(str(folder), Foreground)
