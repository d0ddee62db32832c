"""Schedules as fvcore, ClassyVision, VISSL, DINO, DINOv2, lightly and solo-learn have them, each by ours."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from golden_cases import Case

from sslbench.train import schedules
from sslbench.train.optimizer_settings import OptimizerSettings
from sslbench.train.optimizers import scaled_lr
from sslbench.train.schedules import Schedule

SCHEDULES = ("constant", "cosine", "linear", "multistep", "step", "polynomial", "composite", "cwr", "inverse_sqrt")
SCHEDULES_OF_OTHERS = ("layer_decay", "dino_cosine", "dinov2_cosine", "lightly_", "solo_")

_KEYS = {
    "start_value": "start",
    "end_value": "end",
    "base_value": "start",
    "num_decays": "decays",
    "restart_interval_length": "interval",
    "wave_type": "wave",
    "lr_multiplier": "multiplier",
    "is_adaptive": "adaptive",
    "warmup_interval_length": "warmup",
    "schedulers": "parts",
    "interval_scaling": "scaling",
}


def recorded(case: Case) -> None:
    """Run a schedule by what its case says: a configuration, a factor of layer decay, or values step by step."""
    args = case.meta.get("args", {})
    if "name" in args:
        _configured(case)
    elif "lr_decay" in args:
        _layer_decay(case)
    else:
        _listed(case)


def _configured(case: Case) -> None:
    """Compare wherever the reference gives a value; where it raises, at the very end, ours gives a finite one."""
    given, wanted, args = case.inputs(), case.expected(), case.meta["args"]
    schedule = schedules.build(spec_of(args), where=case.name, epochs=_epochs(args))
    grids = [name.removeprefix("where") for name in given if name.startswith("where")]
    assert grids
    for grid in grids:
        where, values = given[f"where{grid}"], wanted[f"value{grid}"]
        ours = np.array([schedule(w) for w in where])
        known = np.isfinite(values)
        np.testing.assert_allclose(ours[known], values[known], rtol=1e-12)
        assert np.isfinite(ours).all()
    assert np.isfinite(schedule(1.0))


def _layer_decay(case: Case) -> None:
    """The inner schedule stands in the call: 'LayerDecayScheduler(cosine(.1,.001),lr_decay)'."""
    inner = re.search(r"cosine\(([\d.e+-]+), ?([\d.e+-]+)\)", case.meta["callable"])
    assert inner, case.meta["callable"]
    schedule = schedules.scaled(schedules.cosine(float(inner[1]), float(inner[2])), case.meta["args"]["lr_decay"])
    ours = [schedule(w) for w in case.inputs()["where"]]
    np.testing.assert_allclose(ours, case.expected()["value"], rtol=1e-12)


def _listed(case: Case) -> None:
    """Forms that list one value per step or epoch, and reach the top in the last step of the warm-up."""
    args, wanted = case.meta["args"], case.expected()["schedule"]
    schedule, total = _per_step(case, args)
    ours = np.array([schedule(min(i / total, 1.0)) for i in range(len(wanted))])
    known = np.isfinite(wanted)
    rtol = 1e-9 if "warmup_start_lr" in args else 1e-12  # solo-learn's is recursive
    np.testing.assert_allclose(ours[known], wanted[known], rtol=rtol, atol=1e-18)


def _per_step(case: Case, args: Mapping[str, Any]) -> tuple[Schedule, int]:
    """The schedule, and the number of steps that `where = 1` stands for."""
    if "warmup_start_lr" in args:  # solo-learn
        base = re.search(r"base lr ([\d.e+-]+)", case.meta["callable"])
        assert base, case.meta["callable"]
        values = (args["warmup_start_lr"], float(base[1]), args["eta_min"])
        return _warm_flat_cosine(args["warmup_epochs"], args["max_epochs"], values), args["max_epochs"]
    if "max_steps" in args:  # lightly
        total, top, warmup = args["max_steps"] - 1, args["start_value"], args.get("warmup_steps", 0)
        if not warmup:
            return schedules.cosine(top, args["end_value"]), total
        # The first step already stands one step above the start.
        first = args["warmup_start_value"] + (top - args["warmup_start_value"]) / warmup
        return _warm_flat_cosine(warmup, total, (first, top, args["end_value"])), total
    values = (args.get("start_warmup_value", 0.0), args["base_value"], args["final_value"])
    freeze = args.get("freeze_iters", 0)  # DINOv2: nothing moves at first
    if "total_iters" in args:
        return _warm_flat_cosine(args["warmup_iters"], args["total_iters"], values, freeze), args["total_iters"]
    per_epoch = args["niter_per_ep"]
    total = args["epochs"] * per_epoch
    return _warm_flat_cosine(args.get("warmup_epochs", 0) * per_epoch, total, values, freeze), total


def _warm_flat_cosine(warmup: int, total: int, values: tuple[float, float, float], freeze: int = 0) -> Schedule:
    """At 0 for `freeze` steps, up in `warmup - 1`, one step at the top, then down."""
    start, top, end = values
    parts: list[tuple[int, dict[str, Any]]] = [(freeze, {"name": "constant", "value": 0.0})]
    if warmup == 1:  # a straight line of one step is its beginning
        parts += [(1, {"name": "constant", "value": start})]
    elif warmup:
        parts += [(warmup - 1, {"name": "linear", "start": start, "end": top})]
        parts += [(1, {"name": "constant", "value": top})]
    parts += [(total - warmup - freeze, {"name": "cosine", "start": top, "end": end})]
    used = [(steps, part) for steps, part in parts if steps]
    spec = {"name": "composite", "parts": [part for _, part in used], "lengths": [steps / total for steps, _ in used]}
    return schedules.build(spec, where="recorded")


def spec_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """A reference's arguments in our words, without those that the schedule does not take."""
    taken = {"name", *inspect.signature(getattr(schedules, args["name"])).parameters}
    spec = {_KEYS.get(key, key): value for key, value in args.items()}
    spec = {key: value for key, value in spec.items() if key in taken and key != "epochs"}
    if args["name"] == "multistep" and "milestones" not in args:
        part = -(-args["num_epochs"] // len(args["values"]))  # equal parts of whole epochs
        spec["milestones"] = [part * (i + 1) for i in range(len(args["values"]) - 1)]
    if args["name"] == "multistep" and len(spec["milestones"]) == len(args["values"]):
        spec["milestones"] = spec["milestones"][:-1]  # the last one is the end of training
    if args["name"] == "composite":
        spec["parts"] = [spec_of(part) for part in args["schedulers"]]
    return spec


def _length(args: Mapping[str, Any]) -> float:
    """Epochs of training, 100 where the configuration does not say."""
    return max((_length(part) for part in args.get("schedulers", ())), default=args.get("num_epochs", 100))


def _epochs(args: Mapping[str, Any]) -> float | None:
    if args["name"] == "composite":
        return next((found for part in args["schedulers"] if (found := _epochs(part))), None)
    return args.get("num_epochs") or (args["milestones"][-1] if "milestones" in args else None)


def auto_scaling(case: Case) -> None:
    """The rate is scaled and the schedule, a factor of it, stays as it is written; VISSL rewrites the schedule.

    The two agree, or differ in one of these ways (golden/README.md, section 2, calls the last five defects):
    off          nothing is scaled.
    polynomial   VISSL raises a RuntimeError; ours scales it as any other.
    linear       VISSL scales the end and not the start.
    multistep, step  VISSL makes the values geometric with the first quotient and rounds them; ours keeps every value.
    composite    VISSL replaces the written start of a warm-up by the rate for the images of one node (linearly, even
                 under the square root), and drops the warm-up of a single node if that start is not above its end.
    """
    entry = _entry(case)
    given = entry["input"]
    images = given["batchsize_per_replica"] * given["num_proc_per_node"] * given["num_nodes"]
    settings = OptimizerSettings(
        lr=given["base_value"],
        lr_scaling=given["scaling_type"] if given["auto_scale"] else "none",
        base_batch_size=given["base_lr_batch_size"],
    )
    rate = scaled_lr(settings, images)
    ratio = images / given["base_lr_batch_size"]
    factor = {"linear": ratio, "sqrt": ratio**0.5}[given["scaling_type"]] if given["auto_scale"] else 1
    assert rate == pytest.approx(given["base_value"] * factor, rel=1e-15)

    spec = spec_of(given["scheduler"])
    schedule = schedules.build(_as_factor(spec), where=case.name, epochs=_length(given["scheduler"]))
    where = np.arange(len(entry.get("sampled_101", range(101)))) / 101
    ours = rate * np.array([schedule(w) for w in where])
    _KINDS[given["scheduler"]["name"]](spec, where, ours, entry, rate)


def _entry(case: Case) -> dict[str, Any]:
    return case.expected_json()


def _peak(spec: Mapping[str, Any]) -> float:
    """The value that VISSL replaces by the scaled rate."""
    if spec["name"] == "composite":
        return _peak(spec["parts"][-1])
    if spec["name"] == "linear":
        return spec["end"]
    return spec["values"][0] if "values" in spec else spec["value"] if "value" in spec else spec["start"]


def _as_factor(spec: Mapping[str, Any], peak: float | None = None) -> dict[str, Any]:
    """The same schedule in parts of its peak."""
    peak = peak or _peak(spec)
    scaled = {key: spec[key] / peak for key in ("start", "end", "value") if key in spec}
    if "values" in spec:
        scaled["values"] = [value / peak for value in spec["values"]]
    if "parts" in spec:
        scaled["parts"] = [_as_factor(part, _peak(part)) for part in spec["parts"]]
    return {**spec, **scaled}


def _agree(spec: Any, where: np.ndarray, ours: np.ndarray, entry: Mapping[str, Any], rate: float) -> None:
    np.testing.assert_allclose(ours, entry["sampled_101"], rtol=1e-12)


def _polynomial(spec: Any, where: np.ndarray, ours: np.ndarray, entry: Mapping[str, Any], rate: float) -> None:
    assert entry["error"].startswith("RuntimeError") and "sampled_101" not in entry
    np.testing.assert_allclose(ours, rate * (1 - where) ** spec["power"], rtol=1e-12)


def _linear(spec: Any, where: np.ndarray, ours: np.ndarray, entry: Mapping[str, Any], rate: float) -> None:
    start = rate * spec["start"] / spec["end"]
    np.testing.assert_allclose(ours, start + (rate - start) * where, rtol=1e-12)
    np.testing.assert_allclose(entry["sampled_101"], spec["start"] + (rate - spec["start"]) * where, rtol=1e-12)


def _steps(spec: Any, where: np.ndarray, ours: np.ndarray, entry: Mapping[str, Any], rate: float) -> None:
    quotient = round(spec["values"][1] / spec["values"][0], 6)
    geometric = [rate * quotient**i for i in range(len(spec["values"]))]
    ours_values = [rate * value / spec["values"][0] for value in spec["values"]]
    assert sorted(set(ours)) == pytest.approx(sorted(ours_values), rel=1e-12)
    assert sorted(set(entry["sampled_101"])) == pytest.approx(sorted(geometric), abs=1e-8)
    if np.allclose(geometric, ours_values, rtol=1e-6):
        np.testing.assert_allclose(ours, entry["sampled_101"], atol=6e-9, rtol=0)


def _composite(spec: Any, where: np.ndarray, ours: np.ndarray, entry: Mapping[str, Any], rate: float) -> None:
    if spec["parts"][0]["name"] != "linear":
        _agree(spec, where, ours, entry, rate)
        return
    given, length = entry["input"], spec["lengths"][0]
    first = spec["parts"][0]
    assert ours[0] == pytest.approx(rate * first["start"] / first["end"], rel=1e-12)
    per_node = given["batchsize_per_replica"] * given["num_proc_per_node"] / given["base_lr_batch_size"]
    node_start = given["base_value"] * per_node
    dropped = given["num_nodes"] == 1 and node_start <= rate * (1 + 1e-12)
    after = where > length
    if dropped and len(spec["parts"]) == 3:
        assert entry["build_error"].startswith("AssertionError")
        return
    theirs = np.array(entry["sampled_101"])
    if dropped:
        # What is left takes the whole time: the same after a warm-up that leaves it where it is ('fixed').
        assert theirs[0] == pytest.approx(rate, rel=1e-6)
        same = after & (spec["scaling"][1] == "fixed")
        np.testing.assert_allclose(ours[same], theirs[same], rtol=1e-12)
        return
    assert theirs[0] == pytest.approx(node_start, rel=1e-12)
    np.testing.assert_allclose(ours[after], theirs[after], rtol=1e-12, atol=6e-9)
    # With the start that VISSL puts in, the warm-up is the same too.
    parts = [{**first, "start": node_start / rate, "end": 1.0}, *_as_factor(spec)["parts"][1:]]
    as_theirs = schedules.build({**spec, "parts": parts}, where="recorded", epochs=100)
    np.testing.assert_allclose([rate * as_theirs(w) for w in where], theirs, rtol=1e-12, atol=6e-9)


_KINDS = {
    **dict.fromkeys(("constant", "cosine", "cosine_warm_restart", "inverse_sqrt", "step_with_fixed_gamma"), _agree),
    "polynomial": _polynomial,
    "linear": _linear,
    "multistep": _steps,
    "step": _steps,
    "composite": _composite,
}


PATTERNS = {
    "02_schedules/autoscale/*": auto_scaling,
    **{f"02_schedules/{kind}*": recorded for kind in (*SCHEDULES, *SCHEDULES_OF_OTHERS)},
}
