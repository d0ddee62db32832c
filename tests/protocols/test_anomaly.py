"""Anomalies: memories of patches, scores of images and pixels, layouts of MVTec AD and VisA, against slow oracles."""

import csv
import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import torch
from helpers.targets import KINDS, ArrayMaps, defective_pictures
from PIL import Image
from sample_data import anomalies
from scipy import ndimage
from sklearn.decomposition import PCA
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn

from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.data.open import open_as
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.metrics.dense.anomaly import (
    BINS,
    PixelCurves,
    image_measures,
    pixel_measure,
    region_shares,
    saturated_shares,
)
from sslbench.metrics.intervals import Units
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import ImageInputs, anomaly
from sslbench.solvers.foreground import foreground
from sslbench.solvers.patch_memory import PatchMemory, greedy_coreset, pixel_scores
from sslbench.targets.anomalies import Anomalies

PLAIN = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
NET = ("--weights", "random", "--backbone", "resnet18w0.125", "--no-floors", "--device", "cpu", "--workers", "0")


def drawn_maps(seed, ties, n=5, side=24):
    """Scores (n, side, side) of pixels and defects, among them one of a pixel and two that touch."""
    rng = np.random.default_rng(seed)
    truth = np.zeros((n, side, side), bool)
    for own in truth[: n // 2 + 1]:
        own[2, 3], own[10:14, 10:14], own[14:17, 14:20] = True, True, True
        top, left, tall, wide = rng.integers(1, 9, 4)
        own[top : top + tall, 12 + left : 12 + left + wide] = True
    scores = rng.normal(size=truth.shape) + 1.5 * truth
    return (np.round(scores * 2) / 2 if ties else scores).astype(np.float32), truth


def curves_of(scores, truth, saturated=None):
    curves = PixelCurves(
        [each[own] for each, own in zip(scores, truth, strict=True)], [region_shares(own) for own in truth], saturated
    )
    for index, (each, own) in enumerate(zip(scores, truth, strict=True)):
        curves.add(index, each[~own])
    return curves


def slow_pro(scores, truth, limit=0.3):
    """PRO by definition: all thresholds one after the other, the share of each region above each."""
    regions = []
    for each, own in zip(scores, truth, strict=True):
        labels, number = ndimage.label(own, np.ones((3, 3)))
        regions += [each[labels == i + 1] for i in range(number)]
    points = [(0.0, 0.0)]
    for threshold in np.unique(scores)[::-1]:
        false = (scores[~truth] >= threshold).mean()
        points.append((false, np.mean([(region >= threshold).mean() for region in regions])))
    rate, height = np.array(points).T
    inner = np.linspace(0, limit, 200_001)
    return np.trapezoid(np.interp(inner, rate, height), inner) / limit


@pytest.mark.parametrize("ties", [False, True])
def test_metrics_of_pixels_are_those_of_their_definitions(ties):
    scores, truth = drawn_maps(1, ties)
    area, precision, pro, saturated = curves_of(scores, truth).values()
    assert np.isnan(saturated)
    assert area == pytest.approx(roc_auc_score(truth.ravel(), scores.ravel()), abs=1e-12)
    assert precision == pytest.approx(average_precision_score(truth.ravel(), scores.ravel()), abs=1e-12)
    # The grid of the oracle has steps of 1.5e-6; a vertical part of the curve may fall anywhere between two of them.
    assert pro == pytest.approx(slow_pro(scores, truth), abs=1e-3)


def regions_of(truth, seed):
    """Masks of each image's defects and the pixels that find them; the last two overlap."""
    rng, found = np.random.default_rng(seed), []
    for own in truth:
        labels, number = ndimage.label(own)
        masks = [labels == i + 1 for i in range(number)]
        masks += [own & (np.arange(24) < 18)] if number else []
        found.append([(mask, int(rng.integers(1, mask.sum() + 1))) for mask in masks])
    return found


@pytest.mark.parametrize("ties", [False, True])
def test_saturated_overlap_is_that_of_its_definition(ties):
    scores, truth = drawn_maps(4, ties)
    regions = regions_of(truth, 0)
    shares = [saturated_shares(*each)[own] for *each, own in zip(scores, regions, truth, strict=True)]
    curves = curves_of(scores, truth, shares)
    points = [(0.0, 0.0)]
    for threshold in np.unique(scores)[::-1]:
        above = scores >= threshold
        overlaps = [
            min((own & mask).sum() / needed, 1)
            for own, each in zip(above, regions, strict=True)
            for mask, needed in each
        ]
        points.append((above[~truth].mean(), np.mean(overlaps)))
    rate, height = np.array(points).T
    inner = np.linspace(0, 0.05, 200_001)
    wanted = np.trapezoid(np.interp(inner, rate, height), inner) / 0.05
    assert curves.values()[3] == pytest.approx(wanted, abs=1e-3) and curves.constant()[3] == pytest.approx(0.025)
    measure = pixel_measure([curves], [np.arange(5)], Units.of(5, None))
    assert measure.names[3] == "auspro@5" and measure.statistic(np.ones((1, 5)))[0, 3] == pytest.approx(
        wanted, abs=0.02
    )
    # Regions that need all of their pixels do not saturate.
    whole = [[(mask, int(mask.sum())) for mask, _ in each[:-1]] for each in regions]
    shares = [saturated_shares(*each)[own] for *each, own in zip(scores, whole, truth, strict=True)]
    assert np.concatenate(shares).sum() == pytest.approx(sum(map(len, whole)))


def test_pixels_of_many_blocks_are_counted_as_together(monkeypatch):
    scores, truth = drawn_maps(2, ties=True)
    whole = curves_of(scores, truth).values()
    monkeypatch.setattr("sslbench.metrics.dense.anomaly._BLOCK", 700)
    np.testing.assert_array_equal(curves_of(scores, truth).values(), whole)


def test_intervals_follow_the_images():
    """Weights of images act as copies of them, up to the steps of the curves."""
    scores, truth = drawn_maps(3, ties=False)
    weights = np.array([[2.0, 1, 0, 1, 3]])
    copies = np.repeat(np.arange(5), weights[0].astype(int))
    measure = pixel_measure([curves_of(scores, truth)], [np.arange(5)], Units.of(5, None))
    expected = curves_of(scores[copies], truth[copies]).values()[:3]
    np.testing.assert_allclose(measure.statistic(weights)[0], expected, atol=4 / BINS)


def test_metrics_of_images_are_means_over_categories_with_both_kinds():
    rng = np.random.default_rng(0)
    values = np.column_stack([np.repeat([0, 1, 2], [9, 7, 4]), np.r_[rng.integers(0, 2, 16), np.ones(4, int)]])
    values[[0, 9], 1], values[[1, 10], 1] = 0, 1
    scores = np.round(rng.normal(size=(20, 1)) + values[:, 1:], 1)
    (measure,) = image_measures(values, scores, Units.of(20, None))
    expected = []
    for own in (values[:, 0] == 0, values[:, 0] == 1):
        y, x = values[own, 1], scores[own, 0]
        f1 = max(2 * (y & (x >= t)).sum() / (y.sum() + (x >= t).sum()) for t in x)
        expected.append((roc_auc_score(y, x), average_precision_score(y, x), f1))
    np.testing.assert_allclose(measure.statistic(np.ones((1, 20)))[0], np.mean(expected, axis=0), rtol=1e-12)


@pytest.mark.parametrize("central", [True, False])
def test_the_foreground_is_that_of_the_authors_steps(central):
    cv2 = pytest.importorskip("cv2")
    rng = np.random.default_rng(5)
    features = rng.normal(size=(13, 17, 6)).astype(np.float32)
    features[4:9, 5:12] += 20 * (1 if central else -1)
    first = PCA(1, svd_solver="full").fit_transform(features.reshape(-1, 6)).reshape(13, 17)
    mask = first > 10
    if mask[2:10, 3:13].sum() <= 0.35 * 80:
        mask = -first > 10
    mask = cv2.dilate(mask.astype(np.uint8), np.ones((3, 3), np.uint8))
    mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8)).astype(bool)
    np.testing.assert_array_equal(foreground(features, 10), mask)
    assert 35 < mask.sum() < 80


