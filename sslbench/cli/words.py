"""Words after a command: names, and key=value in Hydra's grammar."""

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sslbench import paths
from sslbench.config import read_yaml, resolve
from sslbench.errors import UsageError
from sslbench.evaluation.request import RunSettings
from sslbench.library.recipes import compose
from sslbench.names import did_you_mean, from_file, list_names
from sslbench.protocols import find as find_protocol

_AS_TYPED = re.compile(r"(launcher\.(?:partition|account|qos|constraint|exclude|job_name))=(.+)", re.DOTALL)
"""Settings with the words of SLURM, whose commas, brackets and bars are not those of Hydra: node[01-03], a100|h100."""


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split words into names and key -> value, read as Hydra does (k=[10,20], a='b,c'); k=10,20 is a list too.

    Example:
        >>> split_words(["knn", "k=10,20"])
        (['knn'], {'k': [10, 20]})

    Raises:
        UsageError: a value that cannot be read, or a key that is given twice.
    """
    names_, found = split_listed(words)
    return names_, {key: value for key, (value, _) in found.items()}


def split_sweep(words: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Split words into names and key -> values to try: k=10,20 are two values, and k=[10,20] is one, a list.

    Example:
        >>> split_sweep(["knn", "k=10,20", "seed=3"])
        (['knn'], {'k': [10, 20], 'seed': [3]})

    Raises:
        UsageError: as for `split_words`, or a value is given twice.
    """
    names_, found = split_listed(words)
    swept = {key: value if listed else [value] for key, (value, listed) in found.items()}
    for key, values in swept.items():
        if len({repr(value) for value in values}) < len(values):
            raise UsageError(f"'{key}' has a value twice")
    return names_, swept


def typed(value: Any) -> str:
    """Return a value as it is typed after key=; text that would be read as something else has quotes.

    >>> [typed(value) for value in (0.1, None, [1, 2], "a,b", "10")]
    ['0.1', 'null', '[1,2]', "'a,b'", "'10'"]
    """
    if isinstance(value, list | tuple):
        return f"[{','.join(typed(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{typed(each)}" for key, each in value.items()) + "}"
    if not isinstance(value, str):
        return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if re.fullmatch(r"[\w.:/@+-]+", value) and split_listed([f"x={value}"])[1]["x"] == (value, False):
        return value
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), value) + "'"


