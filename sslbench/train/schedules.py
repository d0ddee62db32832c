"""Schedules of learning rate, weight decay, momentum and temperature over the course of training.

A schedule is a function of `where`, the progress of training in [0, 1], independent of steps, epochs and batch size.
Schedules of the learning rate are factors of the rate (`train.optimizers.scaled_lr`), all others are values. The
arithmetic is that of fvcore, ClassyVision and VISSL, with one difference: close to the end, where their `step` raises
an IndexError, it returns the last value.
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
from sslbench.names import did_you_mean, find_object

log = logging.getLogger("sslbench")

Schedule = Callable[[float], float]
Scaling = Literal["rescaled", "fixed"]

# Progress is a quotient of integers: 30/90 may be a rounding error below a third and still means a third.
_EPSILON = 1e-6
_ROUNDING = 1e-12  # where a part begins; an inverse square root would make a huge value of it
_LENGTH_TOLERANCE = 1e-3


def constant(value: float) -> Schedule:
    """Return a constant schedule."""
    return lambda progress: value


def linear(start: float, end: float) -> Schedule:
    """Return a straight line that meets both ends exactly.

    >>> linear(1.0, 0.0)(0.25)
    0.75
    """
    return lambda progress: start * (1 - progress) + end * progress


def cosine(start: float, end: float, stop: float = 1.0) -> Schedule:
    """Return half a cosine wave (Loshchilov and Hutter 2017, SGDR, equation 5, without restarts).

    With `stop` below 1 it ends after that share of the half wave, before `end` (CAPI).

    >>> round(cosine(1.0, 0.0)(0.5), 6)
    0.5
    """
    return lambda progress: end + 0.5 * (start - end) * (1 + math.cos(math.pi * stop * progress))


def polynomial(start: float, power: float) -> Schedule:
    """Return `start * (1 - where) ** power`; raise ValueError if power is not above 0."""
    if power <= 0:
        raise ValueError(f"power must be above 0, not {power:g}")
    return lambda progress: start * max(0.0, 1 - progress) ** power


def inverse_sqrt(start: float, warmup: float) -> Schedule:
    """Return `start * sqrt(warmup / where)`, which is `start` at `where = warmup` and larger before.

    It follows a warm-up of that length (Vaswani et al. 2017, section 5.3). At 0 it is `start * sqrt(warmup)`. A warm-up
    of 0 gives `start / sqrt(where)`. Raise ValueError if warmup is negative.
    """
    if warmup < 0:
        raise ValueError(f"warmup must be 0 or more, not {warmup:g}")
    scale = start * math.sqrt(warmup or 1)
    return lambda progress: scale * progress**-0.5 if progress > 0 else scale


def multistep(values: Sequence[float], milestones: Sequence[float], *, epochs: float) -> Schedule:
    """Return a step function whose value `values[i]` holds until epoch `milestones[i]`.

    Raise ValueError unless there is one milestone between any two values and milestones increase.
    """
    if len(milestones) != len(values) - 1:
        raise ValueError(f"{len(values)} values need {len(values) - 1} milestones between them, not {len(milestones)}")
    if any(b <= a for a, b in itertools.pairwise((0.0, *milestones))):
        raise ValueError(f"milestones must increase from above 0, not {list(milestones)}")
    return lambda progress: values[bisect.bisect_right(milestones, (progress + _EPSILON) * epochs)]


def step(values: Sequence[float]) -> Schedule:
    """Return a step function with values of equal duration; raise ValueError if there is no value.

    >>> [step([1.0, 0.1])(where) for where in (0.0, 0.4, 0.6)]
    [1.0, 1.0, 0.1]
    """
    if not values:
        raise ValueError("values is empty")
    return lambda progress: values[min(int((progress + _EPSILON) * len(values)), len(values) - 1)]


def step_with_fixed_gamma(start: float, gamma: float, decays: int) -> Schedule:
    """Return `start`, multiplied by `gamma` at `decays` equal intervals; raise ValueError if decays is negative."""
    if decays < 0:
        raise ValueError(f"decays must be 0 or more, not {decays}")
    return step(list(itertools.accumulate(range(decays), lambda value, _: value * gamma, initial=start)))


def cosine_warm_restart(
    start: float,
    end: float,
    interval: float,
    wave: Literal["half", "full"] = "half",
    multiplier: float = 1.0,
    adaptive: bool = False,
) -> Schedule:
    """Return a sequence of cosine waves (Loshchilov and Hutter 2017, SGDR; waves and heights as in VISSL).

    Args:
        start: height of the first wave.
        end: minimum of every wave.
        interval: length of half a wave as a fraction of training, from 0.0001 to 1.
        wave: 'half' jumps up after each fall; 'full' rises as slowly as it falls and changes height at the minimum.
        multiplier: factor of the height from wave to wave; ignored, with a warning, if `adaptive` (as in VISSL).
        adaptive: let the heights follow one cosine from `start` to `end`, read at the beginning of a half wave and at
            `interval` after the beginning of a full wave (so the first full wave starts below `start`).

    Raises:
        ValueError: interval is out of range.
    """
    if not 1e-4 <= interval <= 1:
        raise ValueError(f"interval must be from 0.0001 to 1, not {interval:g}")
    if adaptive and multiplier != 1:
        log.warning("cosine_warm_restart: multiplier %g has no effect: adaptive=true sets the heights", multiplier)
    period = interval if wave == "half" else 2 * interval
    later = (interval + i * period for i in range(math.ceil((1 - interval) / period)))
    begins = [0.0, *later]
    envelope = cosine(start, end)
    heights = [start * multiplier**i for i in range(len(begins))]
    if adaptive:
        heights = [envelope(begin if wave == "half" else begin + interval) for begin in begins]

    def schedule(progress: float) -> float:
        i = max(bisect.bisect_right(begins, progress) - 1, 0)
        return cosine(heights[i], end)((progress - (begins[i] if wave == "half" else 0)) / interval)

    return schedule


def composite(parts: Sequence[Schedule], lengths: Sequence[float], scaling: Sequence[Scaling] = ()) -> Schedule:
    """Return a sequence of schedules.

    Args:
        parts: the schedules.
        lengths: length of each as a fraction of training; they sum to 1, and the last absorbs rounding errors.
        scaling: argument of each schedule: 'rescaled' (the default) for the progress within the part from 0 to 1,
            'fixed' for the progress of the whole training.

    Raises:
        ValueError: the numbers of entries differ, a length is not above 0, or the lengths do not sum to 1.
    """
    scaling = scaling or ["rescaled"] * len(parts)
    if not len(parts) == len(lengths) == len(scaling) > 0:
        raise ValueError(f"{len(parts)} parts have {len(lengths)} lengths and {len(scaling)} scalings")
    if any(length <= 0 for length in lengths):
        raise ValueError(f"lengths must be above 0, not {list(lengths)}")
    if abs(sum(lengths) - 1) >= _LENGTH_TOLERANCE:
        raise ValueError(f"lengths must sum to 1, not to {sum(lengths):g}")
    begins = list(itertools.accumulate(lengths[:-1], initial=0.0))
    sizes = [*lengths[:-1], 1 - begins[-1]]

    def schedule(progress: float) -> float:
        # Strictly above, as in the references: a part begins a rounding error early.
        i = max(bisect.bisect_left(begins, progress + _EPSILON) - 1, 0)
        if scaling[i] == "fixed":
            return parts[i](progress)
        inside = (progress - begins[i]) / sizes[i]
        return parts[i](0.0 if abs(inside) < _ROUNDING else inside)

    return schedule


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """Return a schedule multiplied by a number."""
    return lambda progress: schedule(progress) * factor


def product(schedule: Schedule, factor: Schedule) -> Schedule:
    """Return the product of two schedules.

    The warm-up of MMSegmentation is a factor of a schedule that falls from the start; `build_with_warmup` has the
    schedule begin after the warm-up.

    >>> warmup = composite([linear(0.0, 1.0), constant(1.0)], [0.5, 0.5])
    >>> [product(polynomial(1.0, 1.0), warmup)(where) for where in (0.0, 0.25, 0.5, 1.0)]
    [0.0, 0.375, 0.5, 0.0]
    """
    return lambda progress: schedule(progress) * factor(progress)


_KINDS: dict[str, Callable[..., Schedule]] = {
    function.__name__: function
    for function in (
        *(constant, linear, cosine, polynomial, inverse_sqrt, multistep, step, step_with_fixed_gamma),
        *(cosine_warm_restart, composite),
    )
}
NAMES = tuple(sorted(_KINDS))

_BY_ABSOLUTE_TIME = ("multistep", "inverse_sqrt")


def build(spec: Mapping[str, Any] | float, *, where: str, epochs: float | None = None, own: bool = False) -> Schedule:
    """Return a schedule from plain values, as they occur in YAML files.

    >>> build({"name": "linear", "start": 1.0, "end": 0.0}, where="schedule.lr")(0.5)
    0.5

    Args:
        spec: a number (constant), or `name` and the arguments of the function of that name. `parts` of a composite are
            specs; `milestones` of multistep are epochs.
        where: name of the setting in messages, for instance 'schedule.lr'.
        epochs: epochs of the whole training; required by multistep only.
        own: allow the user's own functions (`name: my_module:my_schedule`), which take the other keys as arguments and
            return a schedule.

    Raises:
        UsageError: an unknown name or key (with the nearest valid one), a missing key, or an invalid value.
    """
    if not isinstance(spec, Mapping):
        return constant(_finite(spec, float, where))
    if "name" not in spec:
        raise UsageError(f"{where}: the key 'name' is missing", f"Schedules: {', '.join(NAMES)}.")
    if own and ":" in str(spec["name"]):
        return _own_schedule(spec, where)
    if spec["name"] not in NAMES:
        raise UsageError(f"{where}: there is no schedule '{spec['name']}'", did_you_mean(str(spec["name"]), NAMES))
    function = _KINDS[spec["name"]]
    arguments = _arguments(function, {key: spec[key] for key in spec if key != "name"}, where, epochs, own)
    try:
        return function(**arguments)
    except ValueError as error:
        raise UsageError(f"{where}: {spec['name']}: {error}") from error


def own_names(spec: Mapping[str, Any] | float | None) -> list[str]:
    """Return the names of the user's own functions in a schedule, also in the parts of a composite."""
    if not isinstance(spec, Mapping):
        return []
    parts = spec.get("parts")
    inner = [name for part in parts for name in own_names(part)] if isinstance(parts, Sequence) else []
    return [spec["name"], *inner] if ":" in str(spec.get("name")) else inner


