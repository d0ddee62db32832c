"""Schedules: what a user writes, what is refused, and what holds for all of them."""

import itertools
import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sslbench import paths
from sslbench.config import read_yaml
from sslbench.errors import UsageError
from sslbench.train import schedules

progress = st.floats(0, 1)
value = st.floats(-10, 10)
fraction = st.floats(0.02, 0.98)
waves = st.builds(
    lambda start, end, interval, wave, multiplier: {
        "name": "cosine_warm_restart", "start": start, "end": end, "interval": interval, "wave": wave,
        "multiplier": multiplier,
    },
    value, value, st.floats(0.05, 1), st.sampled_from(["half", "full"]), st.floats(0.1, 2),
)  # fmt: skip
adaptive = waves.map(lambda spec: {**spec, "adaptive": True})
steps = st.lists(value, min_size=1, max_size=6).map(lambda values: {"name": "step", "values": values})
multistep = st.lists(st.floats(0.01, 90), min_size=1, max_size=5, unique=True).map(
    lambda milestones: {
        "name": "multistep", "values": [0.5**i for i in range(len(milestones) + 1)], "milestones": sorted(milestones),
    }
)  # fmt: skip
simple = st.one_of(
    value,
    st.builds(lambda v: {"name": "constant", "value": v}, value),
    st.builds(lambda n, a, b: {"name": n, "start": a, "end": b}, st.sampled_from(["linear", "cosine"]), value, value),
    st.builds(lambda a, p: {"name": "polynomial", "start": a, "power": p}, value, st.floats(0.1, 5)),
    st.builds(lambda a, w: {"name": "inverse_sqrt", "start": a, "warmup": w}, value, st.floats(0, 1)),
    st.builds(
        lambda a, g, n: {"name": "step_with_fixed_gamma", "start": a, "gamma": g, "decays": n},
        value, st.floats(0, 2), st.integers(0, 8),
    ),
    waves, adaptive, steps, multistep,
)  # fmt: skip


@st.composite
def composites(draw):
    parts = draw(st.lists(simple, min_size=1, max_size=4))
    sizes = draw(st.lists(st.floats(0.1, 1), min_size=len(parts), max_size=len(parts)))
    scaling = draw(st.lists(st.sampled_from(["rescaled", "fixed"]), min_size=len(parts), max_size=len(parts)))
    lengths = [size / sum(sizes) for size in sizes]
    return {"name": "composite", "parts": parts, "lengths": lengths, "scaling": scaling}


def built(spec, epochs=90):
    return schedules.build(spec, where="schedule.lr", epochs=epochs)


@given(st.one_of(simple, composites()), progress)
def test_every_schedule_is_a_finite_number_everywhere(spec, where):
    schedule = built(spec)
    for w in (0.0, 1e-12, where, 1 - 1e-7, 1.0):
        result = schedule(w)
        assert isinstance(result, float | int) and math.isfinite(result)


@given(value, value, progress)
def test_linear_and_cosine_go_from_start_to_end(start, end, where):
    low, high = min(start, end) - 1e-12, max(start, end) + 1e-12
    for name in ("linear", "cosine"):
        schedule = built({"name": name, "start": start, "end": end})
        assert schedule(0.0) == pytest.approx(start, abs=1e-12)
        assert schedule(1.0) == end
        assert low <= schedule(where) <= high


@given(st.lists(value, min_size=2, max_size=6), st.data())
def test_a_composite_of_lines_that_meet_has_no_jump(corners, data):
    """A polygon through the corners: nowhere steeper than its steepest line."""
    n = len(corners) - 1
    sizes = data.draw(st.lists(st.floats(0.1, 1), min_size=n, max_size=n))
    lengths = [size / sum(sizes) for size in sizes]
    parts = [{"name": "linear", "start": a, "end": b} for a, b in itertools.pairwise(corners)]
    schedule = built({"name": "composite", "parts": parts, "lengths": lengths})
    slope = max(abs(b - a) / size for a, b, size in zip(corners, corners[1:], lengths, strict=False))
    at = data.draw(st.one_of(progress, st.sampled_from([sum(lengths[: i + 1]) for i in range(n)])))
    step = 1e-7
    before, after = max(0.0, at - step), min(1.0, at + step)
    # A part begins 1e-6 before its time, and goes on from there in a straight line.
    assert abs(schedule(after) - schedule(before)) <= slope * (after - before) + 2 * slope * 1e-6 + 1e-12


