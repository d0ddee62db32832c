"""Train and test parts: taken from the data's own splits, or split by chance so that every class keeps its share."""

import itertools

import numpy as np
import pytest
from helpers.containers import png
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.data.images import Arrays
from sslbench.data.joined import join_labels
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.data.splits import (
    holdout,
    label_problems,
    limit,
    match_classes,
    name_numbered,
    part_of_order,
    train_test,
    unite_classes,
)
from sslbench.errors import DataError, UsageError
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers


def source(labels, name="photos/"):
    n = len(labels)
    pixels = np.arange(n * 4, dtype=np.uint32).view(np.uint8).reshape(n, 4, 4)
    return Source(name, tuple(f"{i:05d}" for i in range(n)), labels, Arrays(pixels, name))


def single(*names, classes=None):
    return single_labels(names, classes)


def multi(*rows, classes=None):
    return multi_labels(rows, None, classes)


# ---- train_test


def test_the_datas_own_splits_are_used(tmp_path, class_folders):
    class_folders(tmp_path / "a" / "train", cat=3, dog=2)
    class_folders(tmp_path / "a" / "val", cat=1, dog=1)
    parts = train_test(str(tmp_path / "a"))
    assert (len(parts.train), len(parts.test), parts.how) == (5, 2, "train/ against val/")
    assert parts.notes == ()
    class_folders(tmp_path / "a" / "test", cat=2, dog=2)
    parts = train_test(str(tmp_path / "a"))
    assert (len(parts.train), len(parts.test), parts.how) == (5, 4, "train/ against test/")
    assert parts.notes == ("not used: val (2 images)",)


def test_an_unlabelled_test_folder_gives_way_to_val(tmp_path, class_folders, picture):
    class_folders(tmp_path / "train", cat=3, dog=2)
    class_folders(tmp_path / "val", cat=1, dog=1)
    picture(tmp_path / "test" / "0.png")
    parts = train_test(str(tmp_path))
    assert parts.how == "train/ against val/"
    assert "(test) has no labels" in parts.notes[0]


def test_two_locations(tmp_path, class_folders):
    for part, n in (("train", 3), ("val", 2), ("test", 1)):
        class_folders(tmp_path / "a" / part, cat=n, dog=n)
    class_folders(tmp_path / "b", cat=4, dog=4)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    parts = train_test(a, b)
    assert (len(parts.train), len(parts.test)) == (6, 8)
    assert parts.how == f"{a}/ (train) against {b}/"
    assert len(train_test(b, a).test) == 2
    assert len(train_test(b, b).train) == 8


def test_one_location_without_splits_is_split_by_class(tmp_path, class_folders):
    class_folders(tmp_path, cat=20, dog=10)
    parts = train_test(str(tmp_path), seed=3)
    assert parts.how == "seeded stratified split: 80 % train, 20 % test (seed 3)"
    assert sorted(parts.train.ids + parts.test.ids) == sorted(f"{c}/{i}.png" for c, n in COUNTS for i in range(n))
    assert np.bincount(parts.test.target.values).tolist() == [4, 2]
    assert parts.train.name == f"{tmp_path}/ (train, 80 %)"


COUNTS = (("cat", 20), ("dog", 10))


def test_the_split_depends_on_the_seed_and_on_nothing_else(tmp_path, class_folders, monkeypatch):
    class_folders(tmp_path / "a", cat=20, dog=10)
    class_folders(tmp_path / "b", dog=10, cat=20)
    parts = [train_test(str(tmp_path / name), seed=seed) for name, seed in (("a", 0), ("b", 0), ("a", 1))]
    assert parts[0].test.ids == parts[1].test.ids
    assert parts[0].test.ids != parts[2].test.ids


def test_one_split_alone_is_split(tmp_path, class_folders):
    class_folders(tmp_path / "train", cat=5, dog=5)
    assert train_test(str(tmp_path)).how.startswith("seeded stratified split")