def test_background_has_no_distance_and_turns_are_kept_in_memory(tmp_path, caplog):
    kept = KINDS["anomalies"].train, KINDS["anomalies"].test
    plain, turned = run(*kept, tmp_path), run(*kept, tmp_path, rotations=4)
    masked = run(*kept, tmp_path, masked=("*",), mask_threshold=0.5)
    assert masked.metrics["image_auroc"] != plain.metrics["image_auroc"] and masked.floors == plain.floors
    assert not caplog.messages
    assert run(*kept, tmp_path, masked=("screww",)).metrics == plain.metrics
    assert "masked names none of the categories" in caplog.text
    sizes = [int(re.search(r"of ([\d,]+) patches", each.notes[0])[1].replace(",", "")) for each in (plain, turned)]
    assert sizes[1] == 4 * sizes[0]
    # A square turned by a right angle has the same pixels at other places.
    picture = np.arange(75).reshape(3, 5, 5).astype(np.uint8)
    rows = np.stack([np.rot90(channel) for channel in picture])
    assert np.abs(anomaly.turned(picture, 90)[:, 1:-1, 1:-1].astype(int) - rows[:, 1:-1, 1:-1]).max() <= 5
    memory = PatchMemory(np.zeros((1, 2), np.float32), "l2")
    shown = [np.array([[True, False]])]
    ((distances, value),) = memory.scored([np.array([[[3.0, 4], [6, 8]]], np.float32)], k=1, top=1, foregrounds=shown)
    assert distances.tolist() == [[5.0, 0.0]] and value == 2.5


