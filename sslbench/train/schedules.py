"""Schedules: how a learning rate, a weight decay, a momentum or a temperature changes while training goes on.

A schedule is a function of `where`, the progress of training in [0, 1]; it knows neither steps nor epochs nor batch
sizes. Schedules of the learning rate are factors of the rate (`train.optimizers.scaled_lr`), all others are values.
The arithmetic is that of fvcore, ClassyVision and VISSL, with one difference: close to the end, where their `step`
raises an IndexError, the last value is given.
"""

import bisect
import inspect
import itertools
import logging
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from sslbench.config import convert
from sslbench.errors import UsageError
from sslbench.names import did_you_mean

log = logging.getLogger("sslbench")

Schedule = Callable[[float], float]
Scaling = Literal["rescaled", "fixed"]

# Progress is a quotient of whole numbers: 30/90 may lie a rounding error below a third and still means a third.
_EPSILON = 1e-6
_LENGTH_TOLERANCE = 1e-3


def constant(value: float) -> Schedule:
    """The same value always."""
    return lambda where: value


def linear(start: float, end: float) -> Schedule:
    """A straight line; both ends are met exactly."""
    return lambda where: start * (1 - where) + end * where


def cosine(start: float, end: float) -> Schedule:
    """Half a cosine wave from `start` to `end` (Loshchilov and Hutter 2017, SGDR, equation 5, without restarts)."""
    return lambda where: end + 0.5 * (start - end) * (1 + math.cos(math.pi * where))


def polynomial(start: float, power: float) -> Schedule:
    """`start * (1 - where) ** power`; ValueError if power is not above 0."""
    if power <= 0:
        raise ValueError(f"power has to be above 0, not {power:g}")
    return lambda where: start * max(0.0, 1 - where) ** power


def inverse_sqrt(start: float, warmup: float) -> Schedule:
    """`start * sqrt(warmup / where)`: the value is `start` at `where = warmup`, and larger before it.

    It is meant to follow a warm-up of that length (Vaswani et al. 2017, section 5.3). At 0 it is
    `start * sqrt(warmup)`. A warm-up of 0 gives `start / sqrt(where)`. ValueError if warmup is negative.
    """
    if warmup < 0:
        raise ValueError(f"warmup has to be 0 or more, not {warmup:g}")
    scale = start * math.sqrt(warmup or 1)
    return lambda where: scale * where**-0.5 if where > 0 else scale


def multistep(values: Sequence[float], milestones: Sequence[float], *, epochs: float) -> Schedule:
    """One value after the other; `values[i]` holds until `milestones[i]` epochs of `epochs` are done.

    ValueError if there is not one milestone between any two values, or they do not rise.
    """
    if len(milestones) != len(values) - 1:
        raise ValueError(f"{len(values)} values need {len(values) - 1} milestones between them, not {len(milestones)}")
    if any(b <= a for a, b in itertools.pairwise((0.0, *milestones))):
        raise ValueError(f"milestones have to rise from above 0, not {list(milestones)}")
    return lambda where: values[bisect.bisect_right(milestones, (where + _EPSILON) * epochs)]


def step(values: Sequence[float]) -> Schedule:
    """One value after the other, each for the same time; ValueError if there is none."""
    if not values:
        raise ValueError("values is empty")
    return lambda where: values[min(int((where + _EPSILON) * len(values)), len(values) - 1)]


def step_with_fixed_gamma(start: float, gamma: float, decays: int) -> Schedule:
    """`start`, multiplied by `gamma` `decays` times, at equal distances; ValueError if decays is negative."""
    if decays < 0:
        raise ValueError(f"decays has to be 0 or more, not {decays}")
    return step(list(itertools.accumulate(range(decays), lambda value, _: value * gamma, initial=start)))