@given(value, st.one_of(simple, composites()), fraction)
def test_a_warmup_begins_and_ends_exactly(start, spec, warmup):
    schedule = built(spec)
    on_the_clock = isinstance(spec, dict) and spec["name"] in ("multistep", "inverse_sqrt")
    target = schedule(warmup if on_the_clock else 0.0)
    times = {"warmup_epochs": 90 * warmup, "warmup_start": start, "epochs": 90}
    warm = schedules.build_with_warmup(spec, where="schedule.lr", **times)
    near = {"rel": 1e-9, "abs": 1e-9}
    assert warm(0.0) == start
    assert warm(warmup) == pytest.approx(target, **near)
    assert warm(1.0) == pytest.approx(schedule(1.0), **near)
    assert warm(warmup / 2) == pytest.approx((start + target) / 2, **near)


def test_rounding_at_the_begin_of_an_inverse_square_root_does_not_blow_it_up():
    part = {"name": "inverse_sqrt", "start": 1.0, "warmup": 0.0}
    spec = {"name": "composite", "parts": [part], "lengths": [1.0], "scaling": ["rescaled"]}
    after = 0.12381993743851172  # (after - 0) / 1 is not exactly the begin of the part
    times = {"warmup_epochs": 90 * after, "warmup_start": 0.0, "epochs": 90}
    assert schedules.build_with_warmup(spec, where="lr", **times)(after) == pytest.approx(1.0)


def test_no_warmup_changes_nothing_and_nothing_but_a_warmup_is_a_line():
    def warmed(epochs):
        spec = {"name": "cosine", "start": 1, "end": 0}
        return schedules.build_with_warmup(spec, warmup_epochs=epochs, warmup_start=0.5, where="lr", epochs=10)

    assert [warmed(0)(i / 10) for i in range(11)] == [schedules.cosine(1, 0)(i / 10) for i in range(11)]
    assert warmed(10)(0.5) == 0.75


def test_milestones_are_epochs_since_training_began_with_a_warmup_too():
    spec = {"name": "multistep", "values": [1, 0.1], "milestones": [60]}
    schedule = schedules.build_with_warmup(spec, warmup_epochs=10, warmup_start=0, where="schedule.lr", epochs=100)
    assert schedule(0.05) == pytest.approx(0.5)
    assert [schedule(w) for w in (0.1, 0.599, 0.6, 1.0)] == [1, 1, 0.1, 0.1]


def test_a_cosine_after_a_warmup_begins_at_its_top():
    spec = {"name": "cosine", "start": 1, "end": 0}
    schedule = schedules.build_with_warmup(spec, warmup_epochs=10, warmup_start=0.1, where="schedule.lr", epochs=100)
    assert [schedule(w) for w in (0.0, 0.1, 0.55, 1.0)] == pytest.approx([0.1, 1, 0.5, 0])


def test_a_warmup_longer_than_training_is_refused():
    with pytest.raises(UsageError, match=r"schedule.warmup_epochs 10 does not fit into 5 epochs"):
        schedules.build_with_warmup(1.0, warmup_epochs=10, warmup_start=0, where="schedule.lr", epochs=5)


def test_a_value_stands_until_its_milestone_and_the_last_one_to_the_end():
    """Whatever the number of epochs, although i / epochs is rarely exact."""
    for epochs in range(2, 200):
        milestone = epochs // 2 + 1
        if milestone < epochs:
            schedule = built({"name": "multistep", "values": [1, 0.1], "milestones": [milestone]}, epochs)
            assert [schedule(epoch / epochs) for epoch in range(epochs)].count(1) == milestone
        schedule = built({"name": "step", "values": list(range(epochs))})
        assert [schedule(epoch / epochs) for epoch in range(epochs)] == list(range(epochs))
        assert schedule(1.0) == epochs - 1