def test_a_coreset_takes_the_farthest_patch_each_time():
    # Whole numbers: no two machines round their distances differently.
    x = np.random.default_rng(0).integers(-50, 50, (300, 20)).astype(np.float32)
    found = greedy_coreset(x, 40, seed=3)
    chosen = [found[0]]
    for row in found[1:]:
        distances = ((x[:, None] - x[chosen]) ** 2).sum(axis=2).min(axis=1)
        assert distances[row] == distances.max()
        chosen.append(row)
    assert len(set(found.tolist())) == 40


def test_a_coreset_of_wide_patches_is_chosen_in_a_projection():
    """Clusters far apart: each is reached before a second patch of any."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(12, 1000)), 30, axis=0) + 1e-3 * rng.normal(size=(360, 1000))
    found = greedy_coreset(x.astype(np.float32), 12, seed=0)
    assert sorted(found // 30) == list(range(12))


@pytest.mark.parametrize(("distance", "top", "reweight", "k"), [("l2", 0.0, 9, 1), ("cosine", 0.25, 0, 2)])
def test_scores_of_images_are_those_of_the_papers(distance, top, reweight, k):
    rng = np.random.default_rng(1)
    memory, maps = rng.normal(size=(50, 8)).astype(np.float32), rng.normal(size=(3, 4, 5, 8)).astype(np.float32)
    found = PatchMemory(memory, distance).scored([*maps], k=k, top=top, reweight=reweight)
    for image, (distances, score) in zip(maps.astype(float), found, strict=True):
        patches = image.reshape(-1, 8)
        if distance == "cosine":
            unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (patches, memory.astype(float))]
            table = 1 - unit[0] @ unit[1].T
        else:
            table = np.linalg.norm(patches[:, None] - memory, axis=2)
        own = np.sort(table, axis=1)[:, :k].mean(axis=1)
        np.testing.assert_allclose(distances.ravel(), own, rtol=1e-5)
        expected = np.sort(own)[-max(1, int(top * 20)) :].mean()
        if reweight:
            nearest = table[own.argmax()].argmin()
            around = np.argsort(np.linalg.norm(memory - memory[nearest], axis=1))[:9]
            to = np.exp(np.linalg.norm(memory[around] - patches[own.argmax()], axis=1))
            expected *= 1 - to[0] / to.sum()
        assert score == pytest.approx(expected, rel=1e-5)


def test_pixels_between_patches_get_scores_between_theirs():
    found = pixel_scores(np.array([[0.0, 1.0]], np.float32), (1, 4), 0.0)
    np.testing.assert_allclose(found, [[0, 0.25, 0.75, 1]])
    assert np.ptp(pixel_scores(np.eye(4, dtype=np.float32), (32, 32), 4.0)) < 1


def visa(root, rows):
    (root / "split_csv").mkdir()
    with (root / "split_csv/1cls.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("object", "split", "label", "image", "mask"))
        writer.writerows(rows)
    for _, _, _, image, mask in rows:
        for path, array in ((image, np.full((6, 8, 3), 9, np.uint8)), (mask, np.eye(6, 8, dtype=np.uint8))):
            if path:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(root / path)


VISA = [
    ("candle", "train", "normal", "candle/Data/Images/Normal/0.png", ""),
    ("candle", "test", "normal", "candle/Data/Images/Normal/1.png", ""),
    ("candle", "test", "anomaly", "candle/Data/Images/Anomaly/0.png", "candle/Data/Masks/Anomaly/0.png"),
    ("nut", "train", "normal", "nut/Data/Images/Normal/0.png", ""),
    ("nut", "test", "anomaly", "nut/Data/Images/Anomaly/0.png", "nut/Data/Masks/Anomaly/0.png"),
]


def test_visa_is_read_by_its_list(tmp_path):
    visa(tmp_path, VISA)
    found = open_as(str(tmp_path), Anomalies)["test"]
    assert found.target.classes == ("candle", "nut") and found.target.values.tolist() == [[0, 1], [0, 0], [1, 1]]
    assert [found.target.maps.read_map(i).semantic.sum() for i in range(3)] == [6, 0, 6]
    one = open_as(f"{tmp_path}?category=nut", Anomalies)["test"]
    assert one.ids == ("nut/Data/Images/Anomaly/0.png",)


def test_mvtec_is_read_whole_or_by_category_and_loco_has_several_masks(tmp_path):
    anomalies.make(tmp_path)
    whole, one = (open_as(str(place), Anomalies) for place in (tmp_path, tmp_path / "nut"))
    assert whole["test"].target.classes == ("bolt", "nut") and one["test"].target.classes == ("nut",)
    assert [whole["train"].target.text(0), whole["test"].target.text(0)] == ["bolt: good", "bolt: anomalous"]
    assert whole["test"].target.maps.read_map(0).semantic.sum() == 18
    mask = tmp_path / "nut/ground_truth/bent/0_mask.png"
    (mask.parent / "0").mkdir()
    mask.rename(mask.parent / "0/000.png")
    other = np.zeros((12, 16), np.uint8)
    other[11] = 255
    Image.fromarray(other).save(mask.parent / "0/001.png")
    loco = open_as(f"{tmp_path}?category=nut", Anomalies)["test"].target
    assert loco.maps.read_map(0).semantic.sum() == 18 + 16
    assert loco.maps.fingerprint() != one["test"].target.maps.fingerprint() and loco.regions is None


def loco(root, saturations, other=250):
    """Write anomalies in the layout of MVTec LOCO: `nut` has two regions, of the values 255 and `other`."""
    anomalies.make(root)
    mask = root / "nut/ground_truth/bent/0_mask.png"
    (mask.parent / "0").mkdir()
    mask.rename(mask.parent / "0/000.png")
    second = np.zeros((12, 16), np.uint8)
    second[11] = other
    Image.fromarray(second).save(mask.parent / "0/001.png")
    (root / "nut/defects_config.json").write_text(json.dumps(saturations))
    return root / "nut"


def saturation(value, threshold, relative):
    names = "defect_name", "pixel_value", "saturation_threshold", "relative_saturation"
    return dict(zip(names, ("bent", value, threshold, relative), strict=True))


def test_regions_of_loco_saturate_by_pixels_or_shares(sslbench, tmp_path):
    both = [saturation(255, 0.5, True), saturation(250, 4, False)]
    place = loco(tmp_path, both)
    target = open_as(str(place), Anomalies)["test"].target
    regions = target.regions.read_regions(0)
    assert [(int(mask.sum()), needed) for mask, needed in regions] == [(18, 9), (16, 4)]
    loco(tmp_path / "other", [both[0], saturation(250, 40, False)])
    other = open_as(str(tmp_path / "other/nut"), Anomalies)["test"].target
    assert other.regions.read_regions(0)[1][1] == 16 and other.maps.fingerprint() != target.maps.fingerprint()
    found = sslbench("eval", "anomaly", "--data", place, *NET, "size=32", "-o", tmp_path / "out")
    assert found[0] == 0, found[2]
    (file,) = (tmp_path / "out/anomaly").glob("*.json")
    record = json.loads(file.read_text())
    assert {"aupro@30", "auspro@5"} <= set(record["metrics"])


def test_kinds_of_anomalies_of_loco_are_scored_apart_and_their_mean_leads_no_other_number(sslbench, tmp_path):
    """Each kind beside all good images, by the oracle of each; MVTec's evaluation takes the mean of the two."""
    kinds, rng = ("logical_anomalies", "structural_anomalies"), np.random.default_rng(1)
    for category in ("box", "bag"):
        for part in ("train/good", "test/good", *(f"test/{kind}" for kind in kinds)):
            for i in range(3 if part == "test/logical_anomalies" else 4):
                picture, mask = rng.integers(0, 255, (32, 32, 3), np.uint8), np.zeros((32, 32), np.uint8)
                mask[4 + i : 14, 6:20] = 255
                (tmp_path / category / part).mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture).save(tmp_path / category / part / f"{i}.png")
                if part.endswith("anomalies"):
                    folder = tmp_path / category / part.replace("test", "ground_truth") / str(i)
                    folder.mkdir(parents=True)
                    Image.fromarray(mask).save(folder / "000.png")
        (tmp_path / category / "defects_config.json").write_text(json.dumps([saturation(255, 20, False)]))
    source = open_as(str(tmp_path), Anomalies)
    found = run(source["train"], source["test"], tmp_path)
    ids, values = np.array(source["test"].ids), source["test"].target.values
    wanted = {kind: [] for kind in kinds}
    for category in (0, 1):
        for kind in kinds:
            own = (values[:, 0] == category) & [f"/{kind}/" in each or "/good/" in each for each in ids]
            wanted[kind].append(roc_auc_score(values[own, 1], found.scores[own, 0]))
    for kind in kinds:
        assert found.metrics[f"image_auroc({kind})"][0] == pytest.approx(np.mean(wanted[kind]))
    for metric in ("image_auroc", "auspro@5"):
        value, low, high = found.metrics[f"{metric}(kinds)"]
        assert value == pytest.approx(np.mean([found.metrics[f"{metric}({kind})"][0] for kind in kinds]))
        assert low < value < high
    assert found.variants["box"]["image_auroc(kinds)"] == pytest.approx(np.mean([each[1] for each in wanted.values()]))
    assert found.chance["image_auroc(kinds)"] == 0.5 and found.chance["auspro@5(kinds)"] < 0.1
    assert {*found.floors["pixels"]} == {*found.chance} == {*found.metrics}
    # Of one kind alone, the pixels are those of a folder without the other.
    shutil.rmtree(tmp_path / "box/test" / kinds[0]), shutil.rmtree(tmp_path / "bag/test" / kinds[0])
    shutil.rmtree(tmp_path / "box/ground_truth" / kinds[0]), shutil.rmtree(tmp_path / "bag/ground_truth" / kinds[0])
    other = open_as(str(tmp_path), Anomalies)
    alone = run(other["train"], other["test"], tmp_path).metrics
    assert alone["auspro@5"][0] == found.metrics[f"auspro@5({kinds[1]})"][0]
    assert not [name for name in alone if "(" in name]


