"""Frames of videos, and whatever else belongs together, stay on one side of a seeded split."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.data.export import write_kwcoco
from sslbench.data.groups import group_numbers
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.objects import view
from sslbench.data.open import open_as, open_data, open_objects
from sslbench.data.splits import train_test, train_test_of
from sslbench.data.splits.objects import split_objects
from sslbench.data.stratify import holdout
from sslbench.errors import DataError, UsageError
from sslbench.targets.classes import Classes
from sslbench.targets.label_maps import Foreground, LabelMaps
from sslbench.targets.none import Unlabelled


@pytest.fixture
def videos(tmp_path, picture):
    """`videos({"walk": [1, 1, 2], ...}, plain=[1])` writes frames of these categories, and images of no video."""

    def write(frames, plain=(), **image_keys):
        images, annotations, number = [], [], {name: i for i, name in enumerate(frames, 10)}
        rows = [(name, k, c) for name, categories in frames.items() for k, c in enumerate(categories)]
        for name, k, category in [*rows, *((None, i, c) for i, c in enumerate(plain))]:
            image = {"id": len(images) + 1, "file_name": f"{name}-{k}.png", "width": 6, "height": 5}
            image |= {"video_id": number[name], "frame_index": k} if name else {}
            images.append(image | {key: values[len(images)] for key, values in image_keys.items()})
            picture(tmp_path / image["file_name"])
            box = {"id": image["id"], "image_id": image["id"], "category_id": category, "bbox": [0, 0, 4, 4]}
            annotations.append(box | {"segmentation": [[0, 0, 4, 0, 4, 4, 0, 4]]})
        content = {
            "videos": [{"id": i, "name": name} for name, i in number.items()],
            "images": images,
            "annotations": annotations,
            "categories": [{"id": i, "name": name} for i, name in enumerate(("cat", "dog", "eel"), 1)],
        }
        (tmp_path / "v.kwcoco.json").write_text(json.dumps(content))
        return str(tmp_path / "v.kwcoco.json")

    return write


CLIPS = {f"clip{i}": [1 + i % 2] * 3 for i in range(8)}


@pytest.mark.parametrize("kind", [LabelMaps, Foreground])
def test_masks_of_frames_stay_with_their_video(videos, kind):
    spec = videos(CLIPS)
    for seed in range(5):
        both = train_test_of(lambda place: open_as(place, kind), spec, seed=seed, test_fraction=0.25)
        train, test = (set(part.attributes["video"]) for part in (both.train, both.test))
        assert not train & test and train | test == set(CLIPS), seed
        assert all(
            i.startswith(f"{video}-") for i, video in zip(both.test.ids, both.test.attributes["video"], strict=True)
        )


def test_frames_have_their_video_and_place_and_a_split_keeps_videos_whole(videos):
    spec = videos(CLIPS, plain=[1, 2])
    source = open_data(spec)["all"]
    place = source.ids.index("clip3-2.png")
    assert source.attributes["video"][place] == "clip3" and source.attributes["frame_index"][place] == "2"
    assert source.attributes["video"][source.ids.index("None-0.png")] == ""
    assert open_data(spec, attribute_columns=["video", "frame_index"])["all"].attributes == source.attributes
    for seed in range(5):
        both = train_test(spec, seed=seed, test_fraction=0.25)
        assert both.how.startswith("seeded stratified split by video: 7")
        inside = [{name for name in part.attributes["video"] if name} for part in (both.train, both.test)]
        assert not inside[0] & inside[1] and len(inside[0] | inside[1]) == 8
        assert {both.test.target.text(i) for i in range(len(both.test))} == {"cat", "dog"}
    assert train_test(spec, seed=0).test.ids == train_test(spec, seed=0).test.ids
    assert len({train_test(spec, seed=seed).test.ids for seed in range(8)}) > 1


def test_objects_of_one_video_stay_together_and_so_do_crops(videos):
    spec = videos(CLIPS)
    parts = split_objects(spec, seed=1, test_fraction=0.25)
    assert parts.how.startswith("seeded split by video: ")
    names = [set(part.attributes["video"]) for part in (parts.train, parts.test)]
    assert not names[0] & names[1]
    both = train_test(f"{spec}?unit=annotation&min_size=1")
    assert "by video" in both.how and not set(both.train.attributes["video"]) & set(both.test.attributes["video"])


def test_videos_that_cannot_be_kept_whole_are_an_error_that_says_so(videos):
    spec = videos({"one": [1, 1, 1, 2, 2]})
    with pytest.raises(DataError, match="separating one video"):
        train_test(spec)
    with pytest.raises(DataError, match="separating one video"):
        split_objects(spec)


def test_a_class_in_one_video_only_is_trained_on_and_named(videos):
    both = train_test(videos(CLIPS | {"last": [3, 3, 3]}), seed=3)
    assert "last" in both.train.attributes["video"]
    assert both.notes == ("classes that lie in too few groups (video) are in train only: eel",)


def test_any_key_may_group_and_a_wrong_one_is_refused(videos, tmp_path, picture):
    spec = videos({f"c{i}": [1, 2] for i in range(6)}, site=[f"s{i % 4}" for i in range(12)])
    both = train_test(f"{spec}?group=site")
    assert "by site" in both.how and not set(both.train.attributes["site"]) & set(both.test.attributes["site"])
    with pytest.raises(UsageError, match=r"key 'sight'(.|\n)*site"):
        open_data(f"{spec}?group=sight")
    rows = [f"{picture(tmp_path / f'{i}.png').name},{'ab'[i % 2]},p{i // 2}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,patient", *rows]))
    both = train_test(f"{tmp_path}/t.csv?group=patient")
    assert both.how == "seeded stratified split by patient: 80 % train, 20 % test (seed 0)"
    assert not set(both.train.attributes["patient"]) & set(both.test.attributes["patient"])
    assert train_test(f"{tmp_path}/t.csv").how == "seeded stratified split: 80 % train, 20 % test (seed 0)"
    with pytest.raises(UsageError, match="no column 'patent'"):
        open_data(f"{tmp_path}/t.csv?group=patent")


def test_a_view_of_a_large_manifest_keeps_the_groups(videos, monkeypatch):
    spec = videos(CLIPS)
    plain = train_test(spec)
    monkeypatch.setattr(view, "LARGE", 0)
    monkeypatch.setattr(view, "SETTLED_NS", 0)
    for _ in range(2):
        again = train_test(spec)
        assert again.how == plain.how and again.test.ids == plain.test.ids


def test_a_manifest_written_of_frames_keeps_videos_for_kwcoco_too(videos, tmp_path):
    kwcoco = pytest.importorskip("kwcoco")
    for k, spec in enumerate((videos(CLIPS, plain=[1]), f"{videos(CLIPS)}?group=frame_index")):
        before, out = open_data(spec), tmp_path / f"{k}.kwcoco.json"
        write_kwcoco(before, out)
        after = open_data(str(out))
        assert after["all"].attributes == before["all"].attributes
        assert after["all"].grouped_by == before["all"].grouped_by == ("frame_index" if k else "video")
        assert train_test(spec).test.ids == train_test(str(out)).test.ids
    manifest = kwcoco.CocoDataset(str(tmp_path / "0.kwcoco.json"))
    assert [len(manifest.index.vidid_to_gids[video]) for video in manifest.index.videos] == [3] * 8
    boxes = open_objects(videos(CLIPS))
    write_kwcoco(boxes, tmp_path / "b.kwcoco.json")
    again = open_objects(str(tmp_path / "b.kwcoco.json"))["all"]
    assert again.attributes == boxes["all"].attributes and again.grouped_by == "video"


def test_videos_that_are_wrong_are_refused(videos):
    for change, message in (
        (lambda m: m["images"][0].update(video_id=99), "video_id 99, which is not in 'videos'"),
        (lambda m: m["images"][0].update(video_id=["a"]), "video_id of 'images' should be a whole number"),
        (lambda m: m["videos"].append({"id": 10}), "10 of an entry of 'videos' is there twice"),
        (lambda m: m.update(videos={"10": "a"}), "'videos' is not a list of mappings"),
    ):
        spec = videos(CLIPS)
        content = json.loads(Path(spec).read_text())
        change(content)
        Path(spec).write_text(json.dumps(content))
        for opened in (open_data, open_objects):
            with pytest.raises(DataError, match=message):
                opened(spec)


def test_videos_of_the_same_name_are_not_mixed_up(videos):
    spec = videos(CLIPS)
    Path(spec).write_text(Path(spec).read_text().replace('"name": "clip1"', '"name": "clip0"'))
    assert len(set(open_data(spec)["all"].attributes["video"])) == 8


@pytest.mark.parametrize("spec", ["kwcoco:vidshapes2-frames3-32", "special:vidshapes2-frames3-32"])
def test_toy_videos_are_drawn_by_name(spec):
    source = open_data(spec)["all"]
    assert len(source) == 6 and Counter(source.attributes["video"]) == {"toy_video_1": 3, "toy_video_2": 3}
    assert source.name == spec and len(open_objects(spec)["all"]) == 6


def test_names_of_toys_that_there_are_not_are_refused():
    for name in ("photos", "vidshapes", "vidshapes0", "vidshapes2-foo", "vidshapes2-32-64", "vidshapes2-5"):
        for scheme in ("kwcoco", "special"):
            with pytest.raises(
                UsageError, match="downloaded" if name == "photos" else "no toy data set|whole number from"
            ):
                open_data(f"{scheme}:{name}")


@st.composite
def grouped_labels(draw):
    n = draw(st.integers(2, 40))
    groups = draw(st.lists(st.sampled_from(["", *"abcdefghij"]), min_size=n, max_size=n))
    kind = draw(st.sampled_from(["single", "multi", "none"]))
    if kind == "none":
        return Unlabelled(n), groups
    if kind == "single":
        return single_labels(draw(st.lists(st.sampled_from("uvw"), min_size=n, max_size=n))), groups
    return multi_labels(draw(st.lists(st.sets(st.sampled_from("uvwx")), min_size=n, max_size=n))), groups


@settings(max_examples=80, deadline=None)
@given(grouped_labels(), st.floats(0.05, 0.95), st.integers(0, 5))
def test_no_group_is_torn_and_every_class_is_trained_on(case, fraction, seed):
    labels, groups = case
    fit, held = holdout(labels, fraction, seed, groups=group_numbers(groups))
    assert np.array_equal(np.sort(np.concatenate([fit, held])), np.arange(len(groups)))
    if group_numbers(groups) is None:
        assert np.array_equal(held, holdout(labels, fraction, seed)[1])
        return
    assert not {groups[i] for i in fit if groups[i]} & {groups[i] for i in held if groups[i]}
    values = (
        labels.values[:, None] == np.arange(len(labels.classes)) if isinstance(labels, Classes) else labels.values == 1
    )
    assert len(fit) and np.array_equal(values[fit].any(axis=0), values.any(axis=0))


def test_shares_are_kept_as_nearly_as_whole_groups_allow():
    rng = np.random.default_rng(0)
    of_group = rng.integers(0, 5, 400)
    groups = np.repeat(np.arange(400), rng.integers(1, 12, 400))
    labels = single_labels([f"c{of_group[group]}" for group in groups])
    _, held = holdout(labels, 0.2, 0, groups=groups)
    shares = np.bincount(labels.values[held]) / np.bincount(labels.values)
    assert np.abs(shares - 0.2).max() < 0.02 and abs(len(held) / len(groups) - 0.2) < 0.01