def cosine_warm_restart(
    start: float,
    end: float,
    interval: float,
    wave: Literal["half", "full"] = "half",
    multiplier: float = 1.0,
    adaptive: bool = False,
) -> Schedule:
    """Cosines one after the other (Loshchilov and Hutter 2017, SGDR; waves and heights as VISSL has them).

    Args:
        start: height of the first wave.
        end: where every wave goes down to.
        interval: length of half a wave as a fraction of training, from 0.0001 to 1.
        wave: 'half' jumps up again after each fall, 'full' rises again as slowly; its height changes at the bottom.
        multiplier: of the height, from wave to wave. With `adaptive` it has no effect, as in VISSL, and that is said.
        adaptive: the height follows one slow cosine from `start` to `end`, read at the beginning of a half wave and at
            `interval` after the beginning of a full one (so the first full wave begins below `start`).

    Raises:
        ValueError: interval is not in that range.
    """
    if not 1e-4 <= interval <= 1:
        raise ValueError(f"interval has to be from 0.0001 to 1, not {interval:g}")
    if adaptive and multiplier != 1:
        log.warning("cosine_warm_restart: multiplier %g has no effect: adaptive=true sets the heights", multiplier)
    period = interval if wave == "half" else 2 * interval
    later = (interval + i * period for i in range(math.ceil((1 - interval) / period)))
    begins = [0.0, *later]
    envelope = cosine(start, end)
    heights = [start * multiplier**i for i in range(len(begins))]
    if adaptive:
        heights = [envelope(begin if wave == "half" else begin + interval) for begin in begins]

    def schedule(where: float) -> float:
        i = max(bisect.bisect_right(begins, where) - 1, 0)
        return cosine(heights[i], end)((where - (begins[i] if wave == "half" else 0)) / interval)

    return schedule


def composite(parts: Sequence[Schedule], lengths: Sequence[float], scaling: Sequence[Scaling] = ()) -> Schedule:
    """Schedules one after the other.

    Args:
        parts: the schedules.
        lengths: of each as a fraction of training. They sum to 1; a rounding error is made good in the last.
        scaling: for each, what it gets as its `where`: 'rescaled' (the default), the progress within the part from 0
            to 1, or 'fixed', the progress of the whole training.

    Raises:
        ValueError: the three differ in number, a length is not above 0, or they do not sum to 1.
    """
    scaling = scaling or ["rescaled"] * len(parts)
    if not len(parts) == len(lengths) == len(scaling) > 0:
        raise ValueError(f"{len(parts)} parts have {len(lengths)} lengths and {len(scaling)} scalings")
    if any(length <= 0 for length in lengths):
        raise ValueError(f"lengths have to be above 0, not {list(lengths)}")
    if abs(sum(lengths) - 1) >= _LENGTH_TOLERANCE:
        raise ValueError(f"lengths have to sum to 1, not to {sum(lengths):g}")
    begins = list(itertools.accumulate(lengths[:-1], initial=0.0))
    sizes = [*lengths[:-1], 1 - begins[-1]]

    def schedule(where: float) -> float:
        # Strictly above, as in the references: a part begins a rounding error early.
        i = max(bisect.bisect_left(begins, where + _EPSILON) - 1, 0)
        return parts[i](where if scaling[i] == "fixed" else (where - begins[i]) / sizes[i])

    return schedule


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """A schedule times a number (layer decay: the number of the layer's group)."""
    return lambda where: schedule(where) * factor


_KINDS: dict[str, Callable[..., Schedule]] = {
    function.__name__: function
    for function in (
        *(constant, linear, cosine, polynomial, inverse_sqrt, multistep, step, step_with_fixed_gamma),
        *(cosine_warm_restart, composite),
    )
}
NAMES = tuple(sorted(_KINDS))

_ON_THE_CLOCK = ("multistep", "inverse_sqrt")


def build(spec: Mapping[str, Any] | float, *, where: str, epochs: float | None = None) -> Schedule:
    """A schedule from plain values, as a YAML file has them.

    Args:
        spec: a number (constant), or `name` and the arguments of the function of that name. `parts` of a composite are
            specs; multistep's `milestones` are epochs.
        where: what to call the spec in messages, for instance 'schedule.lr'.
        epochs: of the whole training; only multistep needs it.

    Raises:
        UsageError: an unknown name or key (with the nearest valid one), a missing key, a value of the wrong type or
            not possible, lengths that do not sum to 1, milestones that do not rise.
    """
    if not isinstance(spec, Mapping):
        return constant(_finite(spec, float, where))
    if "name" not in spec:
        raise UsageError(f"{where}: the key 'name' is missing", f"Schedules: {', '.join(NAMES)}.")
    if spec["name"] not in NAMES:
        raise UsageError(f"{where}: there is no schedule '{spec['name']}'", did_you_mean(str(spec["name"]), NAMES))
    function = _KINDS[spec["name"]]
    arguments = _arguments(function, {key: spec[key] for key in spec if key != "name"}, where, epochs)
    try:
        return function(**arguments)
    except ValueError as error:
        raise UsageError(f"{where}: {spec['name']}: {error}") from error