def test_splits_that_cannot_be_told_apart_are_refused(tmp_path, picture):
    for name in "ab":
        picture(tmp_path / f"{name}.png")
    table = tmp_path / "t.csv"
    table.write_text("path,label,split\na.png,x,fold1\nb.png,y,fold2\n")
    with pytest.raises(UsageError, match=r"fold1, fold2: none of them is train(.|\n)*--test-data"):
        train_test(str(table))


def test_classes_with_one_image_go_to_train_and_are_named(tmp_path, class_folders):
    class_folders(tmp_path, cat=5, dog=5, eel=1)
    parts = train_test(str(tmp_path))
    assert "eel/0.png" in parts.train.ids
    assert parts.notes == ("classes with one image are in train only: eel",)


def test_too_little_to_split_is_refused(tmp_path, class_folders):
    class_folders(tmp_path, cat=1, dog=1)
    with pytest.raises(DataError, match=r"2 images, too few(.|\n)*--test-data"):
        train_test(str(tmp_path))


def test_unlabelled_images_are_split_at_random(tmp_path, picture):
    for i in range(10):
        picture(tmp_path / f"{i}.png")
    parts = train_test(str(tmp_path))
    assert (len(parts.train), len(parts.test)) == (8, 2)
    assert parts.how.startswith("seeded random split")


# ---- holdout and limit

some_single = st.lists(st.integers(0, 6), min_size=1, max_size=200)
some_multi = st.lists(st.lists(st.sampled_from([0, 0, 1, -1]), min_size=4, max_size=4), min_size=1, max_size=80)
fractions = st.sampled_from([0.1, 0.2, 0.5, 0.9])


@settings(max_examples=80, deadline=None)
@given(some_single, fractions, st.integers(0, 5))
def test_holdout_puts_each_sample_on_one_side_and_each_class_on_both(numbers, fraction, seed):
    labels = Classes(tuple("abcdefg"), np.array(numbers, dtype=np.int64))
    fit, held = holdout(labels, fraction, seed)
    assert np.all(np.diff(fit) > 0)
    assert np.all(np.diff(held) > 0)
    assert sorted([*fit, *held]) == list(range(len(numbers)))
    counts = np.bincount(numbers, minlength=7)
    in_held = np.bincount(labels.values[held], minlength=7)
    assert np.all(in_held[counts == 1] == 0)
    assert np.all(in_held[counts > 1] >= 1)
    assert np.all((counts - in_held)[counts > 1] >= 1)
    roomy = counts * min(fraction, 1 - fraction) >= 1
    if roomy[counts > 0].all():
        assert len(held) == round(fraction * len(numbers))
        assert np.all(np.abs(in_held - fraction * counts) <= 1)
    again = holdout(labels, fraction, seed)
    np.testing.assert_array_equal(again[1], held)


@settings(max_examples=60, deadline=None)
@given(some_multi, fractions, st.integers(0, 5))
def test_multi_label_holdout_puts_each_sample_on_one_side(rows, fraction, seed):
    labels = MultiLabel(tuple("abcd"), np.array(rows, dtype=np.int8))
    fit, held = holdout(labels, fraction, seed)
    assert sorted([*fit, *held]) == list(range(len(rows)))
    assert np.all(np.diff(fit) > 0)
    assert np.all(np.diff(held) > 0)


def test_multi_label_holdout_keeps_shares_and_rare_classes_on_both_sides():
    rng = np.random.default_rng(0)
    rates = np.array([0.5, 0.2, 0.05, 0.01])
    values = (rng.random((1000, 4)) < rates).astype(np.int8)
    values[:, 3] = 0
    values[[10, 500], 3] = 1
    labels = MultiLabel(tuple("abcd"), values)
    for seed in range(20):
        fit, held = holdout(labels, 0.2, seed)
        assert abs(len(held) - 200) <= 20
        assert values[held, 3].sum() == values[fit, 3].sum() == 1
        shares = values[held].sum(axis=0) / values.sum(axis=0)
        assert np.all(np.abs(shares[:3] - 0.2) < 0.06)


