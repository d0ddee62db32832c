"""Geolocation: S2 cells, their partition, and the protocol."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.regression import great_circle_distances, unit_vectors
from sslbench.protocols import geolocation
from sslbench.protocols.geolocation import LEAF_LEVEL, Settings, leaf_indices, mean_places, partition
from sslbench.targets.classes import Classes
from sslbench.targets.numbers import Numbers

S2_IDS = {
    (0.0, 0.0): "1000000000000001",
    (48.8584, 2.2945): "47e66fe1f36a36a5",
    (90.0, 0.0): "5000000000000001",
    (-90.0, 0.0): "b000000000000001",
    (0.0, 180.0): "6fffffffffffffff",
    (0.0, -180.0): "7000000000000001",
    (-33.8568, 151.2153): "6b12ae669072a21f",
    (35.0, -120.0): "80ebf2ed7f6e0ad5",
    (89.999, 45.0): "4555555545041145",
    (1.0, 179.9999): "6554b34ab5625f77",
    (-45.0, 45.0): "b501010400411455",
}
"""Places and the ids of their leaf cells in the S2 library."""
CITIES = np.array([[48.86, 2.35], [-33.87, 151.21], [40.71, -74.01], [-1.29, 36.82]])


def on_the_sphere(generator, n):
    return np.column_stack([np.degrees(np.arcsin(generator.uniform(-1, 1, n))), generator.uniform(-180, 180, n)])


@pytest.mark.parametrize("place", S2_IDS)
def test_leaf_cells_are_those_of_s2(place):
    (index,) = leaf_indices([place]).tolist()
    assert f"{2 * index + 1:016x}" == S2_IDS[place]


def test_a_cell_is_named_by_its_id_of_s2():
    """The lowest set bit of the id is half the width of its range of leaves."""
    indices = leaf_indices(on_the_sphere(np.random.default_rng(0), 300))
    cells = partition(indices, max_images=9, min_images=1)
    numbers = cells.numbers(indices).tolist()
    for index, number in zip(indices.tolist(), numbers, strict=True):
        middle = int(cells.tokens()[number].ljust(16, "0"), 16)
        width = middle & -middle
        assert middle - width < 2 * index + 1 < middle + width
    assert partition(leaf_indices([[48.858, 2.294], [48.853, 2.349]]), max_images=2, min_images=1).tokens() == ("47",)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 20))
def test_every_image_is_in_one_cell_and_no_cell_is_too_large_or_too_small(seed, most, fewest):
    """Cells are ranges of indices that do not overlap, none of them over the limit and none split without need."""
    generator = np.random.default_rng(seed)
    places = np.concatenate(
        [
            on_the_sphere(generator, 60),
            [90, 0] - np.abs(generator.normal(size=(30, 2))) * [1e-3, 90],  # around a pole
            np.column_stack([generator.normal(size=30), (179.99 + generator.uniform(0, 0.02, 30) + 180) % 360 - 180]),
            np.tile([[12.5, 77.25]], (45, 1)),  # one place
        ]
    )
    indices = leaf_indices(places)
    all_cells = partition(indices, max_images=most, min_images=1)
    numbers = all_cells.numbers(indices)
    counts = np.bincount(numbers, minlength=len(all_cells))
    assert numbers.min() >= 0 and counts.min() >= 1
    assert np.all((counts <= most) | (all_cells.levels == LEAF_LEVEL))
    sizes = [4 ** (LEAF_LEVEL - level) for level in all_cells.levels.tolist()]
    ends = [start + size for start, size in zip(all_cells.starts.tolist(), sizes, strict=True)]
    assert all(end <= start for end, start in zip(ends, all_cells.starts.tolist()[1:], strict=False))
    for index, number in zip(indices.tolist(), numbers.tolist(), strict=True):
        assert all_cells.starts[number] <= index < ends[number]
    # A cell with its three neighbours would be over the limit, or it is one of the largest.
    for start, size, level in zip(all_cells.starts.tolist(), sizes, all_cells.levels.tolist(), strict=True):
        parent = start // (4 * size) * 4 * size
        assert level == 2 or np.sum((indices >= parent) & (indices < parent + 4 * size)) > most
    kept = partition(indices, max_images=most, min_images=fewest)
    left = kept.numbers(indices)
    assert {(s, v) for s, v in zip(kept.starts.tolist(), kept.levels.tolist(), strict=True)} == {
        (s, v)
        for s, v, n in zip(all_cells.starts.tolist(), all_cells.levels.tolist(), counts.tolist(), strict=True)
        if n >= fewest
    }
    assert np.array_equal(left >= 0, counts[numbers] >= fewest)


def test_cells_have_similar_areas_everywhere():
    """Random places per cell of one level differ by little more than the factor 2.1 of S2, also at the poles."""
    indices = leaf_indices(on_the_sphere(np.random.default_rng(0), 200_000))
    counts = np.unique(indices >> 2 * (LEAF_LEVEL - 2), return_counts=True)[1]
    assert len(counts) == 96 and counts.max() / counts.min() < 2.5


def test_images_beside_the_date_line_share_a_face_and_those_around_a_pole_cells():
    pole = np.column_stack([np.full(36, 89.9), np.arange(-180, 180, 10)])
    assert len(partition(leaf_indices(pole), max_images=36, min_images=1)) <= 4, "the four quarters around the pole"
    line = np.array([[10.0, 179.999], [10.0, -179.999]])
    assert len(set((leaf_indices(line) >> 2 * LEAF_LEVEL).tolist())) == 1, "one face"


def test_the_mean_place_is_on_the_sphere():
    generator = np.random.default_rng(0)
    around = np.column_stack([np.full(360, 80.0), np.arange(-180, 180)])
    line = np.array([[10.0, 179.0], [10.0, -179.0]])
    found = mean_places(np.concatenate([around, line]), np.repeat([0, 1], [360, 2]), 2)
    assert found[0, 0] == pytest.approx(90) and abs(found[1, 1]) == pytest.approx(180)
    places = on_the_sphere(generator, 50) / [2, 4]
    vector = unit_vectors(places).mean(axis=0)
    own = unit_vectors(mean_places(places, np.zeros(50, np.int64), 1))[0]
    assert own == pytest.approx(vector / np.linalg.norm(vector))


def located(n, seed=0, noise=0.3, places=CITIES):
    """Features that tell the city of each image; places within some 10 km of its centre."""
    generator = np.random.default_rng(seed)
    city = np.arange(n) % len(places)
    x = (3 * np.eye(len(places), 6)[city] + noise * generator.normal(size=(n, 6))).astype(np.float32)
    values = places[city] + 0.1 * generator.uniform(-1, 1, (n, 2))
    return Features(x, Numbers(("lat", "lon"), values), tuple(f"{seed}-{i:05d}" for i in range(n)))


SMALL = Settings(max_images=200, min_images=5, c=(0.01, 1.0))


def test_a_case_with_a_known_answer():
    """The predicted place is the mean place of the training images of the city."""
    train, test = located(200), located(40, 1)
    outcome = geolocation.run(train, test, SMALL, seed=0)
    expected = np.array([mean_places(train.target.values[c::4], np.zeros(50, np.int64), 1)[0] for c in range(4)])
    assert outcome.scores == pytest.approx(expected[np.arange(40) % 4], abs=1e-4)
    errors = great_circle_distances(test.target.values, outcome.scores)
    assert outcome.metrics["accuracy@25km"][0] == np.mean(errors <= 25) == 1 and outcome.train == 1
    assert outcome.metrics["mean_error_km"][0] == pytest.approx(errors.mean())
    assert outcome.chance["accuracy@200km"] == pytest.approx(0.25) and outcome.selected["cells"] == 4
    assert outcome.notes[0] == (
        "4 cells of 5 to 200 training images; with every test image in its own cell, 100.0 % would lie within 200 km."
    )


def test_chance_is_the_expectation_over_cells_by_frequency():
    train, test = located(200), located(40, 1)
    rows = np.flatnonzero((np.arange(200) % 4 == 0) | (np.arange(200) < 100))
    outcome = geolocation.run(train.select(rows), test, SMALL, seed=0)
    frequency = np.bincount(rows % 4) / len(rows)
    assert outcome.chance["accuracy@200km"] == pytest.approx(frequency.mean())
    pairs = great_circle_distances(CITIES[:, None].repeat(40, 1), test.target.values)
    assert outcome.chance["mean_error_km"] == pytest.approx(float(frequency @ pairs.mean(axis=1)), rel=0.01)


def test_each_bundled_digit_lies_around_a_point_of_its_own():
    places, digits = (open_data(f"sklearn:{name}")["all"] for name in ("digit-places", "digits"))
    assert places.images.digests().tolist() == digits.images.digests().tolist()
    assert places.target.size_text() == "numbers: lat, lon"
    of_digit = [places.target.values[digits.target.values == digit] for digit in range(10)]
    centres = np.array([each.mean(axis=0) for each in of_digit])
    apart = great_circle_distances(centres[:, None].repeat(10, 1).reshape(-1, 2), np.tile(centres, (10, 1)))
    assert np.sort(apart)[10] > 2000  # behind the ten of each to itself
    assert all(np.median(great_circle_distances(each, each.mean(axis=0) + 0 * each)) < 100 for each in of_digit)


def test_places_without_meaning_are_predicted_at_chance():
    generator = np.random.default_rng(0)
    right = 0
    for repeat in range(8):
        train, test = located(80, repeat), located(120, repeat + 50)
        mixed = train.target.changed(values=generator.permutation(train.target.values))
        drawn = test.target.changed(values=CITIES[generator.integers(0, 4, 120)])
        outcome = geolocation.run(
            dataclasses.replace(train, target=mixed), dataclasses.replace(test, target=drawn), SMALL, seed=repeat
        )
        right += round(120 * outcome.metrics["accuracy@200km"][0])
    assert binom.ppf(5e-7, 960, 0.25) <= right <= binom.isf(5e-7, 960, 0.25)


def test_images_of_small_cells_are_not_trained_on_but_test_images_there_count():
    rare = np.concatenate([CITIES, [[64.15, -21.94]]])
    train, test = located(200), located(50, 1, places=rare)
    train = Features(
        np.concatenate([train.x, located(3, 2).x]),
        Numbers(("lat", "lon"), np.concatenate([train.target.values, np.tile(rare[4:], (3, 1))])),
        (*train.ids, "a", "b", "c"),
    )
    outcome = geolocation.run(train, test, SMALL, seed=0)
    assert "; 3 images of smaller cells were left out of training; " in outcome.notes[0]
    assert "80.0 % would lie within 200 km." in outcome.notes[0]
    assert outcome.metrics["accuracy@200km"][0] == 0.8 and len(outcome.scores) == 50


def test_groups_are_held_out_and_resampled_whole(monkeypatch):
    from sslbench.protocols._parts import selection

    train = dataclasses.replace(located(200), groups=np.arange(200) // 8)
    seen = []

    def holdout(labels, fraction, seed, *, groups=None, rank=None, _real=selection.holdout):
        seen.append(_real(labels, fraction, seed, groups=groups, rank=rank))
        assert not set(groups[seen[-1][0]]) & set(groups[seen[-1][1]])
        return seen[-1]

    monkeypatch.setattr(selection, "holdout", holdout)
    test = located(40, 1, noise=2.0)
    rows = np.repeat(np.arange(40), 9)
    copies = dataclasses.replace(test.select(rows), ids=tuple(f"{i:05d}" for i in range(360)))
    found = [
        geolocation.run(train, each, SMALL, seed=0).metrics["accuracy@200km"]
        for each in (test, dataclasses.replace(copies, groups=rows), copies)
    ]
    widths = [high - low for _, low, high in found]
    assert seen and widths[1] == pytest.approx(widths[0], rel=0.35) and widths[2] < 0.6 * widths[1]


def labels_of(values, names=("lat", "lon")):
    return Numbers(names, np.asarray(values, np.float64))


@pytest.mark.parametrize(
    ("labels", "message", "remedy"),
    [
        (Classes(("a", "b"), np.array([0, 1])), "have one class each", "--value-col lat,lon"),
        (labels_of([[1.0]], ("lat",)), "have 1: lat", "latitude first: --value-col lat,lon"),
        (labels_of([[1.0, 2, 3]], ("a", "b", "c")), "have 3: a, b, c", "--value-col lat,lon"),
        (
            labels_of([[1, 2], [-91, 3], [92, 3]]),
            "'lat' .* has -91 in sample 2 of 3 .and 1 more",
            "--value-col lon,lat",
        ),
        (labels_of([[1, 2], [3, 181]]), "'lon' .* has 181 in sample 2 of 2, which is not a longitude", "Subtract 360"),
        (labels_of([[1, 2], [3, 4]], ("lon", "lat")), "takes 'lon' for the latitude", "--value-col lat,lon"),
        (labels_of([[1, 2], [3, 4]] * 30), "60 training images make 1 cell of 50 to 5000", "max_images=3 min_images=1"),
    ],
)
def test_wrong_places_are_one_message(labels, message, remedy):
    with pytest.raises(DataError) as error:
        geolocation.check(Settings(), labels)
    assert re.search(message, error.value.message) and remedy in error.value.remedy


def test_headings_that_are_swapped_in_the_file_can_be_used():
    geolocation.check(Settings(min_images=1), labels_of(CITIES, ("LON", "LAT")))


@pytest.mark.parametrize("wrong", [{"min_images": 0}, {"max_images": 5}, {"c": ()}, {"holdout": 2}])
def test_settings_that_are_not_possible_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Settings(**wrong)
