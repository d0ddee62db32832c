"""Schedules as fvcore, ClassyVision, VISSL, DINO, DINOv2, lightly and solo-learn have them, each by ours."""

import inspect
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from golden_cases import Case, option

from sslbench.train import schedules
from sslbench.train.optimizers.optimizer import OptimizerSettings, scaled_lr
from sslbench.train.schedules import Schedule

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
    args = case.meta.get("args") or {}
    if "name" in args:
        _configured(case)
    elif "lr_decay" in args or "LayerDecay" in case.call:
        _layer_decay(case)
    else:
        _listed(case)


def _configured(case: Case) -> None:
    """Compare wherever the reference gives a value; where it raises, at the very end, ours gives a finite one."""
    args = case.meta["args"]
    epochs = _epochs(args)
    schedule = schedules.build(spec_of(args, epochs), where=case.name, epochs=epochs)
    _compare(case, schedule)
    assert np.isfinite(schedule(1.0))


def _layer_decay(case: Case) -> None:
    """Compare the product with a schedule that stands in the call: 'LayerDecayScheduler(cosine(.1,.001),lr_decay)'."""
    args = case.meta.get("args") or {}
    wrapped = args.get("wrapped")
    if isinstance(wrapped, Mapping):
        inner = schedules.build(spec_of(wrapped, _epochs(wrapped)), where=case.name, epochs=_epochs(wrapped))
    else:
        text = str(wrapped) if wrapped is not None else re.search(r"LayerDecayScheduler\((.*),\s*\w+\)", case.call)[1]
        name, numbers = re.fullmatch(r"(\w*?)\(?([\d.e+\-,\s]+)\)?", text).groups()
        inner = getattr(schedules, name or "constant")(*map(float, numbers.split(",")))
    _compare(case, schedules.scaled(inner, option(args, "lr_decay", default=1.0)))


def _compare(case: Case, schedule: Schedule) -> None:
    """Compare at all recorded points; where ours jumps, the rounding of a point decides in the references."""
    given, wanted = case.inputs(), case.expected()
    assert wanted
    for name, values in wanted.items():
        where = given.get(name.replace("value", "where"), np.arange(len(values)) / len(values))
        ours, before = (np.array([schedule(max(w - step, 0.0)) for w in where]) for step in (0.0, 1e-9))
        jumps = np.abs(ours - before) > 1e-4 * np.abs(values)
        ours = np.where(jumps & np.isclose(before, values, rtol=1e-6), values, ours)
        known = np.isfinite(values)
        np.testing.assert_allclose(ours[known], values[known], rtol=1e-12)
        assert np.isfinite(ours).all()


def _listed(case: Case) -> None:
    """Forms that list one value per step or epoch, and reach the top in the last step of the warm-up."""
    wanted = next(iter(case.expected().values()))
    schedule, total = _per_step(case, case.args, len(wanted))
    ours = np.array([schedule(min(i / total, 1.0)) for i in range(len(wanted))])
    known = np.isfinite(wanted)
    rtol = 1e-9 if _is_of_solo(case) else 1e-12  # solo-learn's is recursive
    np.testing.assert_allclose(ours[known], wanted[known], rtol=rtol, atol=1e-18 if rtol < 1e-9 else 1e-12)


def _is_of_solo(case: Case) -> bool:
    return "max_epochs" in case.args