def _arguments(
    function: Callable[..., Schedule], given: Mapping[str, Any], where: str, epochs: float | None
) -> dict[str, Any]:
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters
    keys = [key for key in parameters if key != "epochs"]
    for key in given:
        if key not in keys:
            raise UsageError(f"{where}: {function.__name__} has no key '{key}'", did_you_mean(str(key), keys))
    for key in keys:
        if key not in given and parameters[key].default is inspect.Parameter.empty:
            raise UsageError(f"{where}: {function.__name__} needs the key '{key}'", f"Its keys: {', '.join(keys)}.")
    arguments: dict[str, Any] = {}
    for key, value in given.items():
        if key == "parts":
            specs = convert(value, tuple[Any, ...], f"{where}: parts")
            arguments[key] = tuple(build(s, where=f"{where}: parts[{i}]", epochs=epochs) for i, s in enumerate(specs))
        else:
            arguments[key] = _finite(value, hints[key], f"{where}: {key}")
    if "epochs" in parameters:
        arguments["epochs"] = _epochs_for(arguments["milestones"], where, epochs)
    return arguments


def _epochs_for(milestones: tuple[float, ...], where: str, epochs: float | None) -> float:
    if epochs is None:
        raise UsageError(f"{where}: milestones are epochs, and here is no number of epochs", "Use 'step' instead.")
    late = [milestone for milestone in milestones if milestone >= epochs]
    if late:
        listed = ", ".join(f"{milestone:g}" for milestone in late)
        log.warning("%s: training ends after %g epochs, so the milestones %s never come", where, epochs, listed)
    return epochs


def _finite(value: Any, kind: Any, where: str) -> Any:
    """`value` as `kind`; a Sequence becomes a tuple."""
    if typing.get_origin(kind) is Sequence:
        kind = types.GenericAlias(tuple, (*typing.get_args(kind), ...))
    converted = convert(value, kind, where)
    for number in converted if isinstance(converted, tuple) else (converted,):
        if isinstance(number, float) and not math.isfinite(number):
            raise UsageError(f"{where}: should be a finite number, not {number}")
    return converted


def build_with_warmup(
    spec: Mapping[str, Any] | float,
    *,
    warmup_epochs: float,
    warmup_start: float,
    where: str,
    epochs: float,
    freeze_epochs: float = 0.0,
) -> Schedule:
    """A schedule from plain values (see `build`) after a time at 0 and a warm-up.

    The schedule takes the time that is left, but multistep and inverse_sqrt go by the time since training began.

    Args:
        spec: see `build`.
        warmup_epochs: length of the warm-up.
        warmup_start: value at its beginning.
        where: what to call the spec in messages.
        epochs: of the whole training, the warm-up included.
        freeze_epochs: before the warm-up, at 0.

    Raises:
        UsageError: as `build`, or the time at 0 and the warm-up are longer than training.
    """
    left = epochs
    for name, length in (("freeze_epochs", freeze_epochs), ("warmup_epochs", warmup_epochs)):
        if not 0 <= length <= left:
            before = "" if left == epochs else f" after {freeze_epochs:g} at 0"
            what = f"schedule.{name} {length:g} does not fit into {epochs:g} epochs{before}"
            raise UsageError(what, f"Give schedule.{name}=... or more epochs.")
        left -= length
    schedule = build(spec, where=where, epochs=epochs)
    scaling: Scaling = "fixed" if isinstance(spec, Mapping) and spec["name"] in _ON_THE_CLOCK else "rescaled"
    after = (freeze_epochs + warmup_epochs) / epochs
    parts: list[tuple[Schedule, float, Scaling]] = [
        (constant(0.0), freeze_epochs / epochs, "fixed"),
        (linear(warmup_start, schedule(after if scaling == "fixed" else 0.0)), warmup_epochs / epochs, "rescaled"),
        (schedule, 1 - after, scaling),
    ]
    taken = [part for part in parts if part[1] > _EPSILON]
    return taken[0][0] if len(taken) == 1 else composite(*zip(*taken, strict=True))