def own_functions(spec: Mapping[str, Any] | float | None) -> list[Any]:
    """Return the user's own functions in a schedule; see `own_names`."""
    return [find_object(name) for name in own_names(spec)]


def _own_schedule(spec: Mapping[str, Any], where: str) -> Schedule:
    """Return a schedule of the user's own function."""
    name, arguments = spec["name"], {key: value for key, value in spec.items() if key != "name"}
    try:
        schedule = find_object(name)(**arguments)
        # Tried before the training: an error at its end would come too late.
        values = [schedule(progress) for progress in (0.0, 0.5, 1.0)]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {name} gives no schedule for {arguments}: {error}") from error
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise UsageError(
            f"{where}: {name} gives {values} at the start, in the middle and at the end",
            "A schedule is a function from the progress of training, 0 to 1, to a finite number.",
        )
    return lambda progress: float(schedule(progress))


def _arguments(
    function: Callable[..., Schedule], values: Mapping[str, Any], where: str, epochs: float | None, own: bool
) -> dict[str, Any]:
    """Return the checked and converted arguments of a schedule's function."""
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters
    keys = [key for key in parameters if key != "epochs"]
    for key in values:
        if key not in keys:
            raise UsageError(f"{where}: {function.__name__} has no key '{key}'", did_you_mean(str(key), keys))
    for key in keys:
        if key not in values and parameters[key].default is inspect.Parameter.empty:
            raise UsageError(f"{where}: {function.__name__} needs the key '{key}'", f"Its keys: {', '.join(keys)}.")
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key == "parts":
            specs = convert(value, tuple[Any, ...], f"{where}: parts")
            arguments[key] = tuple(
                build(s, where=f"{where}: parts[{i}]", epochs=epochs, own=own) for i, s in enumerate(specs)
            )
        else:
            arguments[key] = _finite(value, hints[key], f"{where}: {key}")
    if "epochs" in parameters:
        if epochs is None:
            raise UsageError(
                f"{where}: milestones are in epochs, whose number is not known here", "Use 'step' instead."
            )
        late = [milestone for milestone in arguments["milestones"] if milestone >= epochs]
        if late:
            listed = ", ".join(f"{milestone:g}" for milestone in late)
            log.warning(
                "%s: training ends after %g epochs, so the milestones %s are never reached", where, epochs, listed
            )
        arguments["epochs"] = epochs
    return arguments


