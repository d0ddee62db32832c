"""Robustness against a plain loop, its sets, its keys and its messages."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest
import torch
from helpers.coloured_pictures import write_tinted
from PIL import Image
from scipy.special import softmax
from sklearn.covariance import EmpiricalCovariance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from sslbench.backbones.build import build
from sslbench.config import read_yaml
from sslbench.data.corruptions import corrupt
from sslbench.data.decode.handlers import picture_decoder
from sslbench.data.labels import single_labels
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import Request, RunSettings, evaluate, make_task, prepare
from sslbench.metrics import robustness as measures
from sslbench.metrics.intervals import Units, means
from sslbench.paths import builtin_dir
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import find
from sslbench.protocols.robustness import further_sets
from sslbench.protocols.robustness.further_sets import (
    classes_of,
    corruptions,
    open_objectnet,
    open_test_set,
    with_real_labels,
)
from sslbench.protocols.robustness.scores import MahalanobisNovelty, energy_novelty, open_sets, softmax_novelty
from sslbench.protocols.robustness.settings import Settings
from sslbench.results.records import read_scores

RUN = RunSettings(device="cpu", workers=0, overlaps=False, batch_size=32)
SMALL = Preprocessing(resize=(32, 32), crop=None)
NOTHING = {"corrupt": [], "rotations": [], "scales": [], "crops": []}
CLASSES = ("blue", "green", "red")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("robustness")
    write_tinted(root / "train", 12, 0)
    write_tinted(root / "test", 6, 1)
    return root


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They take as long as all the rest; tests/cli has them drawn."""
    monkeypatch.setattr("sslbench.evaluation.on_features.write_curves", lambda result, out: None)


@pytest.fixture(scope="module")
def network():
    return dataclasses.replace(build("resnet18w0.125", seed=0), preprocessing=SMALL)


def run(network, data, folder, settings, **request):
    task = make_task("robustness", {"c": [0.1], **settings})
    prepared = prepare(
        Request(weights="net.torch", data=str(data), tasks=(task,), backbone="resnet18w0.125", **request),
        RUN,
        backbone=network,
    )
    return evaluate(prepared, store=folder / "store", out=folder / "out", command="")


def encode(network, pictures):
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (SMALL.mean, SMALL.std))
    batch = torch.stack([(torch.from_numpy(p.copy()).permute(2, 0, 1) / 255 - mean) / std for p in pictures])
    found = []
    handle = network.module.avgpool.register_forward_hook(lambda m, i, out: found.append(out.flatten(1)))
    with torch.inference_mode():
        network.module.eval()(batch)
    handle.remove()
    return found[0].numpy()


def generator(seed, name, image):
    key = hashlib.sha256(f"{seed}\n{name}\n{image.rpartition('/')[2]}".encode()).digest()
    return np.random.default_rng(int.from_bytes(key[:16], "little"))