def combinations(values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield every choice of one value for each key, the last key first.

    >>> list(combinations({"k": [10, 20], "seed": [0]}))
    [{'k': 10, 'seed': 0}, {'k': 20, 'seed': 0}]
    """
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def split_listed(words: Sequence[str]) -> tuple[list[str], dict[str, tuple[Any, bool]]]:
    """Split words into names and key -> (value, whether it is a list without brackets); see `split_words`."""
    if not any("=" in word for word in words):
        return list(words), {}
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    names_: list[str] = []
    values: dict[str, tuple[Any, bool]] = {}
    parser = OverridesParser.create()
    for word in words:
        if "=" not in word:
            names_.append(word)
            continue
        if as_typed := _AS_TYPED.fullmatch(word):
            if as_typed[1] in values:
                raise UsageError(f"the key '{as_typed[1]}' is given twice")
            values[as_typed[1]] = (None if as_typed[2] == "null" else as_typed[2].strip("'\""), False)
            continue
        try:
            override = parser.parse_override(word)
        except (HydraException, RecursionError, ValueError):  # ValueError: a number with thousands of digits
            raise UsageError(
                f"'{word}' cannot be read as key=value",
                "Put quotes around text with special characters: \"key='a,b'\"; a list is key=[1,2].",
            ) from None
        key = override.key_or_group
        listed = override.is_choice_sweep() and "choice(" not in word  # without brackets, which some shells expand
        if override.type is None or override.type.name != "CHANGE" or (override.is_sweep_override() and not listed):
            raise UsageError(f"'{word}' is not of the form key=value", "Write a list as key=[1,2].")
        if key in values:
            raise UsageError(f"the key '{key}' is given twice")
        values[key] = (list(override.sweep_iterator()), True) if listed else (override.value(), False)
    return names_, values


def route(values: Mapping[str, Any], run_keys: Sequence[str], protocols: Sequence[str]) -> "Routed":
    """Sort key=value into settings of the run and of each protocol; `knn.k=20` is for one protocol only.

    A setting that protocols share with the run, such as batch_size, is theirs; a flag, --batch-size, sets the run's.

    Raises:
        UsageError: a key that nothing has, with the nearest one.
    """
    run: dict[str, Any] = {}
    per_protocol: dict[str, dict[str, Any]] = {name: {} for name in protocols}
    fields = {name: {f.name for f in dataclasses.fields(find_protocol(name).settings)} for name in protocols}
    for key, value in values.items():
        prefix, _, rest = key.partition(".")
        if rest and (takers := [name for name in protocols if prefix in fields[name]]):  # d2.SOLVER.BASE_LR: a mapping
            for name in takers:
                per_protocol[name].setdefault(prefix, {})[rest] = value
            continue
        if prefix in fields and rest:
            if rest not in fields[prefix]:
                raise UsageError(f"{prefix} has no setting '{rest}'", nearest_setting(rest, fields[prefix]))
            per_protocol[prefix][rest] = value
            continue
        takers = [name for name in protocols if key in fields[name]]
        for name in takers:
            per_protocol[name].setdefault(key, value)
        if key in run_keys and not takers:
            run[key] = value
        elif not takers:
            known = set(run_keys).union(*fields.values())
            raise UsageError(f"there is no setting '{key}' of {', '.join(protocols)}", nearest_setting(key, known))
    return Routed(run, per_protocol)


def nearest_setting(key: str, known: Collection[str]) -> str:
    """Return the remedy for a setting that does not exist: the other protocols that have it, or the nearest name."""
    having = [
        name
        for name in list_names("protocol")
        if any(field.name == key for field in dataclasses.fields(find_protocol(name).settings))
    ]
    return f"It is a setting of {', '.join(having)}." if having else did_you_mean(key, known)


@dataclasses.dataclass(frozen=True)
class Routed:
    """Settings of the run, and of each protocol."""

    run: dict[str, Any]
    protocols: dict[str, dict[str, Any]]


def resolve_run(values: Mapping[str, Any], flags: Mapping[str, Any]) -> tuple[RunSettings, dict[str, str]]:
    """Return the settings of a run, checked, with their origins; arguments as for `compose_run`.

    Raises:
        UsageError: no such machine or setting, or a value that is not possible.
    """
    settings, origins = resolve(RunSettings, compose_run(values, flags))
    settings.check()
    return settings, origins


def compose_run(values: Mapping[str, Any], flags: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the layers of run settings: configs/eval.yaml with its machine group, key=value, then flags.

    Args:
        values: key=value words for the run; 'machine' picks configs/machine/NAME.yaml.
        flags: flags that were given.

    Returns:
        (origin, values) pairs for `config.resolve`, weakest first.

    Raises:
        UsageError: no such machine.
    """
    values = dict(values)
    machine = str(values.pop("machine", "auto"))
    machines: dict[str, Path] = {}
    for folder in paths.search_path("configs"):
        for file in (folder / "machine").glob("*.yaml"):
            machines.setdefault(file.stem, file)
    if machine not in machines:
        raise UsageError(f"there is no machine called '{machine}'", did_you_mean(machine, machines))
    in_machine = set(read_yaml(machines[machine], may_be_empty=True))
    base, _ = compose("eval", {"machine": machine})
    if "decoder" in base:
        base["decoder"] = from_file(base["decoder"], f"configs/eval.yaml or machine/{machine}.yaml", "--decoder {}")
    return [
        ("configs/eval.yaml", {k: v for k, v in base.items() if k not in in_machine}),
        (f"machine={machine}", {k: v for k, v in base.items() if k in in_machine}),
        ("key=value", values),
        ("flag", dict(flags)),
    ]