def _finite(value: Any, kind: Any, where: str) -> Any:
    """Return a value converted to a type, where a Sequence becomes a tuple; refuse numbers that are not finite."""
    if typing.get_origin(kind) is Sequence:
        kind = types.GenericAlias(tuple, (*typing.get_args(kind), ...))
    converted = convert(value, kind, where)
    for number in converted if isinstance(converted, tuple) else (converted,):
        if isinstance(number, float) and not math.isfinite(number):
            raise UsageError(f"{where}: must be a finite number, not {number}")
    return converted


def check_phases(freeze_epochs: float, warmup_epochs: float, epochs: float, *, where: str = "schedule.lr") -> None:
    """Refuse phases before a schedule that are negative, or together longer than training.

    Args:
        freeze_epochs: length of the first phase.
        warmup_epochs: length of the second.
        epochs: of the whole training.
        where: setting of the schedule, beside which those of the phases stand.

    Raises:
        UsageError: the message names the phase.
    """
    left = epochs
    beside = where.removesuffix(where.rpartition(".")[2])
    for name, length in ((f"{beside}freeze_epochs", freeze_epochs), (f"{beside}warmup_epochs", warmup_epochs)):
        if not 0 <= length <= left:
            before = "" if left == epochs else f" after {freeze_epochs:g} frozen ones"
            problem = f"{name} {length:g} does not fit into {epochs:g} epochs{before}"
            raise UsageError(problem, f"Give {name}={left / 10:.3g}, or more epochs.")
        left -= length