def test_errors_are_those_of_a_plain_loop_and_scikit_learn(network, data, tmp_path):
    named, severities = ("gaussian_noise", "contrast"), (1, 4)
    settings = {"corrupt": list(named), "severities": list(severities), "change_seed": 3, "rotations": [90.0]}
    (result,) = run(network, data, tmp_path, {**settings, "scales": [], "crops": []})
    files = {part: sorted((data / part).rglob("*.png")) for part in ("train", "test")}
    pictures = {part: [np.array(Image.open(f)) for f in found] for part, found in files.items()}
    labels = {part: [f.parent.name for f in found] for part, found in files.items()}
    features = {part: encode(network, found) for part, found in pictures.items()}
    scaler = StandardScaler().fit(features["train"])
    classifier = LogisticRegression(C=0.1, tol=1e-10, max_iter=10000)
    classifier.fit(scaler.transform(features["train"]), labels["train"])

    def wrong(images):
        return classifier.predict(scaler.transform(encode(network, images))) != np.array(labels["test"])

    errors = []
    for name in named:
        for severity in severities:
            changed = [
                corrupt(p, name, severity, generator(3, f"{name}-{severity}", f.relative_to(data / "test").as_posix()))
                for p, f in zip(pictures["test"], files["test"], strict=True)
            ]
            errors.append(wrong(changed).mean())
            assert result.metrics[f"corruption_error({name},{severity})"].value == pytest.approx(100 * errors[-1])
    assert result.headline == "corruption_error"
    assert result.metrics["corruption_error"].value == pytest.approx(100 * np.mean(errors))
    clean = wrong(pictures["test"]).mean()
    assert result.metrics["error_increase"].value == pytest.approx(100 * (np.mean(errors) - clean))
    turned = encode(network, [np.rot90(p) for p in pictures["test"]])
    own = features["test"]
    cosine = (turned * own).sum(1) / np.linalg.norm(turned, axis=1) / np.linalg.norm(own, axis=1)
    assert result.metrics["cosine(rotation,90)"].value == pytest.approx(cosine.mean(), abs=1e-5)
    unit = own / np.linalg.norm(own, axis=1, keepdims=True)
    pairs = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
    assert result.metrics["cosine(other images)"].value == pytest.approx(pairs.mean(), abs=1e-5)
    assert result.floors["chance"]["corruption_error"] == pytest.approx(200 / 3)
    assert set(result.missing_floors) == {"pixels", "untrained"}


def test_stored_features_are_found_and_follow_seed_severity_and_size(network, data, tmp_path, caplog):
    caplog.set_level("DEBUG", logger="sslbench")
    settings = {**NOTHING, "corrupt": ["contrast"], "severities": [2]}

    def decoded(backbone=network, **changes):
        caplog.clear()
        found = run(backbone, data, tmp_path, {**settings, **changes})
        return "version: features found" not in caplog.text, found[0].id

    new, first = decoded()
    assert new and decoded() == (False, first)
    assert decoded(change_seed=1)[0] and decoded(severities=[3])[0] and decoded(corrupt=["fog"])[0]
    larger = dataclasses.replace(network, preprocessing=dataclasses.replace(SMALL, resize=(40, 40)))
    assert decoded(larger)[0]
    assert decoded() == (False, first)


def test_an_untrained_backbone_is_a_floor_where_asked_for(network, data, tmp_path):
    task = make_task("robustness", {**NOTHING, "c": [0.1], "corrupt": ["contrast"], "severities": [2]})
    request = Request(weights="net.torch", data=str(data), tasks=(task,), backbone="resnet18w0.125")
    prepared = prepare(request, dataclasses.replace(RUN, baseline=True), backbone=network)
    (result,) = evaluate(prepared, store=tmp_path / "store", out=tmp_path / "out", command="")
    assert result.floors["untrained"]["corruption_error"] is not None and set(result.missing_floors) == {"pixels"}


def test_mce_is_the_mean_over_corruptions_of_the_share_of_the_references_error(network, data, tmp_path):
    reference = {"contrast": [0.5, 0.6, 0.7, 0.8, 0.9], "fog": [0.3, 0.4, 0.5, 0.6, 0.7], "clean": [0.2]}
    settings = {**NOTHING, "corrupt": ["contrast", "fog"], "severities": [1, 5], "reference": reference}
    (result,) = run(network, data, tmp_path, settings)
    value = {name: each.value / 100 for name, each in result.metrics.items() if each.value is not None}
    clean, ces, relative = 1 - value["top1"], [], []
    for name in ("contrast", "fog"):
        own = [value[f"corruption_error({name},{s})"] for s in (1, 5)]
        theirs = [reference[name][0], reference[name][4]]
        ces.append(sum(own) / sum(theirs))
        relative.append((np.array(own) - clean).sum() / (np.array(theirs) - 0.2).sum())
    assert value["mce"] == pytest.approx(np.mean(ces)) and value["relative_mce"] == pytest.approx(np.mean(relative))
    assert "not over the 15" in " ".join(result.notes)