@pytest.mark.parametrize(
    ("saturations", "message"),
    [
        ([saturation(255, 1, True)], "001.png has the values 250\nA mask has one, and defects_config.json"),
        ([saturation(255, 0, True)], "the saturation_threshold of pixel_value 255 should be above 0"),
        ([{"pixel_value": 255}], "is no list of defects: KeyError 'saturation_threshold'"),
    ],
)
def test_saturations_that_cannot_be_used_are_refused(tmp_path, saturations, message):
    with pytest.raises(DataError, match=message):
        open_as(str(loco(tmp_path, saturations)), Anomalies)["test"].target.regions.read_regions(0)


def damaged(root, how):
    anomalies.make(root)
    mask = root / "nut/ground_truth/bent/0_mask.png"
    if how == "mask":
        mask.rename(mask.with_name("1_mask.png"))
    elif how == "size":
        Image.new("L", (3, 3)).save(mask)
    elif how == "broken":
        mask.write_bytes(b"no picture")
    elif how == "test":
        (root / "nut/test/good/0.png").unlink()
    elif how == "train":
        (root / "nut/train/good").rename(root / "nut/train/bent")
        (root / "nut/train/good").mkdir()
    return root


@pytest.mark.parametrize(
    ("how", "data", "message"),
    [
        ("mask", "{}", "has no mask of 1 anomalous image: bent/0.png"),
        ("size", "{}", "0_mask.png: the mask is 3 x 3 pixels, but its image 16 x 12"),
        ("broken", "{}", "0_mask.png: not an image, or damaged"),
        ("test", "{}?category=nut", "no category of"),
        ("train", "{}", "2 of 4 training images are anomalous, nut/train/bent/0.png first"),
        ("", "{}?category=nuts", "has no category 'nuts'"),
        ("", "{}/bolt/test", "no images with masks of defects, or none were found"),
        ("", "textures:images", "holds no anomalies"),
    ],
)
def test_data_that_cannot_be_used_are_refused_by_name(sslbench, tmp_path, how, data, message):
    place = data.format(damaged(tmp_path, how))
    out = tmp_path / "out"
    found = sslbench("eval", "anomaly", "--data", place, *NET, "size=16", "--layers", "res3", "--out", str(out))
    assert found[0] != 0 and message in found[2], found[2]
    assert not [*out.rglob("*.json")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"neighbourhood": 2}, "no patch in its centre"),
        ({"crop": 32, "size": 16, "scored_at": "input"}, "larger than the resized image"),
        ({"crop": 32}, "crop has no effect without scored_at=input"),
        ({"reweight": 1, "top": 0, "distance": "l2"}, "makes every score 0"),
        ({"reweight": 9}, "top=0 distance=l2 k=1"),
        ({"coreset": 0.0}, "coreset should be"),
        ({"masked": ("*",), "reweight": 9, "top": 0, "distance": "l2"}, "weighs the largest distance of all patches"),
        ({"mask_threshold": 5.0}, "no effect without masked"),
    ],
)
def test_settings_without_sense_are_refused(settings, message):
    with pytest.raises(UsageError) as found:
        anomaly.Settings(**settings)
    assert message in f"{found.value} {found.value.remedy}"