def build_with_warmup(
    spec: Mapping[str, Any] | float,
    *,
    warmup_epochs: float,
    warmup_start: float,
    where: str,
    epochs: float,
    freeze_epochs: float = 0.0,
    own: bool = False,
) -> Schedule:
    """Return a schedule from plain values (see `build`), preceded by a phase at 0 and a warm-up.

    The schedule fills the remaining time, but multistep and inverse_sqrt count from the start of training.

    Args:
        spec: see `build`.
        warmup_epochs: length of the warm-up.
        warmup_start: value at the beginning of the warm-up.
        where: name of the setting in messages.
        epochs: epochs of the whole training, including the warm-up.
        freeze_epochs: length of the phase at 0 before the warm-up.
        own: see `build`.

    Raises:
        UsageError: as in `build`, or both phases together are longer than training.
    """
    check_phases(freeze_epochs, warmup_epochs, epochs, where=where)
    schedule = build(spec, where=where, epochs=epochs, own=own)
    scaling: Scaling = "fixed" if isinstance(spec, Mapping) and spec["name"] in _BY_ABSOLUTE_TIME else "rescaled"
    after = (freeze_epochs + warmup_epochs) / epochs
    parts: list[tuple[Schedule, float, Scaling]] = [
        (constant(0.0), freeze_epochs / epochs, "fixed"),
        (linear(warmup_start, schedule(after if scaling == "fixed" else 0.0)), warmup_epochs / epochs, "rescaled"),
        (schedule, 1 - after, scaling),
    ]
    # A phase of no length has no value of its own.
    used = [part for part in parts if part[1] > _EPSILON]
    return used[0][0] if len(used) == 1 else composite(*zip(*used, strict=True))