def test_corrupted_files_give_the_errors_of_the_same_images_made(network, data, tmp_path):
    made = {**NOTHING, "corrupt": ["contrast"], "severities": [1, 4]}
    for severity in (1, 4):
        for file in sorted((data / "test").rglob("*.png")):
            target = tmp_path / "c" / "contrast" / str(severity) / file.relative_to(data / "test")
            target.parent.mkdir(parents=True, exist_ok=True)
            picture = corrupt(np.array(Image.open(file)), "contrast", severity, np.random.default_rng(0))
            Image.fromarray(picture).save(target)
    of_files = {**made, "corrupted": str(tmp_path / "c")}
    (one,), (other,) = (run(network, data, tmp_path / str(i), s) for i, s in enumerate((made, of_files)))
    for name in ("corruption_error", "corruption_error(contrast,4)", "error_increase"):
        assert one.metrics[name] == other.metrics[name]
    assert one.id != other.id
    part = open_data(str(data))["test"]
    cropping = Preprocessing(resize=40, squash=(36, 36), crop=(32, 28))
    for given, wanted in ((SMALL, SMALL), (cropping, dataclasses.replace(SMALL, resize=(32, 28)))):
        sets = open_sets(make_task("robustness", of_files).settings, part, part, given, lambda source: source)
        assert [each.preprocessing for each in sets.values()] == [wanted, wanted], "the files are cropped already"
    with pytest.raises(UsageError, match="has no folder contrast/2"):
        run(network, data, tmp_path, {**of_files, "severities": [2]})
    next((tmp_path / "c" / "contrast" / "1").rglob("*.png")).unlink()
    with pytest.raises(DataError, match="1 of 18 test images have no corrupted version"):
        run(network, data, tmp_path, of_files)


def test_a_set_has_a_record_of_its_own_whatever_else_is_scored(network, data, tmp_path):
    write_tinted(tmp_path / "some", 4, 2, classes=CLASSES[:2])
    settings = {**NOTHING, "sets": {"some": str(tmp_path / "some")}, "lines": {"some": [1.0, 0.0]}}
    summary, alone = run(network, data, tmp_path / "a", settings)
    _, beside = run(network, data, tmp_path / "b", {**settings, "corrupt": ["contrast"], "severities": [1]})
    assert alone.id == beside.id and alone.metrics == beside.metrics
    assert alone.data.test.n == 8 and alone.data.test.classes == ("blue", "green")
    assert "2 of the 3 classes of train compete." in alone.notes
    assert summary.metrics["top1(some)"] == alone.metrics["top1"] and alone.metrics["top1"].n == 8
    assert summary.metrics["top1"].n == 18 and summary.metrics["effective_robustness(some)"].n == 8
    difference = alone.metrics["top1"].value - summary.metrics["top1"].value
    effective = summary.metrics["effective_robustness(some)"]
    assert effective.value is None or effective.value == pytest.approx(difference)
    scores = read_scores(alone.file)
    surest_first = np.argsort(-softmax(scores.scores, axis=1).max(axis=1))
    right = (scores.scores.argmax(axis=1) == scores.labels)[surest_first]
    assert alone.metrics["aurra"].value == pytest.approx(100 * np.mean(np.cumsum(right) / np.arange(1, 9)))
    write_tinted(tmp_path / "another", 4, 3, classes=CLASSES[:2])
    again, other = run(network, data, tmp_path / "a", {**settings, "sets": {"some": str(tmp_path / "another")}})
    assert again.id != summary.id and other.id != alone.id, "other images at the same settings"


def test_images_of_a_set_that_cannot_be_read_are_left_out_and_counted(network, data, tmp_path):
    write_tinted(tmp_path / "set", 4, 2)
    (tmp_path / "set" / "red" / "1.png").write_bytes(b"no picture")
    task = make_task("robustness", {**NOTHING, "c": [0.1], "sets": {"a set": str(tmp_path / "set")}})
    request = Request(weights="net.torch", data=str(data), tasks=(task,), backbone="resnet18w0.125")
    prepared = prepare(request, dataclasses.replace(RUN, on_error="skip"), backbone=network)
    summary, own = evaluate(prepared, store=tmp_path / "store", out=tmp_path / "out", command="")
    assert (own.data.test.n, own.data.test.n_used) == (12, 11) and own.metrics["top1"].n == 11
    assert [image.id for image in own.data.unreadable] == ["red/1.png"] and not summary.data.unreadable
    assert [part.n_used for part in summary.data.further] == [11] and summary.metrics["top1(a set)"].n == 11
    with pytest.raises(DataError, match=r"1 of 12 images of .*set.* cannot be read"):
        run(network, data, tmp_path, {**NOTHING, "sets": {"a set": str(tmp_path / "set")}})