def colours(channels=3):
    """A network whose map is the mean colour of cells of 4 x 4 pixels."""
    conv = nn.Conv2d(3, channels, 4, stride=4, bias=False)
    conv.weight.data = torch.eye(channels, 3)[:, :, None, None].expand(channels, 3, 4, 4) / 16
    module = nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return from_module("colours", module.eval().requires_grad_(False), PLAIN)


def run(train, test, folder, **settings):
    backbone, kind = colours(), anomaly.PROTOCOL.kind
    chosen = anomaly.Settings(**{"size": 32, "smoothing": 1.0} | settings)
    layers = resolve_layers(backbone, ["0"])
    engine = ExtractSettings(torch.device("cpu"), workers=0)
    kind.check(chosen, train.target)
    kind.rows(backbone, layers, train, chosen, seed=0)
    return kind.run(ImageInputs(chosen, 0, train, test, backbone, layers, engine, folder, None))["0"]


def test_a_category_is_scored_by_its_own_memory_alone(tmp_path):
    kind = KINDS["anomalies"]
    train, test = kind.train, kind.test
    other = Anomalies(("light", "dark"), train.target.values, train.target.maps)
    own, swapped = (
        run(each, test, tmp_path, distance="l2") for each in (train, dataclasses.replace(train, target=other))
    )
    assert own.metrics["image_auroc"][0] > 0.9
    good = test.target.values[:, 1] == 0
    assert own.scores[good].max() < swapped.scores[good].min()
    assert set(own.variants) == {"dark", "light"}
    mean = np.mean([each["aupro@30"] for each in own.variants.values()])
    assert own.metrics["aupro@30"][0] == pytest.approx(mean)


