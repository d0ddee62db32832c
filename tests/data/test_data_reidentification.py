"""Re-identification: layouts, the own camera left out, and the published evaluation as a slow oracle."""

import csv
from itertools import combinations

import numpy as np
import pytest
import scipy.io
from PIL import Image
from sample_data import reidentification as sample

from sslbench.data.open import open_data
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.metrics.retrieval import identity_values, random_order_identity_values
from sslbench.protocols import retrieval


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 6)).save(path)


def write_table(path, rows, header=("path", "identity", "camera", "split")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    for name, *_ in rows:
        picture(path.parent / name)


def test_market_leaves_junk_and_the_own_camera_out(tmp_path):
    found = open_data(sample.make(tmp_path))
    test = found["test"].target.queries
    assert found["train"].target.classes == ("0001", "0004")
    assert len(found["test"]) == 7 and not any("-1_" in sample_id for sample_id in found["test"].ids)
    assert test.apart == {"query/0002_c1s1_000004_00.png", "query/0003_c2s1_000005_00.png"}
    own = test.tasks[""]["query/0002_c1s1_000004_00.png"]
    assert own.positives == ("bounding_box_test/0002_c2s1_000009_00.png",)
    assert own.ignored == ("bounding_box_test/0002_c1s1_000008_00.png",)


def test_veri_and_msmt17_are_read_as_market_is(tmp_path):
    for folder, name in (("train", "0001_c001_1_0"), ("test", "0002_c002_1_0"), ("query", "0002_c001_1_0")):
        picture(tmp_path / f"veri/image_{folder}/{name}.jpg")
    veri = open_data(str(tmp_path / "veri"))["test"].target.queries.tasks[""]
    assert veri["image_query/0002_c001_1_0.jpg"].positives == ("image_test/0002_c002_1_0.jpg",)
    lists = {"train": ["0000_0_01_a"], "query": ["0001_0_02_b"], "gallery": ["0001_1_02_c", "0001_2_03_d"], "val": []}
    for split, names in lists.items():
        lines = [f"{name[:4]}/{name}.jpg {int(name[:4])}" for name in names]
        (tmp_path / "msmt").mkdir(exist_ok=True)
        (tmp_path / f"msmt/list_{split}.txt").write_text("\n".join(lines))
        for name in names:
            picture(tmp_path / "msmt" / ("train" if split == "train" else "test") / name[:4] / f"{name}.jpg")
    (answers,) = open_data(str(tmp_path / "msmt"))["test"].target.queries.tasks[""].values()
    assert answers.positives == ("test/0001/0001_2_03_d.jpg",) and answers.ignored == ("test/0001/0001_1_02_c.jpg",)


def write_cuhk03(
    root,
    names=("1_001_1_01.png", "1_002_1_01.png", "1_002_1_02.png", "1_002_2_06.png"),
    query=2,
    folder="images_labeled",
):
    files = np.array([[name] for name in names], dtype=object)
    rows = {"train_idx": [[1]], "query_idx": [[query]], "gallery_idx": [[3], [4]]}
    root.mkdir()
    content = {"filelist": files, "labels": [[1], [7], [7], [7]], **rows}
    scipy.io.savemat(root / "cuhk03_new_protocol_config_labeled.mat", content)
    for name in names:
        picture(root / folder / name)


def test_cuhk03_has_the_split_of_its_mat_file(tmp_path):
    write_cuhk03(tmp_path / "cuhk03")
    found = open_data(f"{tmp_path}/cuhk03?boxes=labeled")
    assert found["train"].ids == ("images_labeled/1_001_1_01.png",) and found["train"].target.classes == ("1",)
    (answers,) = found["test"].target.queries.tasks[""].values()
    assert answers.positives == ("images_labeled/1_002_2_06.png",)
    assert answers.ignored == ("images_labeled/1_002_1_02.png",)


@pytest.mark.parametrize(
    ("written", "option", "message"),
    [
        ({}, "", "config_detected.mat is not there"),
        ({"folder": "images"}, "?boxes=labeled", "not the folder .*images_labeled"),
        ({}, "?boxes=detected", "config_detected.mat is not there"),
        ({"query": 3}, "?boxes=labeled", "has 3, which stands there or in another split already"),
        ({"query": 9}, "?boxes=labeled", "query_idx has 9, and there are 4 files"),
        ({"names": ("a.png", "b.png", "c.png", "d.png")}, "?boxes=labeled", "a.png is no name of CUHK03"),
    ],
)
def test_bad_cuhk03_is_told(tmp_path, written, option, message):
    write_cuhk03(tmp_path / "cuhk03", **written)
    with pytest.raises(DataError, match=message):
        open_data(f"{tmp_path}/cuhk03{option}")


def test_boxes_are_of_cuhk03_alone(tmp_path):
    with pytest.raises(DataError, match=r"is not CUHK03, so \?boxes=labeled has no effect"):
        open_data(sample.make(tmp_path) + "?boxes=labeled")


def test_a_table_needs_no_cameras(tmp_path):
    rows = [("a.png", "Möwe 1", "query"), ("b.png", "Möwe 1", "gallery"), ("c.png", "2", "gallery")]
    write_table(tmp_path / "birds.csv", rows, ("path", "identity", "split"))
    (answers,) = open_data(str(tmp_path / "birds.csv"))["test"].target.queries.tasks[""].values()
    assert answers.positives == ("b.png",) and answers.ignored == ()


def test_columns_in_capitals_are_found_and_a_table_without_cameras_says_what_follows(tmp_path):
    write_table(tmp_path / "birds.csv", [("a.png", "1", "1", "query"), ("b.png", "1", "1", "gallery")])
    file = tmp_path / "birds.csv"
    lines = file.read_text().splitlines()
    notes = []
    for header in (lines[0].title(), lines[0].replace("camera", "cam")):
        file.write_text("\n".join([header, *lines[1:]]))
        source = open_data(str(file))["test"]
        notes.append((len(source.target.queries.tasks[""]["a.png"].positives), " ".join(source.notes)))
    assert notes[0][0] == 0 and "column 'camera'" not in notes[0][1]
    assert notes[1][0] == 1 and "has no column 'camera': no image of a query's camera is taken out" in notes[1][1]


def test_a_table_of_identities_without_queries_is_one_of_labels(tmp_path):
    write_table(tmp_path / "faces.csv", [("a.png", "1", "1", "train"), ("b.png", "1", "1", "test")])
    assert open_data(str(tmp_path / "faces.csv"), label_column="identity")["test"].target.queries is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a.png", "1", "1", "query")], "no images of the split 'gallery'"),
        ([("a.png", "1", "1", "query"), ("b.png", "1", "1", "galery")], "split 'galery'"),
        ([("a.png", "1", "1", "query"), ("b.png", "", "1", "gallery")], "identity ''"),
        ([("a.png", "1", "1", "query"), ("a.png", "1", "2", "gallery")], "lists 1 image more than once: a.png"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path, rows, message):
    write_table(tmp_path / "own.csv", rows)
    with pytest.raises(DataError) as found:
        open_data(str(tmp_path / "own.csv"))
    assert message in f"{found.value} {found.value.remedy}"


def test_names_without_a_camera_are_refused(tmp_path):
    sample.make(tmp_path)
    picture(tmp_path / "query/who.png")
    with pytest.raises(DataError, match=r"who\.png has no identity and camera"):
        open_data(str(tmp_path))


def slow_metrics(x, rows):
    """CMC at 1, 5 and 10, mAP and mINP by definition, one query after the other."""
    queries, gallery = ([i for i, row in enumerate(rows) if row[3] == split] for split in ("query", "gallery"))
    found = []
    for q in queries:
        kept = [g for g in gallery if rows[g][1:3] != rows[q][1:3]]
        order = sorted(kept, key=lambda g: -float(x[q] @ x[g]))
        right = [rows[g][1] == rows[q][1] for g in order]
        if any(right):
            places = [i for i, hit in enumerate(right) if hit]
            precision = np.mean([(n + 1) / (place + 1) for n, place in enumerate(places)])
            found.append([*(any(right[:k]) for k in (1, 5, 10)), precision, len(places) / (places[-1] + 1)])
    return np.mean(found, axis=0), len(found)


def test_metrics_are_those_of_the_published_evaluation(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"{i:03d}.png", str(rng.integers(0, 12)), str(rng.integers(0, 3)), "gallery") for i in range(60)]
    rows += [(f"{i:03d}.png", str(rng.integers(0, 15)), str(rng.integers(0, 3)), "query") for i in range(60, 90)]
    write_table(tmp_path / "own.csv", rows)
    source = open_data(str(tmp_path / "own.csv"))["test"]
    x = rng.normal(size=(90, 8)) + 2 * np.eye(15, 8)[[int(row[1]) for row in rows]]
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    features = Features(x, source.target, source.ids)
    outcome = retrieval.run(features, features, retrieval.Settings(), seed=0)
    expected, number = slow_metrics(x, rows)
    names = ("recall@1", "recall@5", "recall@10", "retrieval_mAP", "mINP")
    np.testing.assert_allclose([outcome.metrics[name][0] for name in names], expected, rtol=1e-6)
    assert outcome.headline == "retrieval_mAP" and set(outcome.counts.values()) == {number}


def test_shuffled_identities_are_at_the_stated_chance(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"{i:03d}.png", str(i % 20), str(i // 20 % 3), "query" if i < 60 else "gallery") for i in range(240)]
    write_table(tmp_path / "own.csv", rows)
    source = open_data(str(tmp_path / "own.csv"))["test"]
    found = []
    for _ in range(20):
        # Clusters, which have nothing to do with the identities.
        x = rng.permutation(np.eye(20, dtype=np.float32)[np.arange(240) % 20] + 0.1 * rng.normal(size=(240, 20)))
        features = Features(x.astype(np.float32), source.target, source.ids)
        outcome = retrieval.run(features, features, retrieval.Settings(), seed=0)
        found.append([outcome.metrics[name][0] for name in outcome.chance])
    np.testing.assert_allclose(np.mean(found, axis=0), list(outcome.chance.values()), atol=0.03)


def test_chance_of_the_inverse_negative_penalty_is_exact():
    every = [identity_values(np.array(places)) for places in combinations(range(7), 3)]
    np.testing.assert_allclose(random_order_identity_values(3, 7), np.mean(every, axis=0), rtol=1e-12)