def test_classes_of_a_set_are_matched_by_name_by_number_or_refused(data, tmp_path):
    train = open_data(str(data))["train"]
    write_tinted(tmp_path / "numbers", 2, 4, classes=("0", "2"))
    assert open_test_set("v2", str(tmp_path / "numbers"), train).target.classes == ("blue", "red")
    write_tinted(tmp_path / "odd", 2, 4, classes=("blue", "yellow"))
    with pytest.raises(DataError, match=r"'yellow' .* is not in"):
        open_test_set("odd", str(tmp_path / "odd"), train)
    write_tinted(tmp_path / "blue", 2, 4, classes=("blue",))
    with pytest.raises(DataError, match=r"200 of its 200 classes are unknown to .*train"):
        open_test_set("imagenet-a", str(tmp_path / "blue"), train)


@pytest.mark.parametrize("name", ["a", "o", "r"])
def test_the_published_lists_have_200_classes(name):
    classes = classes_of(builtin_dir("benchmarks") / "classes" / f"_imagenet_{name}.yaml")
    assert len(set(classes)) == 200 and list(classes) == sorted(classes)


def test_real_labels_are_found_by_the_number_of_the_file(tmp_path, data):
    part = open_data(str(data))["test"]
    train = thousand_classes(part)
    ids = tuple(f"n/ILSVRC2012_val_{i + 1:08d}.JPEG" for i in range(len(part)))
    sets = [[i, 999 - i] if i % 3 else [] for i in range(len(part))]
    file = tmp_path / "real.json"
    file.write_text(json.dumps(sets))
    labelled = with_real_labels(dataclasses.replace(part, ids=ids), str(file), train)
    assert [sorted(999 - np.flatnonzero(row)) for row in labelled.target.values] == [sorted(each) for each in sets]
    with pytest.raises(DataError, match="is not one of the 18 validation images"):
        with_real_labels(part, str(file), train)
    file.write_text("[[1000]]")
    with pytest.raises(UsageError, match="one list of class numbers"):
        with_real_labels(part, str(file), train)


def write_objectnet(folder):
    """Two classes that ImageNet has, one of them by two of its classes, and one that it lacks."""
    mappings = folder / "mappings"
    mappings.mkdir(parents=True)
    labels = [f"label {number}, other name" for number in range(1000)]
    (mappings / "imagenet_to_label_2012_v2").write_text("\n".join(labels))
    files = {
        "folder_to_objectnet_label": {"alarm_clock": "Alarm clock", "banana": "Banana", "zipper": "Zipper"},
        "objectnet_to_imagenet_1k": {"Alarm clock": f"{labels[7]}; {labels[9]}", "Banana": labels[0]},
        "pytorch_to_imagenet_2012_id": {str(place): 999 - place for place in range(1000)},
    }
    for name, content in files.items():
        (mappings / f"{name}.json").write_text(json.dumps(content))
    for name in files["folder_to_objectnet_label"]:
        (folder / "images" / name).mkdir(parents=True)
        picture = np.full((10, 12, 3), 90, np.uint8)
        picture[[0, -1]] = picture[:, [0, -1]] = (255, 0, 0)
        Image.fromarray(picture).save(folder / "images" / name / "0.png")


def thousand_classes(source):
    names = tuple(f"n{i:08d}" for i in range(1000))[::-1]
    return dataclasses.replace(source, target=single_labels([names[0]] * len(source), names))