def test_a_milestone_that_never_comes_is_said(caplog):
    with caplog.at_level(logging.WARNING, "sslbench"):
        built({"name": "multistep", "values": [1, 0.1, 0.01], "milestones": [60, 120]}, epochs=100)
    assert "milestones 120 are never reached" in caplog.text and "60" not in caplog.text


def test_full_waves_come_back_and_half_waves_jump():
    full = schedules.cosine_warm_restart(1, 0, 0.25, "full")
    half = schedules.cosine_warm_restart(1, 0, 0.25, "half", multiplier=0.5)
    assert [full(w) for w in (0.0, 0.25, 0.5, 0.75, 1.0)] == pytest.approx([1, 0, 1, 0, 1])
    assert [half(w) for w in (0.0, 0.125, 0.25, 0.5, 0.75)] == pytest.approx([1, 0.5, 0.5, 0.25, 0.125])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"start": 1}, "the key 'name' is missing"),
        ({"name": "cosin", "start": 1, "end": 0}, "no schedule 'cosin'.*Did you mean 'cosine'"),
        ({"name": "cosine", "start": 1, "ends": 0}, "cosine has no key 'ends'.*Did you mean 'end'"),
        ({"name": "cosine", "start": 1}, "cosine needs the key 'end'"),
        ({"name": "cosine", "start": "one", "end": 0}, "start: should be a number, not 'one'"),
        ({"name": "cosine", "start": True, "end": 0}, "start: should be a number"),
        ({"name": "cosine", "start": math.nan, "end": 0}, "start: must be a finite number"),
        (math.inf, "must be a finite number"),
        ("fast", "should be a number, not 'fast'"),
        ({"name": "multistep", "values": [1, 0.1], "milestones": [30, 60]}, "2 values need 1 milestones"),
        ({"name": "multistep", "values": [1, 0.1, 0.01], "milestones": [60, 30]}, "milestones must increase"),
        ({"name": "step", "values": []}, "values is empty"),
        ({"name": "step_with_fixed_gamma", "start": 1, "gamma": 0.1, "decays": -1}, "decays must be 0 or more"),
        ({"name": "polynomial", "start": 1, "power": 0}, "power must be above 0"),
        ({"name": "inverse_sqrt", "start": 1, "warmup": -1}, "warmup must be 0 or more"),
        ({"name": "cosine_warm_restart", "start": 1, "end": 0, "interval": 0}, "interval must be from"),
        ({"name": "composite", "parts": [1, 2], "lengths": [0.5, 0.4]}, "lengths must sum to 1, not to 0.9"),
        ({"name": "composite", "parts": [1, 2], "lengths": [1.0]}, "2 parts have 1 lengths and 2 scalings"),
        ({"name": "composite", "parts": [], "lengths": []}, "0 parts have 0 lengths"),
        ({"name": "composite", "parts": [1, 2], "lengths": [0, 1]}, "lengths must be above 0"),
        ({"name": "composite", "parts": [1], "lengths": [1], "scaling": ["fix"]}, "'fix' is not possible"),
        ({"name": "composite", "parts": [1, {"name": "lin"}], "lengths": [0.5, 0.5]}, r"parts\[1\]: .*'lin'"),
    ],
)
def test_a_mistake_is_named(spec, message):
    with pytest.raises(UsageError, match=f"(?s)schedule.lr.*{message}"):
        built(spec)


@pytest.mark.parametrize("wave", ["half", "full"])
def test_a_multiplier_of_adaptive_waves_has_no_effect_and_is_said(wave, caplog):
    """As in VISSL, whose recipes may hold both."""
    spec = {"name": "cosine_warm_restart", "start": 1, "end": 0.1, "interval": 0.2, "wave": wave, "adaptive": True}
    plain, both = built(spec), built({**spec, "multiplier": 0.5})
    assert [plain(i / 50) for i in range(51)] == [both(i / 50) for i in range(51)]
    assert "multiplier 0.5 has no effect" in caplog.text