def _per_step(case: Case, args: Mapping[str, Any], steps: int) -> tuple[Schedule, int]:
    """Return the schedule, and the number of steps that `where = 1` stands for."""
    if _is_of_solo(case):
        written = re.search(r"base lr ([\d.e+-]+)", case.call)
        top = float(option(args, "base_lr", "lr", default=written and written[1]))
        start, end = option(args, "warmup_start_lr", default=0.0), option(args, "eta_min", default=0.0)
        warmup, total = args["warmup_epochs"], args["max_epochs"]
        # Without a warm-up solo-learn begins at the rate where the warm-up would begin.
        return _warm_flat_cosine(warmup, total, (start, top if warmup else start, end)), total
    if "max_steps" in args:
        return _of_lightly(args, steps)
    if "warmup_steps" in args:  # lightly's warm-up alone
        warmup, start, end = args["warmup_steps"], args["start_value"], args["end_value"]
        return _in_sequence([(warmup, _line(start, end)), (max(steps - warmup, 1), _level(end))])
    values = (option(args, "start_warmup_value", default=0.0), args["base_value"], args["final_value"])
    freeze = option(args, "freeze_iters", default=0)  # DINOv2: nothing moves at first
    if "total_iters" in args:
        total, warmup = args["total_iters"], option(args, "warmup_iters", default=0)
        return _warm_flat_cosine(warmup, total, values, freeze), total
    per_epoch = args["niter_per_ep"]
    total = args["epochs"] * per_epoch
    return _warm_flat_cosine(option(args, "warmup_epochs", default=0) * per_epoch, total, values, freeze), total