def test_objectnet_has_the_classes_of_its_own_mapping_and_no_border(tmp_path, data):
    write_objectnet(tmp_path / "objectnet")
    train = thousand_classes(open_data(str(data))["test"])
    source = open_objectnet(str(tmp_path / "objectnet"), train)
    right = [{train.target.classes[i] for i in np.flatnonzero(row == 1)} for row in source.target.values]
    assert right == [{"n00000992", "n00000990"}, {"n00000999"}, set()], "place 999 - number among the sorted synsets"
    competing = {train.target.classes[i] for i in np.flatnonzero(source.target.values[2] == 0)}
    assert competing == {"n00000992", "n00000990", "n00000999"}
    decoded = source.images.decoded(0, picture_decoder(None, source.images))
    assert decoded.image.shape == (3, 8, 10) and (decoded.image == 90).all()
    assert not np.array_equal(source.images.digests(), source.images.base.digests())
    with pytest.raises(DataError, match="1,000 classes"):
        open_objectnet(str(tmp_path / "objectnet"), open_data(str(data))["test"])
    (tmp_path / "objectnet" / "mappings" / "objectnet_to_imagenet_1k.json").write_text('{"Banana": "a plantain"}')
    with pytest.raises(UsageError, match="the labels of 'Banana' are not all in"):
        open_objectnet(str(tmp_path / "objectnet"), train)
    with pytest.raises(UsageError, match=r"cannot read .*mappings"):
        open_objectnet(str(data), train)


