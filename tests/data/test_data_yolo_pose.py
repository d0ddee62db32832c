"""Keypoints of YOLO (kpt_shape, flip_idx and kpt_names of data.yaml), as Ultralytics documents them."""

import numpy as np
import pytest
from PIL import Image

from sslbench.data.export import write_kwcoco
from sslbench.data.open import open_objects
from sslbench.errors import DataError
from sslbench.metrics.detection.keypoints import COCO_SIGMAS

CLASSES = "names: {0: cat, 1: ship}"
NAMES = "kpt_names: {0: [nose, left_ear, right_ear], 1: [bow, port, starboard]}"
BOX = "0.5 0.5 0.2 0.4"


def written(folder, shape, *lines, extra="", classes=CLASSES):
    """A folder with two images of 40 x 50 pixels; the first has the lines."""
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    for name in "ab":
        Image.new("RGB", (40, 50)).save(folder / "images" / f"{name}.png")
    (folder / "labels" / "a.txt").write_text("\n".join(lines))
    (folder / "data.yaml").write_text(f"train: images\n{classes}\nkpt_shape: {shape}\n{extra}\n")
    return str(folder)


def test_keypoints_with_visibility(tmp_path):
    spec = written(
        tmp_path / "a",
        [3, 3],
        f"1 {BOX} 0.25 0.5 2 0.5 0.1 1.0 0.9 0.9 0",
        f"0 {BOX}",
        f"0 {BOX} 0 0 0 1 1 2 0 0 1",
        extra=f"{NAMES}\nflip_idx: [0, 2, 1]",
    )
    source = open_objects(spec)["train"]
    assert source.target.skeleton.names == ("nose", "left_ear", "right_ear", "bow", "port", "starboard")
    assert source.target.skeleton.mirrored() == (0, 2, 1, 3, 5, 4) and not source.target.skeleton.sigmas
    nothing = [[0, 0, 0]] * 3
    assert source.target.objects[0].keypoints.tolist() == [
        [*nothing, [10, 25, 2], [20, 5, 1], [0, 0, 0]],
        [*nothing, *nothing],
        [[0, 0, 0], [40, 50, 2], [0, 0, 1], *nothing],
    ]
    assert np.allclose(source.target.objects[0].boxes[0], [16, 15, 24, 35], atol=1e-5)
    assert source.target.objects[1].keypoints.shape == (0, 6, 3) and source.target.labelled_keypoints.tolist() == [
        0,
        1,
        1,
        1,
        1,
        0,
    ]
    assert not any("0 0" in note for note in source.notes)
    write_kwcoco({"train": source}, tmp_path / "out.kwcoco.json")
    again = next(iter(open_objects(str(tmp_path / "out.kwcoco.json")).values()))
    assert again.target.skeleton.mirrored() == source.target.skeleton.mirrored()
    assert np.allclose(again.target.objects[0].keypoints, source.target.objects[0].keypoints, atol=1e-4)


def test_two_numbers_for_each_keypoint_are_labelled_unless_negative(tmp_path):
    source = open_objects(written(tmp_path, [2, 2], f"0 {BOX} 0.5 0.5 -1 0.2", f"0 {BOX} 0 0 0.5 -0.001"))["train"]
    assert source.target.skeleton.names == ("keypoint 0", "keypoint 1") and not source.target.skeleton.mirrors
    assert source.target.objects[0].keypoints.tolist() == [[[20, 25, 2], [0, 0, 0]], [[0, 0, 2], [0, 0, 0]]]
    (note,) = [note for note in source.notes if "at 0 0" in note]
    assert "1 object with a keypoint at 0 0, which counts as labelled" in note and "a.txt, line 2" in note


def test_cocos_keypoints_are_known_by_their_flip_idx(tmp_path):
    flip = [0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15]
    line = f"0 {BOX} " + " ".join(f"{i / 20} 0.5 2" for i in range(17))
    source = open_objects(written(tmp_path / "a", [17, 3], line, extra=f"flip_idx: {flip}"))["train"]
    assert source.target.skeleton.names == tuple(COCO_SIGMAS) and source.target.skeleton.mirrored() == tuple(flip)
    assert len(source.target.skeleton.with_sigmas().sigmas) == 17
    assert any("taken for COCO's persons" in note for note in source.notes)
    source = open_objects(written(tmp_path / "b", [17, 3], line))["train"]
    assert source.target.skeleton.names[:2] == ("keypoint 0", "keypoint 1")
    symmetric = open_objects(written(tmp_path / "c", [2, 2], f"0 {BOX} 0.5 0.5 0.5 0.4", extra="flip_idx: [0, 1]"))
    assert symmetric["train"].target.skeleton.mirrored() == (0, 1)


def test_other_descriptions_and_lines_are_refused(tmp_path):
    cases = (
        ([2, 3], "0.5 0.5 2", "", "3 numbers behind the box, and kpt_shape asks for 6: 3 for each of 2 keypoints"),
        ([2, 3], "0.5 0.5 2 0.5 0.5 3", "", "the visibility of 'keypoint 1' is 3"),
        ([2, 3], "0.5 0.5 2 0.5 nan 1", "", "the place of 'keypoint 1', 0.5 nan, is no share"),
        ([2, 2], "0.5 0.5 20 30", "", "the place of 'keypoint 1', 20 30, is no share"),
        ([2, 4], "", "", "kpt_shape is .*, not .number of keypoints, 2 or 3"),
        ("17", "", "", "kpt_shape is 17, not"),
        ([0, 3], "", "", "kpt_shape is"),
        ([2, 2], "", "flip_idx: [1]", "flip_idx is .1., not the numbers 0 to 1"),
        ([3, 2], "", "flip_idx: [1, 2, 0]", "flip_idx sends keypoint 0 to 1, and that one to 2"),
        ([2, 2], "", "kpt_names: {0: [a, b]}", r"no names for 1 class \(ship\)"),
        ([2, 2], "", "kpt_names: {0: [a, b], 1: [a]}", "kpt_names of 'ship' is .*, not 2 different names"),
        ([3, 2], "", "kpt_names: {0: [a, b, c], 1: [b, a, c]}\nflip_idx: [0, 2, 1]", "becomes 'c' in one class and"),
    )
    for i, (shape, line, extra, message) in enumerate(cases):
        with pytest.raises(DataError, match=message):
            open_objects(written(tmp_path / str(i), shape, f"0 {BOX} {line}", extra=extra))