def test_rare_classes_are_dealt_before_the_common_one_they_come_with():
    values = np.zeros((60, 9), dtype=np.int8)
    values[:, 0] = 1
    for c in range(1, 9):
        values[[2 * c, 2 * c + 1], c] = 1
    labels = MultiLabel(tuple("abcdefghi"), values)
    for seed in range(5):
        fit, held = holdout(labels, 0.2, seed)
        assert values[fit].sum(axis=0)[1:].tolist() == values[held].sum(axis=0)[1:].tolist() == [1] * 8
        assert len(held) == 12


def test_chance_decides_which_of_a_class_are_held():
    labels = single(*["a"] * 50, *["b"] * 50)
    held = np.concatenate([holdout(labels, 0.2, seed)[1] for seed in range(200)])
    times = np.bincount(held, minlength=100)
    assert abs(times.mean() - 40) < 1e-9
    assert times.min() > 15
    assert times.max() < 65


def test_a_fraction_outside_0_and_1_is_refused():
    for fraction in (0, 1, -0.1, 1.5):
        with pytest.raises(UsageError, match="between 0 and 1"):
            holdout(single("a", "b"), fraction, 0)


@settings(max_examples=60, deadline=None)
@given(some_single, st.integers(1, 220), st.integers(0, 3))
def test_limit_takes_exactly_n_in_order_with_every_class_if_it_can(numbers, n, seed):
    labels = Classes(tuple("abcdefg"), np.array(numbers, dtype=np.int64))
    limited = limit(source(labels), n, seed)
    assert len(limited) == min(n, len(numbers))
    assert list(limited.ids) == sorted(limited.ids)
    if n >= len(set(numbers)):
        assert set(limited.target.values) == set(numbers)


def test_classes_share_a_limit_by_largest_remainders():
    counts = np.array([53, 31, 13, 4])  # 101 in all, a prime number: no two remainders are equal
    labels = Classes(tuple("abcd"), np.repeat(np.arange(4), counts))
    for n in range(27, 101, 5):  # from one that leaves a single sample to be dealt
        wanted, remainders = np.divmod(n * counts, 101)
        wanted[np.argsort(remainders)[4 - (n - wanted.sum()) :]] += 1
        assert np.bincount(limit(source(labels), n, 0).target.values).tolist() == wanted.tolist()


def test_classes_without_samples_take_no_place_of_a_limit():
    labels = Classes(tuple("abcde"), np.array([0] * 97 + [1, 2]))
    assert sorted(limit(source(labels), 3, 0).target.values) == [0, 1, 2]


def test_rare_classes_are_on_both_sides_at_the_cost_of_the_common_ones():
    counts = np.array([50, 30] + [2] * 10)
    _, held = holdout(Classes(tuple("abcdefghijkl"), np.repeat(np.arange(12), counts)), 0.1, 0)
    assert np.bincount(np.repeat(np.arange(12), counts)[held]).tolist() == [1] * 12


@pytest.mark.parametrize("labels", [multi(*[["a"], ["a", "b"], [], ["c"]] * 25), Unlabelled(100)])
def test_limit_takes_exactly_n_of_other_kinds_too(labels):
    whole = source(labels)
    limited = limit(whole, 13, 0)
    assert len(limited) == 13
    assert "limited to 13 of 100 images" in limited.notes
    assert limit(whole, 13, 0).ids == limited.ids
    assert limit(whole, 13, 1).ids != limited.ids
    assert limit(whole, 100, 0) is whole
    with pytest.raises(UsageError, match="at least 1"):
        limit(whole, 0, 0)


UNEQUAL_COUNTS = np.array([53, 31, 12])
UNEQUAL = Classes(tuple("abc"), np.repeat(np.arange(3), UNEQUAL_COUNTS)[np.random.default_rng(0).permutation(96)])