FREEZE, WARM, TOTAL = 3, 4, 20


def frozen(spec, **changes):
    times = {"freeze_epochs": FREEZE, "warmup_epochs": WARM, "warmup_start": 0.1, "epochs": TOTAL, **changes}
    return schedules.build_with_warmup(spec, where="schedule.lr", **times)


def test_a_rate_stays_at_0_before_its_warm_up():
    """DINOv2: freeze_iters, warmup_iters, cosine; its warm-up reaches the top one step earlier."""
    schedule = frozen({"name": "cosine", "start": 1, "end": 0.2})
    expected = [0.0] * FREEZE
    expected += [0.1 + 0.9 * i / WARM for i in range(WARM)]
    rest = TOTAL - FREEZE - WARM
    expected += [0.2 + 0.4 * (1 + math.cos(math.pi * i / rest)) for i in range(rest)]
    assert [schedule(i / TOTAL) for i in range(TOTAL)] == pytest.approx(expected)


def test_milestones_stay_where_they_are_behind_a_time_at_0():
    schedule = frozen({"name": "multistep", "values": [1, 0.5], "milestones": [10]})
    assert [schedule(i / TOTAL) for i in (0, 2, 3, 5, 7, 9, 10, 19)] == pytest.approx([0, 0, 0.1, 0.55, 1, 1, 0.5, 0.5])


@given(st.floats(0, 5), st.floats(0, 5), st.one_of(simple, composites()))
def test_the_whole_of_training_has_a_rate(freeze, warm, spec):
    schedule = frozen(spec, freeze_epochs=freeze, warmup_epochs=warm, epochs=10)
    assert all(math.isfinite(schedule(i / 97)) for i in range(98))
    assert freeze < 1 or schedule(0) == schedule(freeze / 20) == 0


def test_times_that_do_not_fit_are_named():
    with pytest.raises(UsageError, match=r"schedule.freeze_epochs 21 does not fit into 20 epochs"):
        frozen(1.0, freeze_epochs=21)
    with pytest.raises(UsageError, match=r"warmup_epochs 18 does not fit into 20 epochs after 3 frozen ones"):
        frozen(1.0, warmup_epochs=18)
    assert frozen(1.0, freeze_epochs=16)(0.9) > 0


def test_milestones_need_a_number_of_epochs():
    with pytest.raises(UsageError, match="whose number is not known"):
        schedules.build({"name": "multistep", "values": [1, 2], "milestones": [1]}, where="temperature")


def test_names():
    expected = "composite constant cosine cosine_warm_restart inverse_sqrt linear multistep polynomial step"
    assert list(schedules.NAMES) == [*expected.split(), "step_with_fixed_gamma"]


def test_the_files_of_the_schedule_group():
    """Each begins at the rate itself, so that optimizer.lr means what it says."""
    files = sorted((paths.builtin_dir("configs") / "schedule").glob("*.yaml"))
    assert {f.stem for f in files} >= {"constant", "cosine", "cosine_warmup", "linear", "step", "polynomial"}
    for file in files:
        content = read_yaml(file)
        assert set(content) == {"lr", "freeze_epochs", "warmup_epochs", "warmup_start", "weight_decay", "momentum"}
        assert schedules.build(content["lr"], where=file.name, epochs=100)(0.0) == 1


def test_a_part_begins_where_the_one_before_it_ends():
    """At the very step, although 0.1 + 0.2 is not 0.3."""
    spec = {"name": "composite", "parts": [1, 2, 3, 4], "lengths": [0.1, 0.2, 0.3, 0.4]}
    assert [built(spec)(i / 10) for i in range(11)] == [1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 4]


def test_a_rounding_error_beyond_the_end_is_the_end():
    assert schedules.polynomial(1, 0.5)(1 + 1e-15) == 0
