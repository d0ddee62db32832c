"""Strict conversion of mappings (YAML, flags, key=value) to frozen dataclasses, with the origin of each value."""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.paths import is_shipped

T = TypeVar("T")
_hints = typing.cast(Callable[[type[Any]], dict[str, Any]], functools.cache(typing.get_type_hints))


def setting(  # noqa: PLR0913  the facts of a setting
    default: Any,
    meaning: str,
    *,
    unit: str = "",
    within: str = "",
    filled: bool = False,
    distinct: bool = False,
    needs: str = "",
    required: bool = False,
    changes_result: bool = True,
    by_content: bool = False,
    part_of: str = "",
    added_later: bool = False,
    flag: bool | str = False,
) -> Any:
    """Return a dataclass field with its meaning.

    Example: `temperature: float = setting(0.1, "temperature of the similarities", within="(0, inf)")`.

    Args:
        default: value where none is given.
        meaning: for help and messages.
        unit: of the value.
        within: interval of a number, or of each number of a list; `build` refuses others. A round bracket leaves the
            end out. Text means nothing else.
        filled: refuse an empty list.
        distinct: refuse a list that holds a value twice.
        needs: condition without which the setting has no effect, 'whiten=true', or 'blocks' for any value of it but an
            empty one; other values than the default are refused then.
        required: refuse the default, "" for instance.
        changes_result: False for a setting that only says how the same numbers are computed (memory, library): it is
            not part of what was measured, and records leave it out.
        by_content: True for the place of a file or folder, of which records hold the content in place of the name.
        part_of: setting with the length of the whole training, of which this is a part or a point in time: see
            `shortened`.
        added_later: records leave out the default, so that those of versions without the setting are still found.
        flag: commands have a flag of this name, with the meaning as help; text: the default in words, for the help.
    """
    metadata = {
        "meaning": meaning,
        "unit": unit,
        "within": within,
        "filled": filled,
        "distinct": distinct,
        "needs": needs,
        "required": required,
        "changes_result": changes_result and not by_content,
        "by_content": by_content,
        "part_of": part_of,
        "added_later": added_later,
        "flag": flag,
    }
    return dataclasses.field(default=default, metadata=metadata)


def other_default(cls: type[Any], name: str, default: Any) -> Any:
    """Return the field of a dataclass with another default, for a class that extends it."""
    return dataclasses.field(default=default, metadata=cls.__dataclass_fields__[name].metadata)


def result_settings(settings: Any) -> dict[str, Any]:
    """Return name -> value of the settings that a result depends on."""
    return {
        f.name: getattr(settings, f.name)
        for f in dataclasses.fields(settings)
        if f.metadata.get("changes_result", True)
        and not (f.metadata.get("added_later") and getattr(settings, f.name) == f.default)
    }


@dataclasses.dataclass(frozen=True)
class SettingInfo:
    """Row of a settings table, as printed by `sslbench show` and `--help`."""

    name: str
    type: str
    default: Any
    unit: str
    meaning: str


def describe(cls: type[Any]) -> list[SettingInfo]:
    """Return the settings of a dataclass in order of definition."""
    hints = _hints(cls)
    return [
        SettingInfo(f.name, _kind_text(f, hints[f.name]), f.default, f.metadata.get("unit", ""), f.metadata["meaning"])
        for f in dataclasses.fields(cls)
    ]


def _kind_text(field: "dataclasses.Field[Any]", kind: Any) -> str:
    within = field.metadata.get("within")
    return f"{type_name(kind)}, {interval_text(within)}" if within else type_name(kind)


def interval_text(within: str) -> str:
    """Return an interval in words.

    >>> [interval_text(within) for within in ("(0, inf)", "[1, inf)", "[0, 1]", "[0, 1)", "(0, 1]", "(0, 1)")]
    ['above 0', '1 or more', 'from 0 to 1', 'from 0 to below 1', 'above 0 to 1', 'above 0 and below 1']
    >>> interval_text("(-inf, inf)")
    'finite'
    """
    low, high = (end.strip() for end in within[1:-1].split(","))
    if low == "-inf":
        return "finite"
    if high == "inf":
        return f"above {low}" if within[0] == "(" else f"{low} or more"
    if within[0] == "[":
        return f"from {low} to {'below ' if within[-1] == ')' else ''}{high}"
    return f"above {low} and below {high}" if within[-1] == ")" else f"above {low} to {high}"


