"""Numbers and keys of small runs are those that are kept beside this file; `helpers.kept_numbers` writes them anew."""

import pytest
from helpers import kept_numbers

CASES = kept_numbers.cases()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with kept_numbers.world(tmp_path_factory.mktemp("world")):
        yield


@pytest.mark.skipif(not kept_numbers.COMPARABLE, reason="without AVX2 torch makes other pixels of the same pictures")
@pytest.mark.parametrize(("file", "name"), [(file, name) for file, runs in CASES.items() for name in runs])
def test_a_run_gives_the_numbers_and_shares_the_work_that_are_kept(file, name, tmp_path, world):
    near = kept_numbers.WIDER.get(name, kept_numbers.NEAR)
    assert kept_numbers.differences(CASES[file][name](tmp_path), kept_numbers.kept_run(file, name), near) == []


@pytest.mark.parametrize("file", CASES)
def test_every_run_is_kept_and_nothing_else(file):
    assert sorted(CASES[file]) == sorted(kept_numbers.kept(file))


def test_a_moved_number_is_told_and_a_flipped_sample_moves_a_rate_with_its_interval():
    kept = {"n": 20, "metrics": {"top1": [80.0, 60.0, 90.0]}, "scores": {"first": [0.5, 0.25]}}

    def told(**changes):
        return kept_numbers.differences({**kept, **changes}, kept)

    assert told() == told(metrics={"top1": [75.0, 54.0, 86.0]}) == told(scores={"first": [0.5002, 0.25]}) == []
    assert told(metrics={"top1": [80.0, 61.0, 90.0]}) and told(metrics={"top1": [79.0, 59.0, 90.0]})
    assert told(metrics={"top5": [80.0, 60.0, 90.0]}) and told(scores={"first": [0.51, 0.25]})
    assert told(scores={"first": [0.5]}) and told(scores={"first": [0.5, None]})