@pytest.mark.parametrize("labels", [UNEQUAL, multi(*[["a"], ["a", "b"], []] * 32), Unlabelled(96)])
def test_parts_of_one_order_are_disjoint_and_another_seed_has_another(labels):
    whole = source(labels)
    parts = [part_of_order(whole, 24, 0, skip=skip, balanced=False) for skip in (0, 24, 48, 72)]
    assert all(list(part.ids) == sorted(part.ids) for part in parts)
    assert sorted(itertools.chain(*(part.ids for part in parts))) == sorted(whole.ids)
    assert part_of_order(whole, 24, 1, skip=0, balanced=False).ids != parts[0].ids
    assert part_of_order(whole, 24, 0, skip=0, balanced=False).ids == parts[0].ids


@pytest.mark.parametrize("skip", [0, 7, 40])
def test_a_part_of_an_order_has_the_classes_by_their_shares_or_equally_often(skip):
    shares = part_of_order(source(UNEQUAL), 48, 0, skip=skip, balanced=False).target.values
    assert np.abs(np.bincount(shares) - UNEQUAL_COUNTS / 2).max() <= 1
    if skip < 40:
        found = np.bincount(part_of_order(source(UNEQUAL), 26, 0, skip=skip, balanced=True).target.values)
        assert sorted(found) == [8, 9, 9]
        more = UNEQUAL.changed(classes=("none", *"abc"), values=UNEQUAL.values + 1)  # a class without images
        found = np.bincount(part_of_order(source(more), 26, 0, skip=skip, balanced=True).target.values)
        assert sorted(found) == [0, 8, 9, 9]


def test_a_part_that_the_images_do_not_suffice_for_is_refused():
    with pytest.raises(UsageError, match="limit_skip=80 and --limit 17 need 97 images, and there are 96"):
        part_of_order(source(UNEQUAL), 17, 0, skip=80, balanced=False)
    with pytest.raises(UsageError, match=r"12 images of the class 'c', too few to take 37 .*\n.* are at most 36\."):
        part_of_order(source(UNEQUAL), 30, 0, skip=7, balanced=True)
    assert len(part_of_order(source(UNEQUAL), 29, 0, skip=7, balanced=True)) == 29
    with pytest.raises(UsageError, match="limit_balanced=true needs one class for each image"):
        part_of_order(source(Unlabelled(96)), 30, 0, skip=0, balanced=True)


# ---- match_classes


def test_classes_are_matched_by_name_and_absent_ones_are_named():
    train, test = match_classes(source(single("a", "b", "c")), source(single("c", "b", "b"), "val/"))
    assert test.target.classes == train.target.classes == ("a", "b", "c")
    assert test.target.values.tolist() == [2, 1, 1]
    assert test.target.values.dtype == np.int64
    assert test.notes == ("1 class is in photos/ but not in val/: a",)


def test_train_keeps_its_own_order_of_classes():
    train = source(single("b", "a", classes=("b", "a")))
    _, test = match_classes(train, source(single("a", "b")))
    assert test.target.classes == ("b", "a")
    assert test.target.values.tolist() == [1, 0]


def test_multi_label_columns_are_matched_by_name():
    train = source(multi(["b"], ["a", "c"], classes=("c", "b", "a")))
    test = source(MultiLabel(("a", "b", "new"), np.array([[1, 0, 0], [-1, 1, 0]], dtype=np.int8)), "val/")
    _, matched = match_classes(train, test)
    assert matched.target.classes == ("c", "b", "a")
    assert matched.target.values.tolist() == [[-1, 0, 1], [-1, 1, -1]], "val/ says nothing about c"
    assert matched.target.values.dtype == np.int8
    assert matched.notes[-1] == "val/ does not list c, so its images are ignored for these classes"


def test_a_class_that_a_source_does_not_list_is_the_same_in_test_as_in_a_list_of_sources():
    one, other = multi(["a"], ["b"], classes=("a", "b")), multi(["b"], [], classes=("b", "c"))
    joined = join_labels({"one": one, "other": other})[0]
    _, matched = match_classes(source(multi(["a", "b", "c"], classes=joined.classes)), source(other, "val/"))
    assert matched.target.classes == joined.classes == ("a", "b", "c")
    assert matched.target.values.tolist() == joined.values[2:].tolist() == [[-1, 1, 0], [-1, 0, 0]]