def test_unknown_images_are_told_apart_and_known_classes_are_refused(network, data, tmp_path):
    (tmp_path / "other").mkdir()
    for i in range(10):
        stripes = np.where(np.arange(32) // 4 % 2, 255 - 10 * i, 10 * i).astype(np.uint8)
        Image.fromarray(np.tile(stripes, (32, 1))).save(tmp_path / "other" / f"{i}.png")
    settings = {**NOTHING, "unknown": str(tmp_path / "other"), "neighbours": 3}
    (result,) = run(network, data, tmp_path, settings)
    assert result.headline == "unknown_auroc(msp)"
    values = {name: each for name, each in result.metrics.items() if name.startswith("unknown_")}
    assert len(values) == 12 and all(v.low <= v.value <= v.high and v.n == 18 + 10 for v in values.values())
    for novelty in ("mahalanobis", "neighbours"):
        assert values[f"unknown_auroc({novelty})"].value > 60, "grey stripes are unlike coloured noise"
    with pytest.raises(DataError, match="are not unknown: blue"):
        run(network, data, tmp_path, {**settings, "unknown": str(data / "test")})


def test_folders_of_unknown_images_may_have_the_names_of_a_list_of_known_classes(tmp_path):
    """ImageNet-O's folders are named after the classes that a network took its images for."""
    known = [f"n{number:08d}" for number in range(3)]
    listed = next(iter(further_sets.classes_of(further_sets._lists()["imagenet-o"])))
    write_tinted(
        tmp_path / "train", 2, 1, classes=(*further_sets.classes_of(further_sets._lists()["imagenet-o"]), *known)
    )
    write_tinted(tmp_path / "imagenet-o", 2, 1, classes=(listed,))
    train = open_data(str(tmp_path / "train"))["all"]
    found = further_sets.open_unknown(str(tmp_path / "imagenet-o"), train, "imagenet-o")
    assert len(found) == 2 and (found.target.values == 0).any(axis=1).all()
    with pytest.raises(DataError, match="are not unknown: n"):
        further_sets.open_unknown(str(tmp_path / "imagenet-o"), train, "")
    write_tinted(tmp_path / "imagenet-o", 2, 1, classes=(known[0],))
    with pytest.raises(DataError, match="are not unknown: n"):
        further_sets.open_unknown(str(tmp_path / "imagenet-o"), train, "imagenet-o")


ORTHOGONAL = np.linalg.qr(np.random.default_rng(5).normal(size=(4, 4)))[0]


def test_only_classes_of_a_list_are_known_where_one_is_named(network, data, tmp_path, monkeypatch):
    write_tinted(tmp_path / "other", 3, 5, classes=("grey",))
    lists = tmp_path / "benchmarks" / "classes"
    lists.mkdir(parents=True)
    (lists / "_mine.yaml").write_text("title: t\nsource: s\nclasses: [blue, red]\n")
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    settings = {**NOTHING, "unknown": str(tmp_path / "other"), "neighbours": 3}
    (every,), (listed,) = (run(network, data, tmp_path, {**settings, "known": known}) for known in ("", "mine"))
    assert every.metrics["top1"] == listed.metrics["top1"] and every.id != listed.id
    assert every.floors["chance"]["unknown_aupr(msp)"] == pytest.approx(100 * 3 / 21)
    assert listed.floors["chance"]["unknown_aupr(msp)"] == pytest.approx(100 * 3 / 15)
    with pytest.raises(UsageError, match="no list of classes called 'mein'"):
        run(network, data, tmp_path, {**settings, "known": "mein"})
    with pytest.raises(DataError, match="200 of its 200 classes are unknown"):
        run(network, data, tmp_path, {**settings, "known": "imagenet-o"})


def test_the_accuracy_of_the_most_confident_is_that_of_a_loop():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(50), rng.random(50) < 0.6
    order = np.argsort(-confidence)
    wanted = np.mean([correct[order[: n + 1]].mean() for n in range(50)])
    value, low, high = measures.response_rate_accuracy(confidence, correct, Units.of(50, None), seed=0)
    assert value == pytest.approx(wanted) and low < value < high
    kept = np.sort(rng.choice(50, 25, replace=False))
    weights = np.isin(np.arange(50), kept).astype(float)[None]
    half = measures.response_rate_statistic(confidence, correct)(weights)[0, 0]
    alone = measures.response_rate_statistic(confidence[kept], correct[kept])(np.ones((1, 25)))[0, 0]
    assert half == pytest.approx(alone)


def detected(known, unknown):
    """AUROC, AUPR and FPR95 of samples that all count once."""
    return tuple(measures.detection_statistic(known, unknown)(np.ones((1, len(known) + len(unknown))))[0])


def test_detection_on_a_part_of_the_samples_is_that_of_the_part_alone():
    rng = np.random.default_rng(0)
    known, unknown = np.round(rng.normal(size=60), 1), np.round(rng.normal(size=40) + 1, 1)
    weights = (rng.random(100) < 0.5).astype(float)
    part = measures.detection_statistic(known, unknown)(weights[None])[0]
    alone = detected(known[weights[:60] > 0], unknown[weights[60:] > 0])
    assert part[:2] == pytest.approx(alone[:2]) and alone[0] == pytest.approx(
        roc_auc_score(np.r_[np.zeros(60), np.ones(40)][weights > 0], np.r_[known, unknown][weights > 0])
    )
    assert part[2] == pytest.approx(alone[2])


@pytest.mark.parametrize("unknown", [2, 5, 17, 40])
def test_the_false_positive_rate_is_that_of_a_loop_over_thresholds(unknown):
    rng = np.random.default_rng(unknown)
    known, new = rng.normal(size=30), rng.normal(size=unknown) + 1
    found = []
    for threshold in np.sort(np.r_[known, new])[::-1]:
        found.append(((new >= threshold).mean(), (known >= threshold).mean()))
        if found[-1][0] == 1:
            break
    nearest = min(abs(recall - 0.95) for recall, _ in found)
    wanted = max(rate for recall, rate in found if abs(recall - 0.95) == nearest)
    assert detected(known, new)[2] == pytest.approx(wanted)


def test_novelties_are_those_of_their_definitions():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(90, 4)) * [1, 3, 0.1, 0.01] @ ORTHOGONAL, np.arange(90) % 3
    x[labels == 1] += 3
    means = np.array([x[labels == c].mean(0) for c in range(3)])
    covariance = EmpiricalCovariance(assume_centered=True).fit(x - means[labels])
    new = rng.normal(size=(20, 4))
    wanted = np.min([covariance.mahalanobis(new - mean) for mean in means], axis=0)
    np.testing.assert_allclose(MahalanobisNovelty(x, labels)(new), wanted, rtol=1e-8)
    logits = torch.from_numpy(rng.normal(size=(5, 3)) * 50)
    np.testing.assert_allclose(energy_novelty(logits.numpy()), -logits.logsumexp(1), rtol=1e-12)
    np.testing.assert_allclose(softmax_novelty(logits.numpy()), -logits.softmax(1).max(1).values, rtol=1e-12)


