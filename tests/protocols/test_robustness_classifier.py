"""Robustness of the classifier in a weights file, and paired comparisons of its records, against plain loops."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from helpers.coloured_pictures import write_tinted
from PIL import Image, ImageOps
from torch import nn

from sslbench.backbones.build import build
from sslbench.backbones.classifier import ClassifierHead, ClassifierInfo, classifier_metadata
from sslbench.data.corruptions import corrupt
from sslbench.data.labels import single_labels
from sslbench.errors import DataError, ResultError, UsageError
from sslbench.evaluation import Request, RunSettings, evaluate, make_task, prepare
from sslbench.leaderboard.compare import compare
from sslbench.metrics.intervals import Units, mean_of_rows, paired_difference
from sslbench.metrics.robustness import CORRUPTION_ERROR
from sslbench.protocols import find
from sslbench.results import records
from sslbench.weights import save

NAME, D, CLASSES = "resnet18w0.25", 128, ("blue", "green", "red")
RUN = RunSettings(device="cpu", workers=0, overlaps=False, batch_size=32)
SIZE = {"resize": (32, 32), "crop": None}
NOTHING = {"corrupt": [], "rotations": [], "scales": [], "crops": []}
OF_FILE = {**NOTHING, "classifier": "file"}


@pytest.fixture
def photos(tmp_path):
    write_tinted(tmp_path / "photos", 6, 1)
    return tmp_path / "photos"


def network(seed, outputs=3, norm="none"):
    """An untrained network whose classifier predicts different classes for different pictures."""
    torch.manual_seed(seed)
    module, head = build(NAME, seed=seed).module.eval(), ClassifierHead(D, outputs, norm).eval()
    rng = np.random.default_rng(seed)
    pictures = [rng.integers(0, 120, (32, 32, 3)) + 40 * np.eye(3, dtype=int)[i % 3] for i in range(30)]
    pictures += [rng.integers(0, 255, (8, 8, 3)).repeat(4, 0).repeat(4, 1) for _ in range(30)]
    with torch.inference_mode():
        features = head.norm(module(as_batch([each.astype(np.uint8) for each in pictures])))
    with torch.no_grad():
        head.head.bias.copy_(-head.head.weight @ features.mean(0))
    return module, head, nn.Sequential(module, head)


def as_batch(pictures):
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    return torch.stack([(torch.from_numpy(np.array(p)).permute(2, 0, 1) / 255 - mean) / std for p in pictures])


def finetuned(path, seed=0, norm="layer", classes=CLASSES):
    module, head, whole = network(seed, len(classes), norm)
    info = classifier_metadata(ClassifierInfo("res5avg", norm, "single", classes))
    save.save(path, module.state_dict(), backbone=NAME, metadata={"classifier": info}, heads=head.state_dict())
    return str(path), whole


def supervised(path, seed=0, outputs=3):
    module, head, whole = network(seed, outputs)
    state = head.state_dict()
    torch.save({**module.state_dict(), "fc.weight": state["head.weight"], "fc.bias": state["head.bias"]}, path)
    return str(path), whole


def run(weights, data, out, settings=OF_FILE, changes=RUN, **request):
    task = make_task("robustness", settings)
    prepared = prepare(Request(weights=weights, data=str(data), tasks=(task,), preprocessing=SIZE, **request), changes)
    return evaluate(prepared, store=out / "store", out=out / "out", command="")


def predicted(whole, pictures):
    with torch.inference_mode():
        return whole(as_batch(pictures)).argmax(1).numpy()


@pytest.mark.parametrize("make", [finetuned, supervised])
def test_the_number_is_that_of_the_network_on_all_of_the_data(tmp_path, photos, make):
    path, whole = make(tmp_path / "w.torch")
    settings = {**OF_FILE, "corrupt": ["contrast"], "severities": [2, 5]}
    (result,) = run(path, photos, tmp_path, settings)
    files = sorted(photos.rglob("*.png"))
    truth = np.repeat(np.arange(3), 6)
    right = predicted(whole, [Image.open(file) for file in files]) == truth
    assert result.metrics["top1"].value == pytest.approx(100 * right.mean()) and result.metrics["top1"].n == 18
    assert len(set(predicted(whole, [Image.open(file) for file in files]))) > 1
    for severity in (2, 5):
        changed = [corrupt(np.array(Image.open(f)), "contrast", severity, np.random.default_rng(0)) for f in files]
        wrong = predicted(whole, changed) != truth
        assert result.metrics[f"corruption_error(contrast,{severity})"].value == pytest.approx(100 * wrong.mean())
    assert "Scored without training: the classifier in w.torch, 3 classes" in " ".join(result.notes)
    assert result.converged is None and not result.selected and set(result.missing_floors) == {"pixels", "untrained"}


def test_train_is_encoded_only_where_unknown_images_are_compared_with_it(tmp_path, photos, caplog):
    caplog.set_level("INFO")
    write_tinted(tmp_path / "both" / "train", 4, 2)
    write_tinted(tmp_path / "both" / "test", 3, 3)
    write_tinted(tmp_path / "other", 5, 4, ("grey",))
    path, _ = finetuned(tmp_path / "w.torch")
    (alone,) = run(path, tmp_path / "both", tmp_path, {**OF_FILE, "rotations": [90.0]})
    assert "train): " not in caplog.text and alone.data.train.n == alone.data.test.n == 9
    settings = {**OF_FILE, "unknown": str(tmp_path / "other"), "neighbours": 2}
    (unknown,) = run(path, tmp_path / "both", tmp_path, settings)
    assert unknown.data.train.n == 12 and "unknown_auroc(mahalanobis)" in unknown.metrics
    assert unknown.metrics["top1"] == alone.metrics["top1"]


def test_other_classes_of_the_file_compete_and_a_set_has_a_record_of_its_own(tmp_path, photos):
    path, whole = finetuned(tmp_path / "w.torch", classes=("blue", "green", "orange", "red"))
    write_tinted(tmp_path / "some", 4, 2, CLASSES[:2])
    summary, own = run(path, photos, tmp_path, {**OF_FILE, "sets": {"some": str(tmp_path / "some")}})
    right = predicted(whole, [Image.open(f) for f in sorted(photos.rglob("*.png"))]) == np.repeat([0, 1, 3], 6)
    assert summary.metrics["top1"].value == pytest.approx(100 * right.mean())
    assert summary.data.test.classes == ("blue", "green", "orange", "red") and own.data.test.n == 8
    _, beside = run(path, tmp_path / "some", tmp_path, {**OF_FILE, "sets": {"some": str(tmp_path / "some")}})
    assert beside.id == own.id, "the record of a set does not depend on the test part"


def test_the_record_follows_the_classifier_and_the_names_of_its_classes(tmp_path, photos):
    settings = {**OF_FILE, "rotations": [90.0]}
    path, _ = supervised(tmp_path / "a.torch")
    content = torch.load(path)
    content["fc.bias"] += torch.tensor([1.0, 0.0, 0.0])
    torch.save(content, tmp_path / "b.torch")
    names = tmp_path / "names.txt"
    names.write_text("red\ngreen\nblue\n")
    first, other, named = (
        run(*each)[0]
        for each in (
            (path, photos, tmp_path, settings),
            (str(tmp_path / "b.torch"), photos, tmp_path, settings),
            (path, photos, tmp_path, {**settings, "class_names": str(names)}),
        )
    )
    probe = run(path, photos, tmp_path, {**NOTHING, "rotations": [90.0], "c": [0.1]})[0]
    assert len({first.id, other.id, named.id, probe.id}) == 4
    assert first.weights.sha256 == other.weights.sha256 == probe.weights.sha256
    assert named.data.test.classes == ("red", "green", "blue") and first.data.test.classes == CLASSES


def test_a_file_of_a_thousand_classes_without_names_has_those_of_imagenet(tmp_path):
    write_tinted(tmp_path / "photos", 4, 1, ("n01440764", "n01530575", "n02123394"))
    path, whole = supervised(tmp_path / "w.torch", outputs=1000)
    (result,) = run(path, tmp_path / "photos", tmp_path, {**OF_FILE, "rotations": [90.0]})
    right = predicted(whole, [Image.open(f) for f in sorted((tmp_path / "photos").rglob("*.png"))])
    assert result.metrics["top1"].value == pytest.approx(100 * (right == np.repeat([0, 10, 283], 4)).mean())


def test_images_with_several_right_classes_are_scored_as_by_a_loop(tmp_path):
    """ReaL leaves images without a right class out; ObjectNet scores shared classes, its challenge all of them."""
    path, whole = supervised(tmp_path / "w.torch", outputs=1000)
    rng = np.random.default_rng(2)

    def pictures(number):
        return [Image.fromarray(each) for each in rng.integers(0, 255, (number, 32, 32, 3)).astype(np.uint8)]

    def by_score(images):
        with torch.inference_mode():
            return whole(as_batch(images)).argsort(1, descending=True).tolist()

    photos, bordered = pictures(7), {name: pictures(4) for name in ("alarm_clock", "banana", "mug", "zipper")}
    for i, image in enumerate(photos):
        folder = tmp_path / "photos" / ("n01440764", "n01530575")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"ILSVRC2012_val_{i + 1:08d}.png")
    ranked = by_score(photos)
    places = ((0,), (4, 500), (5,), (), (999,), (3, 0), (1, 2))  # of the right classes in the order of the scores
    real = [[order[place] for place in own] for order, own in zip(ranked, places, strict=True)]
    (tmp_path / "real.json").write_text(json.dumps(real))
    right, mappings = {}, tmp_path / "objectnet" / "mappings"
    mappings.mkdir(parents=True)
    for name, images in bordered.items():
        (tmp_path / "objectnet" / "images" / name).mkdir(parents=True)
        for i, image in enumerate(images):
            ImageOps.expand(image, 1, (255, 0, 0)).save(tmp_path / "objectnet" / "images" / name / f"{i}.png")
        orders = by_score(images)
        right[name] = sorted({orders[0][0], orders[1][4], orders[2][9]})
    right |= {"mug": [by_score(bordered["mug"])[0][-1]], "zipper": []}
    (mappings / "imagenet_to_label_2012_v2").write_text("\n".join(f"label {number}" for number in range(1000)))
    for name, content in {
        "folder_to_objectnet_label": {name: name for name in right},
        "objectnet_to_imagenet_1k": {name: "; ".join(f"label {c}" for c in own) for name, own in right.items() if own},
        "pytorch_to_imagenet_2012_id": {str(place): place for place in range(1000)},
    }.items():
        (mappings / f"{name}.json").write_text(json.dumps(content))
    settings = {**OF_FILE, "sets": {"imagenet-real": str(tmp_path / "real.json"), "objectnet": str(mappings.parent)}}
    (result,) = run(path, tmp_path / "photos", tmp_path, settings)
    shared = {c for own in right.values() for c in own}
    scored = [(order, right[name]) for name, images in bordered.items() for order in by_score(images)]
    sets = {
        "imagenet-real": [each for each in zip(ranked, real, strict=True) if each[1]],
        "objectnet": [([c for c in order if c in shared], own) for order, own in scored if own],
        "objectnet,challenge": scored,
    }
    for name, images in sets.items():
        for k in (1, 5):
            wanted = np.mean([bool({*order[:k]} & {*own}) for order, own in images])
            metric = result.metrics[f"top{k}({name})"]
            assert metric.value == pytest.approx(100 * wanted) and 0 < wanted < 1
            assert metric.n == len(images), "the images that are scored, not those of test"


def test_what_has_no_effect_or_no_classifier_is_refused(tmp_path, photos):
    path, _ = supervised(tmp_path / "w.torch")
    settings = {**OF_FILE, "rotations": [90.0]}
    check = find("robustness").kind.check
    for message, changes in {
        "c has no effect without classifier=linear": {"c": [1.0]},
        "holdout has no effect without classifier=linear": {"holdout": 0.3},
        "class_names has no effect without classifier=file": {"classifier": "linear", "class_names": "names.txt"},
    }.items():
        with pytest.raises(UsageError, match=message):
            check(make_task("robustness", {**settings, **changes}).settings, single_labels(["a", "b"] * 60))
    with pytest.raises(UsageError, match="--layers has no effect with classifier=file"):
        run(path, photos, tmp_path, settings, layers=("res4",))
    with pytest.raises(UsageError, match="'random' has no classifier"):
        run("random", photos, tmp_path, settings, backbone=NAME)
    with pytest.raises(UsageError, match="baseline has no effect"):
        run(path, photos, tmp_path, settings, dataclasses.replace(RUN, baseline=True))
    write_tinted(tmp_path / "four", 2, 1, (*CLASSES, "yellow"))
    with pytest.raises(UsageError, match=r"3 classes have no names, and .* has 4 classes"):
        run(path, tmp_path / "four", tmp_path, settings)
    own, _ = finetuned(tmp_path / "own.torch")
    with pytest.raises(DataError, match=r"'yellow' of .* is not in the classifier in own\.torch"):
        run(own, tmp_path / "four", tmp_path, settings)
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    with pytest.raises(UsageError, match=r"class_names has no effect: .* names its classes itself"):
        run(own, photos, tmp_path, {**settings, "class_names": str(tmp_path / "names.txt")})


def test_two_records_are_compared_image_by_image(tmp_path, photos):
    settings = {**OF_FILE, "corrupt": ["contrast", "fog"], "severities": [1, 4]}
    settings["reference"] = {"contrast": [0.5] * 5, "fog": [0.4] * 5, "clean": [0.3]}
    a, b = (run(finetuned(tmp_path / f"{s}.torch", s)[0], photos, tmp_path, settings)[0] for s in (0, 1))
    stored = [records.read_scores(each.file).means for each in (a, b)]
    for metric in stored[0].metrics:
        values = [each.values(metric) for each in stored]
        wanted = paired_difference(*values, Units.of(18, None))
        found = compare(a, b, metric=metric)
        assert (found.difference, found.low, found.high) == pytest.approx([100 * each for each in wanted])
        assert found.value_a == pytest.approx(a.metrics[metric].value)
        assert found.value_b == pytest.approx(b.metrics[metric].value)
    assert compare(a, b).metric == "corruption_error" and {"mce", "relative_mce", "error_increase"} <= {
        *found.a.metrics
    }
    clean = compare(a, b, metric="top1").difference
    increase = compare(a, b, metric="corruption_error").difference
    assert compare(a, b, metric="error_increase").difference == pytest.approx(increase + clean)
    with pytest.raises(ResultError, match=r"'cosine\(other images\)' cannot be computed|no such"):
        compare(a, b, metric="cosine(other images)")


def test_groups_have_their_own_mean_error(tmp_path, photos):
    table = tmp_path / "table.csv"
    rows = [f"{file},{file.parent.name},{'ab'[i % 2]}" for i, file in enumerate(sorted(photos.rglob("*.png")))]
    table.write_text("\n".join(["image,label,site", *rows]))
    path, _ = finetuned(tmp_path / "w.torch")
    settings = {**OF_FILE, "corrupt": ["contrast"], "severities": [1, 5]}
    (result,) = run(path, table, tmp_path, settings, groups=("site",))
    scores = records.read_scores(result.file)
    assert len(result.groups["site"]) == 2
    for group in result.groups["site"]:
        site = {str(row.split(",")[0]): row.split(",")[2] for row in rows}
        own = np.flatnonzero([next(s for f, s in site.items() if f.endswith(i)) == group.name for i in scores.ids])
        values = scores.means.values("corruption_error")
        wanted = mean_of_rows(CORRUPTION_ERROR, values, own, None)
        assert (group.metric.value, group.metric.low) == pytest.approx([100 * wanted[0], 100 * wanted[1]])
    assert result.metrics["worst_group(site).corruption_error"] == result.groups["site"][0].metric
