"""Names of columns and rows: short and unique."""

import dataclasses
import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sslbench.identity import digest
from sslbench.leaderboard.grouping import ColumnKey, differences, short_text
from sslbench.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from sslbench.results import Result


def column_names(groups: Mapping[ColumnKey, Sequence[Result]]) -> dict[ColumnKey, str]:
    """Return a name for each group: its benchmark, else protocol/data; in brackets its difference from namesakes."""
    namesakes: dict[str, list[ColumnKey]] = defaultdict(list)
    for group, members in groups.items():
        namesakes[_plain_name(group, members[0])].append(group)
    names = {}
    for name, alike in namesakes.items():
        headings = [[each.heading for each in values] for values in differences(alike).values()]
        headings = [texts for texts in headings if len(set(texts)) > 1]
        for i, group in enumerate(alike):
            own = ", ".join(dict.fromkeys(texts[i] for texts in headings))
            names[group] = f"{name} [{own}]" if own else name
    return _unique(names)


def _plain_name(group: ColumnKey, record: Result) -> str:
    noise = record.data.noise_text
    if group.benchmark:
        return group.benchmark.rsplit(" v", 1)[0] + noise
    return f"{record.protocol.name}/{data_name(record.data.test.name)}{noise}"


def data_name(name: str) -> str:
    """Return the name of data without split and folder.

    >>> data_name("pictures/photos/ (train)")
    'photos'
    """
    base = name.rsplit(" (", 1)[0] if name.endswith(")") else name
    base = base.rstrip("/\\")
    return base if ":" in base else base.replace("\\", "/").rsplit("/", 1)[-1] or name


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key with numbers in numerical order.

    >>> sorted(["k=200", "k=20"], key=natural)
    ['k=20', 'k=200']
    """
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _unique(names: dict[ColumnKey, str]) -> dict[ColumnKey, str]:
    """Return the names, with a digest appended to those that shortening made equal."""
    headings = list(names.values())
    return {group: name if headings.count(name) == 1 else f"{name} #{_digits(group)}" for group, name in names.items()}


def _digits(group: ColumnKey) -> str:
    return hashlib.sha256(repr(dataclasses.astuple(group)).encode()).hexdigest()[:8]


def row_names(rows: Mapping[str, Result]) -> dict[str, str]:
    """Return a label for each row: the weights' name; in brackets its difference from namesakes with the same layer."""
    namesakes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, record in rows.items():
        namesakes[record.weights.name, record.feature].append(key)
    labels = {}
    for (name, _), keys in namesakes.items():
        described = {key: _row_parts(rows[key]) for key in keys}
        every = {part for parts in described.values() for part in parts}
        ordered = [*(part for part in _FIRST if part in every), *sorted(every.difference(_FIRST))]
        differing = [part for part in ordered if len({parts.get(part) for parts in described.values()}) > 1]
        for key in keys:
            parts = [described[key].get(part, _absent(part)) for part in differing]
            labels[key] = f"{name} [{', '.join(parts)}]" if parts else name
    return labels


_FIRST = ("backbone", "precision", "resize", "squash", "crop", "mean", "std")
"""Parts of a label, in the order in which they stand; others follow by name."""


def _absent(part: str) -> str:
    """Return the words for a part that a row does not state."""
    return f"no {part}" if part in ("resize", "squash", "crop") else f"usual {part}"


def _row_parts(record: Result) -> dict[str, str]:
    """Return the parts that may tell two rows apart: name -> text."""
    weights = record.weights
    pixels = _preprocessing_words(record.preprocessing)
    network = {"backbone": weights.backbone, "precision": precision_text(record)}
    return {**network, **pixels, "sha256": weights.sha256[:8], "code": code_text(weights.code)}


def precision_text(record: Result) -> str:
    """Return the precision of the forward pass, and that of the stored features unless it is float32."""
    stored = "" if record.feature_dtype == "float32" else f", stored as {record.feature_dtype}"
    return f"{record.precision}{stored}"


def code_text(code: Mapping[str, str]) -> str:
    """Return the identity of the forward pass besides tensors: 'timm 1.0.15', 'code 3f2a9c'."""
    own = {name: value for name, value in code.items() if name in ("source", "structure", "probe", "unknown")}
    words = [f"{name} {version}" for name, version in code.items() if name not in own]
    words += [f"code {digest(own)[:6]}"] if own else []
    return " ".join(words) or "code not recorded"


def preprocessing_text(values: Mapping[str, Any]) -> str:
    """Return the preprocessing in a few words ('resize 256 bilinear, crop 224'), mean and std unless ImageNet's."""
    return ", ".join(_preprocessing_words(values).values())


def _preprocessing_words(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the words of `preprocessing_text`, each under the name of its value."""
    words = {key: f"{key} {_size(values[key])}" for key in ("resize", "squash", "crop") if values.get(key) is not None}
    if "resize" in words and "interpolation" in values:
        words["resize"] += f" {values['interpolation']}"
    for key, usual in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)):
        if isinstance(values.get(key), list | tuple) and tuple(values[key]) != usual:
            numbers = [_plain(value) for value in values[key]]
            words[key] = f"{key} {'/'.join(numbers[:1] if len(set(numbers)) == 1 else numbers)}"
    parameters = ("resize", "squash", "crop", "interpolation", "mean", "std", "origin")
    others = {key: item for key, item in values.items() if key not in parameters and (key, item) != ("space", "RGB")}
    return words | {key: f"{key} {short_text(item)}" for key, item in others.items()}


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else short_text(value)


def _size(size: Any) -> str:
    pair = list(size) if isinstance(size, list | tuple) else [size]
    sides = [short_text(side) for side in pair]
    return "x".join(sides[:1] if len(set(sides)) == 1 else sides)
