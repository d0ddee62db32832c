"""Words after a command: names, and key=value in Hydra's grammar."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sslbench.errors import UsageError

AS_TYPED = ("data", "test_data", "weights", "out")
"""Flags that commands with settings also take as key=value."""
_AS_TYPED = re.compile(
    rf"(launcher\.(?:partition|account|qos|constraint|exclude|job_name)|{'|'.join(AS_TYPED)})=(.+)", re.DOTALL
)
"""Places, and settings with the words of SLURM: their commas, brackets and bars are not Hydra's (node[01-03], a|b)."""


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split words into names and key -> value, read as Hydra does (k=[10,20], a='b,c'); k=10,20 is a list too.

    Example:
        >>> split_words(["knn", "k=10,20"])
        (['knn'], {'k': [10, 20]})
    """
    names_, found = split_listed(words)
    return names_, {key: value for key, (value, _) in found.items()}


def split_sweep(words: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Split words into names and key -> values to try: k=10,20 are two values, and k=[10,20] is one, a list.

    Example:
        >>> split_sweep(["knn", "k=10,20", "seed=3"])
        (['knn'], {'k': [10, 20], 'seed': [3]})
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
    # Quoted where the grammar would read it as a number, a bool or several values.
    if re.fullmatch(r"[\w.:/@+-]+", value) and split_listed([f"x={value}"])[1]["x"] == (value, False):
        return value
    # Between quotes Hydra takes backslashes for escapes only where a quote follows them.
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
    # Loaded for settings only: Hydra takes longer to import than --help may take.
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
        # Hydra also reads +key and ~key, which mean nothing here.
        if override.type is None or override.type.name != "CHANGE" or (override.is_sweep_override() and not listed):
            raise UsageError(
                f"'{word}' is not of the form key=value",
                "A key has no sign before it, and a list is key=[1,2]. Keys that are not defined are refused.",
            )
        if key in values:
            raise UsageError(f"the key '{key}' is given twice")
        values[key] = (list(override.sweep_iterator()), True) if listed else (override.value(), False)
    return names_, values