def refuse_outside(settings: Any, where: str) -> None:
    """Refuse values that the declarations of the settings rule out: see `setting`."""
    for field in dataclasses.fields(settings):
        value, meaning = getattr(settings, field.name), field.metadata.get("meaning", "")
        if field.metadata.get("filled") and not value:
            raise UsageError(f"{where}: {field.name} has no value", f"Give one or several values: {field.name}=...")
        if field.metadata.get("distinct") and len(set(value)) < len(value):
            raise UsageError(f"{where}: {field.name} holds a value twice: {list(value)}")
        if (needs := field.metadata.get("needs")) and value != field.default:
            other, _, wanted = needs.partition("=")
            if (str(getattr(settings, other)).lower() != wanted) if wanted else not getattr(settings, other):
                raise UsageError(
                    f"{where}: {field.name} has no effect without {needs}",
                    f"Give {needs if wanted else needs + '=...'}.",
                )
        if field.metadata.get("required") and value == field.default:
            raise UsageError(f"{where}: {field.name} is missing", f"It is: {meaning}.")
        if not (within := field.metadata.get("within")):
            continue
        low, high = (float(end) for end in within[1:-1].split(","))
        for number in value if isinstance(value, tuple) else (value,):
            if not is_number(number) or low < number < high:  # null, or a word in place of a number
                continue
            if not ((number == low and within[0] == "[") or (number == high and within[-1] == "]")):
                shown = ",".join(map(str, field.default)) or "[]" if isinstance(field.default, tuple) else field.default
                raise UsageError(
                    f"{where}: {field.name} should be {interval_text(within)}, not {number:g}",
                    f"It is: {meaning}. Default: {shown}.",
                )


_LARGEST_YAML = 1_000_000
"""Largest YAML file in bytes; the parser takes about ten seconds for it."""


class _StrictLoader(yaml.SafeLoader):
    """Safe loader that also refuses aliases and keys that are written twice, and reads dates as text.

    Plain YAML keeps the last of two values silently, and thirty lines of aliases can stand for 10^29 values.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse aliases before they are expanded."""
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"aliases (*{event.anchor}) are not read", event.start_mark)
        return super().compose_node(parent, index)


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same in C, ten times as fast, for files of sslbench itself: it expands aliases, and nests without a bound."""


def _mapping_without_duplicates(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        # Deep: otherwise PyYAML fills lists and mappings only later.
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, "a list or mapping is not a key", key_node.start_mark)
        if key in found:
            raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' occurs twice", node.start_mark)
        found[key] = loader.construct_object(value_node, deep=True)
    return found


for _loader in (_StrictLoader, _FastLoader):
    _loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_duplicates)
    # A copy: PyYAML's loaders share one table, and others in this process read dates.
    _loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_yaml(path: Path, *, may_be_empty: bool = False) -> dict[str, Any]:
    """Read the mapping in a YAML file: no tags, aliases or duplicate keys; dates stay text.

    Args:
        path: of the file.
        may_be_empty: return {} for a file that holds only comments, in place of refusing it.

    Raises:
        UsageError: the file cannot be read, is larger than a megabyte, or is not a mapping.
    """
    try:
        with path.open("rb") as file:
            # Not the size of the file: a pipe has none.
            text = file.read(_LARGEST_YAML + 1)
        if len(text) > _LARGEST_YAML:
            raise UsageError(
                f"{path} is larger than {_LARGEST_YAML:,} bytes",
                "This is too large for settings; list images in a .csv or .json.",
            )
        # Editors on Windows begin files with a byte order mark.
        loader = _FastLoader if is_shipped(path) and b"&" not in text else _StrictLoader
        content = yaml.load(text.decode("utf-8-sig"), Loader=loader)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except RecursionError:
        raise UsageError(f"{path} is not valid YAML: lists or mappings are nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a number with thousands of digits
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())[:500]}") from error
    if content is None and may_be_empty:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(f"{path} should hold a mapping with names as keys")
    return content


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build a dataclass from a mapping; every value is checked against the field's type.

    Args:
        cls: a dataclass, possibly with fields that are dataclasses.
        values: field name -> value; fields that are left out keep their default.
        where: origin of the values for messages, for instance a file name.

    Raises:
        UsageError: an unknown key (with the nearest valid one), a missing key, a value of another type or outside its
            interval.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = _hints(cls)
    for key in values:
        if key not in fields:
            raise UsageError(f"{where}: unknown key '{key}'", did_you_mean(key, fields))
    arguments = {name: convert(values[name], hints[name], f"{where}: {name}") for name in fields if name in values}
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in arguments:
            raise UsageError(f"{where}: the key '{name}' is missing")
    built = cls(**arguments)
    refuse_outside(built, where)
    return built


def resolve(cls: type[T], layers: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[T, dict[str, str]]:
    """Build a dataclass from several mappings, later ones first, and return the origin of each value.

    Args:
        cls: the dataclass.
        layers: (origin, values) pairs, weakest first; the dataclass's own defaults are weaker than all.
    """
    merged: dict[str, Any] = {}
    origins = {f.name: "default" for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for origin, values in layers:
        # Each layer on its own, so that an error names its origin.
        build_partial(cls, values, origin)
        merged.update(values)
        origins.update(dict.fromkeys(values, origin))
    return build(cls, merged, layers[-1][0] if layers else "defaults"), origins


def shortened(cls: type[Any], layers: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the parts of a training (`part_of`) that no longer fit because the last layer shortens it, in proportion.

    Parts that the last layer sets itself stay as they are.

    Args:
        cls: the dataclass.
        layers: as for `resolve`; the last one is the user's.
    """
    *published, (origin, chosen) = layers
    chosen = build_partial(cls, chosen, origin)
    hints = _hints(cls)
    before: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(cls)}
    for where, values in published:
        before |= build_partial(cls, values, where)
    found = {}
    for field in dataclasses.fields(cls):
        part, whole = before[field.name], field.metadata.get("part_of")
        if whole not in chosen or field.name in chosen:
            continue
        fitted = in_proportion(part, before[whole], chosen[whole])
        if fitted != part:
            if hints[whole] is int:  # updates, of which there are whole numbers
                fitted = tuple(sorted(set(map(round, fitted)))) if isinstance(fitted, tuple) else round(fitted)
            found[field.name] = fitted
    return found


