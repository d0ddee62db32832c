"""Keypoints of COCO and kwcoco manifests: read, checked, exported, joined, cached."""

import json

import numpy as np
import pytest
from PIL import Image

from sslbench.data.checks.objects import check_objects
from sslbench.data.export import write_kwcoco
from sslbench.data.joined import join
from sslbench.data.objects import view
from sslbench.data.open import open_objects
from sslbench.errors import DataError

NAMES = ["nose", "left_eye", "right_eye"]
PERSON = {"id": 1, "name": "person", "keypoints": NAMES, "skeleton": [[1, 2], [1, 3]]}
ANNOTATION = {
    **{"id": 1, "image_id": 1, "category_id": 1, "bbox": [2, 3, 20, 30], "area": 400.0, "iscrowd": 0},
    **{"keypoints": [5, 6, 2, 9.5, 8, 1, 0, 0, 0], "num_keypoints": 2},
}


def manifest(folder, annotations=(ANNOTATION,), categories=(PERSON,), **further):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 50)).save(folder / "a.png")
    Image.new("RGB", (40, 50), (9, 9, 9)).save(folder / "b.png")
    images = [{"id": i + 1, "file_name": f"{name}.png", "height": 50, "width": 40} for i, name in enumerate("ab")]
    path = folder / "person_keypoints.json"
    content = {"images": images, "annotations": list(annotations), "categories": list(categories), **further}
    path.write_text(json.dumps(content))
    return path


def opened(path):
    (source,) = open_objects(str(path)).values()
    return source


def test_cocos_form(tmp_path):
    source = opened(manifest(tmp_path))
    assert (source.target.skeleton.names, source.target.skeleton.edges) == (tuple(NAMES), ((0, 1), (0, 2)))
    assert source.target.objects[0].keypoints.tolist() == [[[5, 6, 2], [9.5, 8, 1], [0, 0, 0]]]
    assert source.target.objects[1].keypoints.shape == (0, 3, 3)
    assert source.target.labelled_keypoints.tolist() == [1, 1, 0] and source.notes == ()


def test_a_keypoint_that_is_not_labelled_has_no_place(tmp_path):
    source = opened(manifest(tmp_path, [{**ANNOTATION, "keypoints": [5, 6, 0, 9, 8, 2, 1, 1, 1]}]))
    assert source.target.objects[0].keypoints[0, 0].tolist() == [0, 0, 0]