def test_columns_of_numbers_are_matched_by_name():
    train, test = Numbers(("lat", "lon"), np.zeros((2, 2))), Numbers(("lon", "lat"), np.array([[1.0, 2.0], [3.0, 4.0]]))
    _, matched = match_classes(source(train), source(test))
    assert matched.target.classes == ("lat", "lon") and matched.target.values.tolist() == [[2, 1], [4, 3]]


def test_labels_that_cannot_be_matched_are_refused():
    for train, test, message in (
        (single("a", "b"), single("b", "d"), r"the class 'd' of val/ is not in photos/"),
        (single("cat", "dog"), single("Cat"), "It differs from 'cat' only in case"),
        (single("zebra", "dog"), single("zebar"), "Did you mean 'zebra'"),
        (single("a", "b"), multi(["a"]), "photos/ is single-label, but val/ is multi-label"),
        (multi(["a"]), multi(["x"]), "the class 'x'"),
        (single("a", "b"), Unlabelled(2), "val/ has no labels"),
        (Unlabelled(2), single("a"), "photos/ has no labels"),
        (
            single("a", "b"),
            single(*"qrstuvwx"),
            r"and 3 more classes of val/. Put images of these classes into photos/",
        ),
        (single("a", "b"), single(*"qrstu"), r"the class 'u' of val/ is not in photos/.* Put images of these classes"),
    ):
        with pytest.raises(DataError, match=message):
            match_classes(source(train), source(test, "val/"))


def test_a_class_that_test_only_lists_is_no_problem():
    _, test = match_classes(source(single("a", "b")), source(single("b", classes=("d", "b"))))
    assert test.target.values.tolist() == [1]
    assert test.target.classes == ("a", "b")


def test_classes_of_both_parts_are_united_and_unlabelled_train_images_are_a_class_of_their_own():
    train, test = unite_classes(source(single("b", "a", "b")), source(single("c", "a"), "val/"))
    assert train.target.classes == test.target.classes == ("a", "b", "c")
    assert train.target.values.tolist() == [1, 0, 1] and test.target.values.tolist() == [2, 0]
    train, test = unite_classes(source(Unlabelled(2)), source(single("c", "a"), "val/"))
    assert train.target.classes == test.target.classes == ("unlabelled", "a", "c")
    assert train.target.values.tolist() == [0, 0] and test.target.values.tolist() == [2, 1]
    with pytest.raises(DataError, match="multi-label"):
        unite_classes(source(single("a", "b")), source(multi(["a"]), "val/"))


def test_folders_that_number_the_classes_of_train_are_told_and_named(tmp_path):
    for part, names in (("train", ("n01", "n02", "n03")), ("v2", ("0", "1", "2"))):
        for name in names:
            (tmp_path / part / name).mkdir(parents=True)
            (tmp_path / part / name / "a.png").write_bytes(png(len(name)))
    train, test = (open_data(str(tmp_path / part))["all"] for part in ("train", "v2"))
    (problem,) = label_problems(train, test)
    assert "--test-classes numbers" in problem and "numbers from 0 to 2" in problem and "n01" in problem
    named = name_numbered(train, test)
    assert not label_problems(train, named) and named.target.classes == ("n01", "n02", "n03")
    assert any("0 is n01, 1 is n02, 2 is n03" in note for note in named.notes)
    assert not any("matched by name" in note for note in named.notes)
    assert "--test-classes" not in label_problems(test, train)[0]
    (tmp_path / "v2" / "7").mkdir()
    (tmp_path / "v2" / "7" / "a.png").write_bytes(png(7))
    assert "--test-classes" not in label_problems(train, open_data(str(tmp_path / "v2"))["all"])[0]