def test_unknown_masks_leave_the_metrics_of_images(tmp_path):
    train, test = defective_pictures(8, 1), defective_pictures(12, 2)
    target = dataclasses.replace(test.target, maps=ArrayMaps(np.full((12, 32, 32), -1)))
    found = run(train, dataclasses.replace(test, target=target), tmp_path)
    assert {*found.metrics} == {"image_auroc", "image_ap", "image_f1_max"} and {*found.chance} == {*found.metrics}


def test_shuffled_labels_are_at_chance(tmp_path):
    """Anomalous images drawn at random: the areas of many draws lie around one half."""
    rng, kind = np.random.default_rng(0), KINDS["anomalies"]
    scores = run(kind.train, kind.test, tmp_path).scores
    values = kind.test.target.values
    areas = []
    for _ in range(200):
        shuffled = values.copy()
        for category in (0, 1):
            own = values[:, 0] == category
            shuffled[own, 1] = rng.permutation(values[own, 1])
        (measure,) = image_measures(shuffled, scores, Units.of(len(values), None))
        areas.append(measure.statistic(np.ones((1, len(values))))[0, 0])
    # The standard error of the mean of 200 areas is 0.009.
    assert abs(np.mean(areas) - 0.5) < 0.05


def test_a_record_holds_each_category_and_a_picture(sslbench, tmp_path):
    patchcore = ("size=32", "crop=24", "scored_at=input", "distance=l2", "coreset=0.1", "top=0", "reweight=9")
    data = ("--data", "textures:anomalies", "--layers", "concat(layer2,layer3)", "neighbourhood=3")
    found = sslbench("eval", "anomaly", *NET, *patchcore, *data, "--out", str(tmp_path))
    assert found[0] == 0, found[2]
    (file,) = (tmp_path / "anomaly").glob("*.json")
    record = json.loads(file.read_text())
    assert {*record["per_class"]} == {"brick", "grass", "gravel"} == {*record["variants"]}
    # 16 images of 3 x 3 patches: a tenth of 144.
    assert "Memories of 14 patches." in record["notes"]
    assert file.with_suffix(".png").is_file()