def in_proportion(part: Any, before: float, whole: float) -> Any:
    """Return a part of a training that became shorter: unchanged if it still ends before the training.

    >>> in_proportion(20, 100, 50), in_proportion(20, 100, 8), in_proportion((60, 90), 100, 80)
    (20, 1.6, (48.0, 72.0))

    Args:
        part: length of a part, points in time, or a schedule whose `milestones` are such.
        before: length of the whole training at first.
        whole: its length now.
    """
    if isinstance(part, Mapping):
        points = part.get("milestones") if part.get("name") == "multistep" else None
        return {**part, "milestones": in_proportion(points, before, whole)} if isinstance(points, list) else part
    points = part if isinstance(part, tuple | list) else [part]
    if not points or not all(map(is_number, points)) or not 0 < whole < before or max(points) < whole:
        return part
    fitted = [float(f"{point * whole / before:.6g}") for point in points]
    return type(part)(fitted) if points is part else fitted[0]


def is_number(value: Any) -> bool:
    """Return whether a plain value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def build_partial(cls: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check and convert a mapping as `build` does, without requiring all fields."""
    hints = _hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    for key in values:
        if key not in names:
            raise UsageError(f"{where}: unknown key '{key}'", did_you_mean(key, names))
    return {key: convert(value, hints[key], f"{where}: {key}") for key, value in values.items()}


def convert(value: Any, kind: Any, where: str) -> Any:
    """Convert a value to an annotated type: str, int, float, bool, None, Literal, X | Y, tuple, dict or dataclass.

    Nothing is guessed: 'False' is no bool and 1.5 is no int. A float may be given as an int or as '1e-3', which YAML
    reads as text; a tuple of one value as that value.

    Raises:
        UsageError: the value has another type.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        inside: UsageError | None = None
        # Text last: it would take everything that YAML did not read as something else.
        for option in sorted(arguments, key=lambda option: option is str):
            try:
                return convert(value, option, where)
            except UsageError as error:
                inside = error if typing.get_origin(option) is dict and isinstance(value, Mapping) else inside
        raise inside or _wrong(value, kind, where)
    if origin is Literal:
        # 1 == True in Python, and a setting of numbers takes no bool.
        if value in arguments and type(value) in {type(a) for a in arguments}:
            return value
        raise UsageError(f"{where}: '{value}' is not possible", did_you_mean(str(value), map(str, arguments)))
    if origin is tuple:
        return _convert_tuple(value, kind, arguments, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(value, kind, where)
        return {convert(k, arguments[0], where): convert(v, arguments[1], f"{where}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise _wrong(value, kind, where)
        return build(kind, value, where)
    return _convert_plain(value, kind, where)


def _convert_tuple(value: Any, kind: Any, arguments: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    items = list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else [value]
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(convert(item, arguments[0], where) for item in items)
    if len(items) != len(arguments):
        raise _wrong(value, kind, where)
    return tuple(convert(item, argument, where) for item, argument in zip(items, arguments, strict=True))


def _convert_plain(value: Any, kind: Any, where: str) -> Any:
    if kind in (None, type(None)):
        if value is None:
            return None
    # The exact types: true is an int to Python.
    elif kind is float and type(value) in (int, float, str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            raise _wrong(value, kind, where) from None
    elif isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise _wrong(value, kind, where)


def _wrong(value: Any, kind: Any, where: str) -> UsageError:
    return UsageError(f"{where}: should be {type_name(kind)}, not {value!r}")


def type_name(kind: Any) -> str:
    """Return the description of a type: 'a whole number', 'one of cosine, l2', 'list of text'."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(a) for a in arguments)
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in arguments)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return f"list of {type_name(arguments[0])}"
        return "[" + ", ".join(type_name(a) for a in arguments) + "]"
    if origin is dict:
        return "a mapping"
    if kind in (None, type(None)):
        return "null"
    names = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    return names[kind] if kind in names else str(getattr(kind, "__name__", kind))