def test_the_interval_of_the_mean_error_is_that_of_groups_where_there_are_any():
    wrong = np.repeat(np.random.default_rng(0).random((20, 2, 3)) < 0.5, 5, axis=0)
    errors = measures.corruption_means(wrong, wrong[:, 0, 0], ["fog", "snow"], [1, 2, 3])
    values = {measures.CORRUPTION_ERROR: errors.values("corruption_error")}
    groups = np.repeat(np.arange(20), 5)
    alone, together = (means(values, Units.of(100, g))["corruption_error"] for g in (None, groups))
    assert alone[0] == together[0] and together[2] - together[1] > 1.5 * (alone[2] - alone[1])


REFUSED = {
    "there is no corruption 'fogg'\nDid you mean 'fog'": {"corrupt": ["fogg"]},
    "severities should be from 1 to 5": {"severities": [6]},
    "severities holds a value twice": {"severities": [1, 1]},
    "crops should be above 0 and below 1": {"crops": [1.5]},
    "scales should be above 0": {"scales": [0.0]},
    "neighbours has no effect without unknown": {"neighbours": 7},
    "known has no effect without unknown": {"known": "imagenet-o"},
    "nothing is left to measure": NOTHING,
    "reference has no errors for fog": {"corrupt": ["fog"], "reference": {"snow": [0.5] * 5}},
    "reference has no errors for snow": {"corrupt": ["snow"], "reference": {}},
    "rotations should be finite, not inf": {"rotations": [float("inf")]},
    "reference.fog should be 5 errors from 0 to 1": {"corrupt": ["fog"], "reference": {"fog": [50.0] * 5}},
    "reference has no effect": {"corrupt": [], "reference": {"fog": [0.5] * 5}},
    "severities has no effect": {"corrupt": [], "severities": [1]},
    "change_seed has no effect": {"corrupt": [], "crops": [], "change_seed": 1},
    "corrupted has no effect": {"corrupt": [], "corrupted": "folder"},
    "the line of imagenet-a has no effect": {"lines": {"imagenet-a": [1.0, 0.0]}},
    "cannot be called 'fog-1'": {"sets": {"fog-1": "here"}},
    "c has no value": {"c": []},
}


@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_cannot_work_are_refused(message):
    with pytest.raises(UsageError, match=message):
        settings = make_task("robustness", REFUSED[message]).settings
        find("robustness").kind.check(settings, single_labels(["a", "b"] * 60))


def test_any_number_of_degrees_is_a_rotation():
    assert make_task("robustness", {"rotations": [-400, 720]}).settings.rotations == (-400.0, 720.0)


def test_images_that_cannot_be_corrupted_are_refused_before_any_is_decoded(network, data, tmp_path):
    tiny = dataclasses.replace(network, preprocessing=dataclasses.replace(SMALL, resize=(24, 24)))
    with pytest.raises(UsageError, match="corruptions need 32 pixels a side, and the backbone takes 24x24"):
        run(tiny, data, tmp_path, {})


def test_frost_without_its_pictures_is_refused_before_any_image_is_decoded(network, data, tmp_path, monkeypatch):
    monkeypatch.delenv("SSLBENCH_FROST", raising=False)
    with pytest.raises(UsageError, match="SSLBENCH_FROST"):
        run(network, data, tmp_path, {"corrupt": ["main"]})


def test_groups_of_corruptions_are_written_out():
    assert len(corruptions(Settings(corrupt=("main",)))) == 15
    assert corruptions(Settings(corrupt=("fog", "extra")))[:2] == ("fog", "speckle_noise")
    errors = read_yaml(builtin_dir("benchmarks") / "presets" / "robustness" / "imagenet_c.yaml")["settings"]
    assert set(errors["reference"]) == {*corruptions(Settings(corrupt=("main", "extra"))), "clean"}
