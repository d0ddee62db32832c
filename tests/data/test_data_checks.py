"""Checks of data, and contact sheets."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.data.checks.parts import OpenedParts, check_parts
from sslbench.data.checks.samples import check, raise_on_errors
from sslbench.data.checks.sheets import contact_sheet
from sslbench.data.decode.reading import DEFAULT
from sslbench.data.images import Arrays
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.data.splits import train_test
from sslbench.errors import DataError, SslbenchError
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled


def source(labels, first=0, name="train/", pictures=None):
    """Images whose content is the number `first`, `first` + 1 ..., or those in `pictures`."""
    numbers = np.arange(first, first + len(labels)) if pictures is None else np.array(pictures)
    pixels = np.repeat(numbers.astype("<u4").view(np.uint8).reshape(-1, 2, 2), 2, axis=1)
    return Source(name, tuple(f"{i:05d}" for i in range(len(labels))), labels, Arrays(pixels, name))


def held(labels, **more):
    return source(labels, first=10_000, name="test/", **more)


def single(names):
    return single_labels(list(names))


def of(findings, level):
    return [finding.message for finding in findings if finding.level == level]


def test_clean_data_gives_nothing_to_say():
    findings = check(source(single("aabb")), held(single("ab")))
    assert findings == []
    raise_on_errors(findings)


def test_errors_of_classes_and_splits():
    for train, test, message in (
        ("aaa", "a", "one class only, 'a'"),
        ("aabb", "abd", "the class 'd' of test/ is not in train/"),
        ("", "ab", "train/ has no images"),
        ("aabb", "", "test/ has no images"),
    ):
        findings = check(source(single(train)), held(single(test)))
        assert message in of(findings, "error")[0]
        with pytest.raises(DataError, match=message):
            raise_on_errors(findings)


def test_one_class_with_folders_inside_names_them():
    ids = ("data/train/a/1.png", "data/test/a/2.png")
    train = dataclasses.replace(source(single(["data", "data"])), ids=ids)
    errors = of(check(train, held(single(["data"]))), "error")
    assert errors[0].endswith("nothing can be distinguished. 'data' has folders inside (test, train): give that folder")


def test_no_labels_is_one_error_that_says_what_to_do():
    errors = of(check(source(Unlabelled(3)), held(Unlabelled(2))), "error")
    assert len(errors) == 1
    assert "train/ and test/ have no labels: give a folder" in errors[0]
    assert "test/ has no labels" in of(check(source(single("ab")), held(Unlabelled(2))), "error")[0]


def test_mixed_kinds_are_an_error():
    findings = check(source(single("ab")), held(multi_labels([["a"]])))
    assert of(findings, "error") == ["train/ is single-label, but test/ is multi-label"]


def test_a_class_without_an_image_in_train_is_an_error():
    train = source(single_labels(list("aabb"), ("a", "b", "c")))
    errors = of(check(train, held(single("abc"))), "error")
    assert errors == [
        "test/ has images of classes that are not in train/: c. "
        "Put images of these classes into train/, or take theirs out of test/."
    ]


def test_a_class_absent_from_test_is_a_note():
    findings = check(source(single("aabbcc")), held(single("bc")))
    assert of(findings, "note") == ["1 class is in train/ but not in test/: a"]
    assert of(findings, "error") == []


def test_one_image_per_class():
    assert "one image per class" in of(check(source(single("abc")), held(single("abc"))), "warning")[0]
    assert "one image only of: c" in of(check(source(single("aabbc")), held(single("abc"))), "note")[0]


def test_imbalance_is_a_note():
    findings = check(source(single("a" * 20 + "bb")), held(single("ab")))
    assert "20 images of 'a', 2 of 'b'" in of(findings, "note")[0]
    assert check(source(single("a" * 18 + "bb")), held(single("ab"))) == []


def test_classes_that_differ_only_in_case():
    train = source(single_labels(["Cat", "cat", "dog"] * 2))
    warnings = of(check(train, held(single_labels(["Cat", "cat", "dog"]))), "warning")
    assert "'Cat' and 'cat'" in warnings[0]


def test_some_test_images_in_train_are_a_warning_with_names():
    train = source(single("aabb"), pictures=[1, 2, 3, 4])
    findings = check(train, source(single("abab"), name="test/", pictures=[9, 3, 8, 1]))
    warnings = of(findings, "warning")
    assert warnings == ["2 of 4 images of test/ also in train/: test/[1] = train/[2], test/[3] = train/[0]"]
    assert of(findings, "error") == []


def test_a_test_part_inside_train_is_an_error():
    train = source(single("aabb"))
    assert "all 4 images of train/ are in train/ too" in of(check(train, train), "error")[0]
    inside = source(single("ab"), name="test/", pictures=[3, 1])
    assert "all 2 images of test/" in of(check(train, inside), "error")[0]


def test_copies_with_other_labels_are_a_warning_and_other_copies_a_note():
    train = source(single("aabb"), pictures=[1, 1, 2, 1])
    findings = check(train, held(single("ab")))
    assert of(findings, "note") == [
        "train/: 2 images more than once: train/[0] (a) = train/[1] (a), train/[1] (a) = train/[3] (b)"
    ]
    assert of(findings, "warning") == ["train/: 1 copy with another label: train/[1] (a) = train/[3] (b)"]
    same = source(single("aabb"), pictures=[1, 1, 2, 3])
    assert of(check(same, held(single("ab"))), "warning") == []


def test_overlap_counts_agree_with_sets():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 3000, 2000), rng.integers(0, 3000, 500)
    train = source(single(["x", "y"] * 1000), pictures=a)
    findings = check(train, source(single(["x", "y"] * 250), name="test/", pictures=b))
    expected = sum(value in set(a.tolist()) for value in b.tolist())
    copies = len(a) - len(set(a.tolist()))
    assert f"{expected} of 500 images of test/ also in train/" in of(findings, "warning")[0]
    assert any(f"train/: {copies} images more than once" in note for note in of(findings, "note"))


def test_multi_label_classes_without_positives():
    train = source(multi_labels([["a"], ["b"], []], None, ("a", "b", "c", "d")))
    test = held(multi_labels([["a", "c"], []], None, ("a", "b", "c", "d")))
    findings = check(train, test)
    assert of(findings, "warning") == ["no image in train/ for classes that test/ has: c; they cannot be learnt"]
    assert of(findings, "note") == [
        "1 class is in train/ but not in test/: b",
        "classes without an image in either part, not scored: d",
    ]
    everywhere = source(multi_labels([["a", "b"], ["a"]]))
    assert "every image of train/ has the class: a" in of(check(everywhere, held(multi_labels([["b"]]))), "warning")
    nothing = source(MultiLabel(("a",), np.zeros((2, 1), np.int8)))
    assert of(check(nothing, held(MultiLabel(("a",), np.zeros((2, 1), np.int8)))), "error")


def test_notes_of_the_sources_are_passed_on_once(tmp_path, class_folders, picture):
    class_folders(tmp_path, **{"1": 10, "2": 10})
    picture(tmp_path / ".ipynb_checkpoints" / "0.png")
    parts = train_test(str(tmp_path))
    notes = of(check(parts.train, parts.test), "note")
    assert len(notes) == 2
    assert ".ipynb_checkpoints" in notes[0]
    assert "numbers" in notes[1]


def test_files_that_are_empty_or_unreadable_are_no_copies_of_each_other(tmp_path, class_folders):
    for part in ("train", "test"):
        class_folders(tmp_path / part, a=2, b=2)
        for i in range(2):
            (tmp_path / part / "a" / f"empty{i}.png").write_bytes(b"")
            (tmp_path / part / "b" / f"gone{i}.png").symlink_to(tmp_path / "nowhere")
    parts = train_test(str(tmp_path))
    assert check(parts.train, parts.test) == []


def test_a_flat_val_folder_beside_class_folders_is_one_plain_error(tmp_path, class_folders, picture):
    class_folders(tmp_path / "train", a=2, b=2)
    for i in range(3):
        picture(tmp_path / "val" / f"{i}.png")
    parts = train_test(str(tmp_path))
    findings = check(parts.train, parts.test)
    assert f"{tmp_path}/ (val) has no labels" in of(findings, "error")[0]
    assert any("no class folders" in note for note in of(findings, "note"))


def test_the_same_folder_given_twice_is_an_error(tmp_path, class_folders):
    class_folders(tmp_path, a=2, b=2)
    parts = train_test(str(tmp_path), str(tmp_path))
    with pytest.raises(DataError, match="all 4 images"):
        raise_on_errors(check(parts.train, parts.test))


def test_errors_come_first():
    findings = check(source(single("aabb"), pictures=[1, 1, 2, 3]), held(single("abd")))
    assert [finding.level for finding in findings] == ["error", "note"]


@pytest.mark.parametrize(
    ("channels", "level", "words"),
    [
        ((3, 3, 3, 3), "warning", None),
        ((4, 4, 4, 4), "warning", "has 4 channels: networks of 3 channels refuse it. Give one of 4"),
        ((2, 2, 2, 2), "warning", "?channels=1 behind the location"),
        ((3, 4, 3, 4), "error", "images of different numbers of channels"),
    ],
)
def test_channels_of_images_are_told(tmp_path, channels, level, words):
    for i, number in enumerate(channels):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        np.save(tmp_path / "ab"[i % 2] / f"{i}.npy", np.full((4, 4, number), i, np.uint8))
    messages = [
        message
        for message in of(findings_of(tmp_path), level)
        if "of 3 channels" in message or "of channels" in message
    ]
    assert any(words in message for message in messages) if words else not messages


def test_conversions_of_images_are_told(tmp_path):
    for i in range(4):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4), i, np.uint8)).convert("P").save(
            tmp_path / "ab"[i % 2] / f"{i}.png", transparency=1
        )
    notes = of(findings_of(tmp_path), "note")
    assert any("2 images of 2: palette to RGB" in note for note in notes)


def findings_of(folder):
    opened = OpenedParts(str(folder), train_test(str(folder), seed=0, test_fraction=0.5))
    return check_parts(opened, copies=False, decode=None, workers=0, reading=DEFAULT).findings


def filled(size, values):
    return torch.stack([torch.full((3, size, size), value, dtype=torch.uint8) for value in values])


def areas(path):
    """How many pixels have each grey value."""
    pixels = np.array(Image.open(path).convert("RGB"))
    grey = pixels[(pixels == pixels[..., :1]).all(axis=2)][:, 0]
    return dict(zip(*np.unique(grey, return_counts=True), strict=True))


def test_views_are_shown_in_proportion(tmp_path):
    contact_sheet([filled(224, [10, 11, 12]), filled(96, [20, 21, 22])], tmp_path / "sheet.png", rows=2)
    found = areas(tmp_path / "sheet.png")
    assert (found[10], found[11], found[20], found[21]) == (224**2, 224**2, 96**2, 96**2)
    assert 12 not in found and 22 not in found


def test_small_views_are_enlarged_together(tmp_path):
    contact_sheet([filled(32, [10]), filled(16, [20])], tmp_path / "new" / "sheet.png")
    found = areas(tmp_path / "new" / "sheet.png")
    assert (found[10], found[20]) == (96**2, 48**2)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["sheet.png"]


def test_the_channels_are_red_green_blue(tmp_path):
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 100, 100)
    contact_sheet([red], tmp_path / "sheet.png")
    pixels = np.array(Image.open(tmp_path / "sheet.png"))
    assert (pixels == [255, 0, 0]).all(axis=2).sum() == 100**2


def test_a_failure_leaves_no_file(tmp_path, monkeypatch):
    def fail(self, path, *args, **kwargs):
        path.write_bytes(b"half a picture")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", fail)
    with pytest.raises(SslbenchError, match="No space"):
        contact_sheet([filled(32, [10])], tmp_path / "sheet.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("views", [[], [filled(8, [1]), filled(8, [1, 2])]])
def test_views_that_do_not_fit_together_are_refused(views, tmp_path):
    with pytest.raises(ValueError, match="contact sheet"):
        contact_sheet(views, tmp_path / "sheet.png")


def table(folder, name, labels):
    for i in range(len(labels)):
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (4, 4, 3), np.uint8)).save(folder / f"{name}{i}.png")
    rows = [f"{name}{i}.png,{label}" for i, label in enumerate(labels)]
    (folder / f"{name}.csv").write_text("\n".join(["path,height", *rows]))
    return open_data(str(folder / f"{name}.csv"), label_column="height")["all"]


def test_labels_with_decimals_name_the_option_for_numbers(tmp_path):
    train, test = table(tmp_path, "a", ["0.13", "2.5", "3", "2.5"]), table(tmp_path, "b", ["0.2", "2.5"])
    assert any("'0.2'" in error and "--value-col 'height'" in error for error in of(check(train, test), "error"))
    assert any("3 classes" in warning for warning in of(check(train, train, copies=False), "warning"))
    whole = table(tmp_path, "c", ["1", "2.0", "3", "1"])
    assert not any("--value-col" in finding.message for finding in check(whole, whole, copies=False))
    table(tmp_path, "d", ["0.13", "2.5", "3"])
    with pytest.raises(DataError, match="too few of each class") as refused:
        train_test(str(tmp_path / "d.csv"), label_column="height")
    assert "--value-col 'height'" in str(refused.value.remedy)