def test_kwcocos_form_with_several_categories(tmp_path):
    """Categories have keypoints of their own, joined by name; reflection_id tells those that change places."""
    kinds = [
        {"id": 7, "name": "port", "reflection_id": 8},
        {"id": 8, "name": "starboard", "reflection_id": 7},
        {"id": 9, "name": "bow", "reflection_id": None},
    ]
    categories = [
        {"id": 1, "name": "ship", "keypoints": ["bow", "port", "starboard"]},
        {"id": 2, "name": "raft", "keypoints": ["starboard", "port"]},
        {"id": 3, "name": "buoy"},
    ]
    rows = [
        {**ANNOTATION, "keypoints": [{"xy": [3, 4], "keypoint_category_id": 8}, {"xy": [5, 6], "visible": 1}]},
        {**ANNOTATION, "id": 2, "category_id": 2, "keypoints": [8, 9, 2, 7, 7, 1]},
        {**ANNOTATION, "id": 3, "category_id": 3, "keypoints": []},
    ]
    rows[0]["keypoints"][1]["keypoint_category"] = "bow"
    source = opened(manifest(tmp_path, rows, categories, keypoint_categories=kinds))
    assert source.target.skeleton.names == ("bow", "port", "starboard") and source.target.skeleton.mirrored() == (
        0,
        2,
        1,
    )
    assert source.target.objects[0].keypoints.tolist() == [
        [[5, 6, 1], [0, 0, 0], [3, 4, 2]],
        [[0, 0, 0], [7, 7, 1], [8, 9, 2]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
    ]
    assert opened("kwcoco:shapes8").target.labelled_keypoints.sum() > 50


def test_wrong_keypoints_are_refused(tmp_path):
    for keypoints, words in (
        ([5, 6, 2], "3 numbers, and its category has 3 keypoints"),
        ([5, 6, 3, 0, 0, 0, 0, 0, 0], "visibility of 'nose' is 3"),
        ([5, 6, 2, 0, 0, 0.5, 0, 0, 0], "visibility of 'left_eye' is 0.5"),
        ([5, float("nan"), 2, 0, 0, 0, 0, 0, 0], "place of 'nose' is 5, nan"),
        (["5", 6, 2, 0, 0, 0, 0, 0, 0], "place of 'nose' is '5'"),
        ("nose", "'nose', and its category"),
        ([{"xy": [1, 2], "keypoint_category": "tail"}], "is no keypoint"),
        ([{"xy": [1], "keypoint_category": "nose"}], "is no keypoint"),
    ):
        with pytest.raises(DataError, match=words):
            opened(manifest(tmp_path, [{**ANNOTATION, "keypoints": keypoints}]))


def test_wrong_categories_are_refused(tmp_path):
    for category, words in (
        ({"keypoints": ["a", "a"]}, "'?a'? is listed twice"),
        ({"keypoints": [1, 2]}, "not a list of names"),
        ({"skeleton": [[1, 4]]}, "not pairs of numbers from 1 to 3"),
        ({"skeleton": [[0, 1]]}, "not pairs of numbers from 1 to 3"),
        ({"sigmas": [0.1, 0.2]}, "not 3 numbers above 0"),
        ({"sigmas": [0.1, 0.2, -1]}, "not 3 numbers above 0"),
    ):
        with pytest.raises(DataError, match=words):
            opened(manifest(tmp_path, categories=[PERSON | category]))


def test_odd_keypoints_are_noted_and_counted(tmp_path):
    rows = [
        {**ANNOTATION, "keypoints": [5, 6, 2, 45, 8, 2, 0, 0, 0]},
        {**ANNOTATION, "id": 2, "image_id": 2, "num_keypoints": 3},
    ]
    source = opened(manifest(tmp_path, rows))
    assert any("1 object with labelled keypoints outside of the image: annotation 1" in note for note in source.notes)
    assert any("1 object whose num_keypoints is not the number" in note for note in source.notes)
    found = {finding.message: finding.level for finding in check_objects(source, source, copies=False)}
    assert any("nose 2, left_eye 2, right_eye 0" in message for message in found)
    assert [level for message, level in found.items() if "outside of the image" in message] == ["warning"]
    assert any("sigmas" in message for message in found)
    none = opened(manifest(tmp_path / "none", [{**ANNOTATION, "keypoints": [0] * 9, "num_keypoints": 0}]))
    assert any("no object has a labelled keypoint" in f.message for f in check_objects(none, none, copies=False))


def test_keypoints_without_names_are_left_out_and_noted(tmp_path):
    source = opened(manifest(tmp_path, categories=[{"id": 1, "name": "person"}]))
    assert source.target.skeleton is None and source.target.objects[0].keypoints is None
    assert any("keypoints left out" in note for note in source.notes)


def test_an_export_reads_the_same(tmp_path):
    kinds = [{"id": i, "name": name, "reflection_id": (1, 3, 2)[i - 1]} for i, name in enumerate(NAMES, 1)]
    category = PERSON | {"sigmas": [0.1, 0.2, 0.2]}
    source = opened(manifest(tmp_path, categories=[category], keypoint_categories=kinds))
    write_kwcoco({"all": source}, tmp_path / "out.kwcoco.json")
    again = opened(tmp_path / "out.kwcoco.json")
    assert again.target.skeleton == source.target.skeleton and again.fingerprint() == source.fingerprint()
    assert json.loads((tmp_path / "out.kwcoco.json").read_text())["annotations"][0]["num_keypoints"] == 2


def test_fingerprints_tell_keypoints_apart(tmp_path):
    first = opened(manifest(tmp_path)).fingerprint()
    moved = [{**ANNOTATION, "keypoints": [5, 6, 1, 9.5, 8, 1, 0, 0, 0]}]
    assert opened(manifest(tmp_path, moved)).fingerprint() != first
    assert opened(manifest(tmp_path, categories=[PERSON | {"sigmas": [1, 1, 1]}])).fingerprint() != first


def test_a_cached_manifest_has_its_keypoints(tmp_path, monkeypatch):
    monkeypatch.setattr(view, "LARGE", 1)
    monkeypatch.setattr(view, "SETTLED_NS", 0)
    path = manifest(tmp_path)
    plain = opened(path)
    cached = opened(path)
    assert type(cached.target.objects).__name__ == "ObjectRows" and cached.target.skeleton == plain.target.skeleton
    assert cached.fingerprint() == plain.fingerprint()
    np.testing.assert_array_equal(cached.target.objects[0].keypoints, [[[5, 6, 2], [9.5, 8, 1], [0, 0, 0]]])
    truth = cached.select([0]).truth(skeleton=cached.target.skeleton)
    np.testing.assert_array_equal(truth.keypoints, cached.target.objects[0].keypoints)


def test_joined_sources_keep_keypoints_that_all_have(tmp_path):
    a, b = opened(manifest(tmp_path / "a")), opened(manifest(tmp_path / "b"))
    assert join({"a": a, "b": b}, "both").target.labelled_keypoints.tolist() == [2, 2, 0]
    other = opened(manifest(tmp_path / "c", categories=[PERSON | {"keypoints": ["x", "y", "z"]}]))
    both = join({"a": a, "c": other}, "both")
    assert both.target.skeleton is None and any("keypoints are left out" in note for note in both.notes)


def test_a_folder_with_person_keypoints_alone_is_opened(tmp_path):
    path = manifest(tmp_path / "annotations")
    path.rename(path.with_name("person_keypoints_train2017.json"))
    manifest(tmp_path / "annotations").rename(path.with_name("person_keypoints_val2017.json"))
    sources = open_objects(str(tmp_path))
    assert set(sources) == {"train", "val"} and sources["val"].target.skeleton.names == tuple(NAMES)