def test_masks_are_read_before_the_first_image_is_encoded(sslbench, tmp_path):
    """The damaged mask is in the second category: no network has run by then."""
    place = damaged(tmp_path, "broken")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anomaly.Anomaly, "_embedded", lambda *_: pytest.fail("encoded"))
        found = sslbench("eval", "anomaly", "--data", str(place), *NET, "size=16", "--layers", "res3")
    assert found[0] == 1 and "0_mask.png: not an image" in found[2]


def test_a_category_without_good_training_images_is_named_and_not_left_out(tmp_path):
    damaged(tmp_path, "none")
    shutil.rmtree(tmp_path / "nut/train/good")
    with pytest.raises(DataError, match="no images of nut"):
        open_as(str(tmp_path), Anomalies)
    assert open_as(f"{tmp_path}?category=bolt", Anomalies)["train"].target.classes == ("bolt",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (VISA[2], "lists 1 image more than once: candle/Data/Images/Anomaly/0.png"),
        (("nut", "test", "anomaly", VISA[0][3], ""), "lists 1 image more than once"),
        (("nut", "test", "anomaly", "nut/1.png", "none.png"), "1 file not found below"),
    ],
)
def test_lists_that_repeat_an_image_or_lack_a_mask_are_refused(tmp_path, row, message):
    visa(tmp_path, [*VISA, row])
    (tmp_path / "none.png").unlink(missing_ok=True)
    with pytest.raises(DataError, match=message):
        open_as(str(tmp_path), Anomalies)


def test_an_empty_mask_of_an_anomalous_image_is_told(sslbench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mask = damaged(tmp_path, "none") / "nut/ground_truth/bent/0_mask.png"
    Image.new("L", (16, 12)).save(mask)
    found = sslbench("eval", "anomaly", "--data", str(tmp_path), *NET, "size=16", "--layers", "res3", "--out", "out")
    message = "1 anomalous image without a defect among the scored pixels: nut/test/bent/0.png"
    assert found[0] == 0 and message in found[1] + found[2]