def _of_lightly(args: Mapping[str, Any], steps: int) -> tuple[Schedule, int]:
    """Return lightly's schedule; its first step already stands one step above the start of the warm-up.

    The last step stands at the end. With a period it is a full wave, again and again.
    """
    warmup, top, end = option(args, "warmup_steps", default=0), args["start_value"], args["end_value"]
    start, highest = option(args, "warmup_start_value", default=0.0), option(args, "warmup_end_value", default=top)
    first = start + (highest - start) / max(warmup, 1)
    begin = [(warmup - 1, _line(first, highest)), (1, _level(highest))] if warmup else []
    if period := args.get("period"):
        length = max(steps - warmup, -(-period // 2), 1)
        wave = {"start": top, "end": end, "interval": period / 2 / length, "wave": "full"}
        return _in_sequence([*begin, (length, {"name": "cosine_warm_restart", **wave})])
    down = args["max_steps"] - 1 - warmup
    rest = [(down, {"name": "cosine", "start": top, "end": end})] if down > 0 else [(1, _level(end))]
    return _in_sequence([*begin, *rest])


def _warm_flat_cosine(warmup: int, total: int, values: tuple[float, float, float], freeze: int = 0) -> Schedule:
    """Return a schedule: at 0 for `freeze` steps, up in `warmup - 1`, one step at the top, then down."""
    start, top, end = values
    parts = [(freeze, _level(0.0))]
    if warmup == 1:  # a straight line of one step is its beginning
        parts += [(1, _level(start))]
    elif warmup:
        parts += [(warmup - 1, _line(start, top)), (1, _level(top))]
    return _in_sequence([*parts, (total - warmup - freeze, {"name": "cosine", "start": top, "end": end})])[0]


def _in_sequence(parts: list[tuple[int, dict[str, Any]]]) -> tuple[Schedule, int]:
    """Return schedules one after the other, each for a number of steps, and the sum of the steps."""
    used = [(steps, part) for steps, part in parts if steps]
    total = sum(steps for steps, _ in used)
    lengths = [steps / total for steps, _ in used]
    spec = {"name": "composite", "parts": [part for _, part in used], "lengths": lengths}
    return schedules.build(spec, where="recorded"), total


def _line(start: float, end: float) -> dict[str, Any]:
    return {"name": "linear", "start": start, "end": end}


def _level(value: float) -> dict[str, Any]:
    return {"name": "constant", "value": value}


def spec_of(args: Mapping[str, Any], epochs: float | None = None, outer: float | None = None) -> dict[str, Any]:
    """Return a reference's arguments in our words, without those that the schedule does not take.

    Args:
        args: of a schedule.
        epochs: length of the training, in which our milestones are.
        outer: epochs that a composite hands down to its parts.
    """
    taken = {"name", *inspect.signature(getattr(schedules, args["name"])).parameters}
    own = outer or args.get("num_epochs")
    spec = {_KEYS.get(key, key): value for key, value in args.items()}
    spec = {key: value for key, value in spec.items() if key in taken and key != "epochs"}
    if args["name"] == "multistep":
        count = len(args["values"])
        milestones = args.get("milestones")
        if milestones is None:
            part = -(-own // count)  # equal parts of whole epochs
            milestones = [part * (i + 1) for i in range(count - 1)]
        elif len(milestones) == count and count:
            own, milestones = own or milestones[-1], milestones[:-1]  # the last one is the end of training
        ratio = epochs / own if epochs and own else 1
        spec["milestones"] = [milestone * ratio for milestone in milestones] if ratio != 1 else list(milestones)
    if args["name"] == "composite":
        spec["parts"] = [spec_of(part, epochs, own) for part in args["schedulers"]]
        used = [i for i, length in enumerate(spec["lengths"]) if length]  # ours refuses a part without time
        spec |= {key: [spec[key][i] for i in used] for key in ("parts", "lengths", "scaling") if spec.get(key)}
    return spec


def _epochs(args: Mapping[str, Any]) -> float | None:
    own = args.get("num_epochs") or (args["milestones"][-1] if args.get("milestones") else None)
    return own or next((found for part in args.get("schedulers", ()) if (found := _epochs(part))), None)


_SAMPLED_EPOCHS = 100
"""Epochs of the schedules that the references sampled after scaling the rate."""


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
    entry = case.expected_json()
    given = entry["input"]
    spec = spec_of(given["scheduler"], _SAMPLED_EPOCHS, _SAMPLED_EPOCHS)
    images = given["batchsize_per_replica"] * given["num_proc_per_node"] * given["num_nodes"]
    scaled, kind = option(given, "auto_scale", default=False), option(given, "scaling_type", default="linear")
    base, ratio = option(given, "base_value", default=0.1), images / option(given, "base_lr_batch_size", default=256)
    settings = OptimizerSettings(
        lr=base if scaled else _peak(spec),
        lr_scaling=kind if scaled else "none",
        base_batch_size=option(given, "base_lr_batch_size", default=256),
    )
    rate = scaled_lr(settings, images)
    factor = {"linear": ratio, "sqrt": math.sqrt(ratio)}[kind] if scaled else 1
    assert rate == pytest.approx((base if scaled else _peak(spec)) * factor, rel=1e-15)

    where = np.arange(101) / 101
    ours = rate * _sampled(_as_factor(spec), where)
    assert np.isfinite(ours).all()
    names = [spec["name"], *(part["name"] for part in spec.get("parts", ()))]
    if scaled and "polynomial" in names:
        assert entry["error"].startswith("RuntimeError") and "sampled_101" not in entry
        if spec["name"] == "polynomial":
            np.testing.assert_allclose(ours, rate * (1 - where) ** spec["power"], rtol=1e-12)
        return
    if not scaled:
        np.testing.assert_allclose(_sampled(spec, where), entry["sampled_101"], rtol=1e-12)
        if spec["name"] != "composite":  # whose parts may have different peaks
            np.testing.assert_allclose(ours, entry["sampled_101"], rtol=1e-12)
        return
    node = base * given["batchsize_per_replica"] * given["num_proc_per_node"] / settings.base_batch_size
    rewritten, dropped = _as_vissl_scales(spec, rate, node, single=given["num_nodes"] == 1)
    if dropped and len(spec["parts"]) > 2:
        # It keeps the lengths and scalings of all parts.
        assert entry["build_error"] and "sampled_101" not in entry
        return
    theirs = np.array(entry["sampled_101"])
    np.testing.assert_allclose(_sampled(rewritten, where), theirs, rtol=1e-12, atol=1e-12)
    same = _same_points(spec, rewritten, rate, where, dropped=dropped)
    rounded = any("values" in part for part in (spec, *spec.get("parts", ())))
    np.testing.assert_allclose(ours[same], theirs[same], rtol=1e-12, atol=6e-9 * rounded)


def _sampled(spec: Mapping[str, Any], where: np.ndarray) -> np.ndarray:
    schedule = schedules.build(spec, where="recorded", epochs=_SAMPLED_EPOCHS)
    return np.array([schedule(w) for w in where])


def _peak(spec: Mapping[str, Any]) -> float:
    """Return the value that VISSL replaces by the scaled rate."""
    if spec["name"] == "composite":
        return _peak(spec["parts"][-1])
    if spec["name"] == "linear":
        return spec["end"] or spec["start"]  # of a decay to 0, the value it begins at
    return spec["values"][0] if "values" in spec else spec["value"] if "value" in spec else spec["start"]


def _as_factor(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same schedule with each part divided by its peak."""
    if spec["name"] == "composite":
        return {**spec, "parts": [_as_factor(part) for part in spec["parts"]]}
    return _times(spec, 1 / _peak(spec))


def _times(spec: Mapping[str, Any], factor: float) -> dict[str, Any]:
    scaled = {key: spec[key] * factor for key in ("start", "end", "value") if key in spec}
    return {**spec, **scaled, **({"values": [value * factor for value in spec["values"]]} if "values" in spec else {})}


def _as_vissl_scales(spec: Mapping[str, Any], rate: float, node: float, *, single: bool) -> tuple[dict[str, Any], bool]:
    """Return VISSL's schedule after scaling, and whether it dropped a warm-up.

    Args:
        spec: the written schedule.
        rate: the scaled rate.
        node: the rate for the images of one node.
        single: there is one node.
    """
    if spec["name"] == "linear":
        return {**spec, "end": rate}, False
    if "values" in spec:
        values = spec["values"]
        quotient = round(values[1] / values[0], 6) if len(values) > 1 else 1.0
        return {**spec, "values": [round(rate * quotient**i, 8) for i in range(len(values))]}, False
    if spec["name"] != "composite":
        return _times(spec, rate / _peak(spec)), False
    parts = [_as_vissl_scales(part, rate, node, single=single)[0] for part in spec["parts"]]
    lines = [i for i, part in enumerate(parts) if part["name"] == "linear"]
    for i in lines:
        parts[i]["start"] = node
    if not lines or not single or node > rate:
        return {**spec, "parts": parts}, False
    del parts[lines[-1]]
    return (parts[0] if len(parts) == 1 else {**spec, "parts": parts}), True


def _same_points(
    spec: Mapping[str, Any], rewritten: Mapping[str, Any], rate: float, where: np.ndarray, *, dropped: bool
) -> np.ndarray:
    """Tell at which points ours and VISSL's schedule are the same: outside the parts that VISSL changes."""
    if spec["name"] != "composite":
        return np.full(len(where), _as_scaled(rewritten, _times(_as_factor(spec), rate)))
    ends = np.cumsum(spec["lengths"])
    begins = ends - spec["lengths"]
    scaling = spec.get("scaling") or ["rescaled"] * len(ends)
    if dropped:  # the other part takes the whole time: the same if that is its argument anyway
        kept = next(i for i, part in enumerate(spec["parts"]) if part["name"] == rewritten["name"])
        theirs = [rewritten if i == kept and scaling[i] == "fixed" else None for i in range(len(ends))]
    else:
        theirs = rewritten["parts"]
    unchanged = [
        their is not None and _as_scaled(their, _times(_as_factor(part), rate))
        for part, their in zip(spec["parts"], theirs, strict=True)
    ]
    edge = 1e-5
    inside = [(where > begin + edge) & (where < end - edge) for begin, end in zip(begins, ends, strict=True)]
    return np.any([points & same for points, same in zip(inside, unchanged, strict=True)], axis=0)


def _as_scaled(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Tell whether a part has the same values; VISSL rounds lists of them to 8 digits."""
    if "values" in ours:
        return np.allclose(theirs["values"], ours["values"], rtol=1e-6, atol=6e-9)
    return all(theirs[key] == pytest.approx(ours[key], rel=1e-12) for key in ("start", "end", "value") if key in ours)


PATTERNS = {
    "02_schedules/autoscale/*": auto_scaling,
    "02_schedules/[!a]*": recorded,
    "02_schedules/a[!u]*": recorded,
}
