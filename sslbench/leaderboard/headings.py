"""Names of columns and rows: short and unique."""

import dataclasses
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sslbench.identity import digest
from sslbench.leaderboard.grouping import UNSET, ColumnKey
from sslbench.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from sslbench.results import Result


def column_names(groups: Mapping[ColumnKey, Sequence[Result]]) -> dict[ColumnKey, str]:
    """Return a name for each group: its benchmark, else protocol/data; in brackets its difference from namesakes."""
    namesakes: dict[str, list[ColumnKey]] = defaultdict(list)
    for group, members in groups.items():
        namesakes[_plain_name(group, members[0])].append(group)
    names = {}
    for name, alike in namesakes.items():
        parts = _differences(alike)
        for group in alike:
            names[group] = f"{name} [{', '.join(parts[group])}]" if parts[group] else name
    return _unique(names)


def _plain_name(group: ColumnKey, record: Result) -> str:
    noise = f", {100 * record.data.label_noise:g} % label noise" if record.data.label_noise else ""
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


_PARTS: tuple[Callable[[ColumnKey], str], ...] = (
    lambda group: group.key.metric,
    lambda group: "v" + group.benchmark.rsplit(" v", 1)[1] if group.benchmark else "no benchmark",
    lambda group: group.key.protocol,
    lambda group: f"protocol v{group.key.version}" if group.benchmark else f"v{group.key.version}",
    lambda group: f"train {group.key.train[:4]}",
    lambda group: f"data {group.key.test[:4]}",
    lambda group: f"n_train={group.key.n_train}",
    lambda group: f"n={group.key.n_test}",
    lambda group: f"{group.key.unreadable} skipped",
    lambda group: f"code {group.key.code[:4]}",
    lambda group: f"groups {group.key.groups[:4]}",
)


def _differences(groups: Sequence[ColumnKey]) -> dict[ColumnKey, list[str]]:
    """Return for each group the parts in which it differs from at least one of the others, in words."""
    parts: dict[ColumnKey, list[str]] = {group: [] for group in groups}
    settings = {group: json.loads(group.key.settings) for group in groups}
    texts: list[dict[ColumnKey, str]] = [
        {group: f"{name}={_short(settings[group].get(name, UNSET))}" for group in groups}
        for name in sorted({name for values in settings.values() for name in values})
    ]
    texts += [{group: text(group) for group in groups} for text in _PARTS]
    for written in texts:
        if len(set(written.values())) > 1:
            for group in groups:
                parts[group].append(written[group])
    return parts


def _short(value: Any) -> str:
    items = value if isinstance(value, list) else [value]
    text = ",".join(item if isinstance(item, str) else json.dumps(item, separators=(",", ":")) for item in items)
    return text if len(text) <= 24 else text[:23] + "…"


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
        namesakes[record.weights.name, record.layer].append(key)
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
    return words | {key: f"{key} {_short(item)}" for key, item in others.items()}


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else _short(value)


def _size(size: Any) -> str:
    pair = list(size) if isinstance(size, list | tuple) else [size]
    sides = [_short(side) for side in pair]
    return "x".join(sides[:1] if len(set(sides)) == 1 else sides)
