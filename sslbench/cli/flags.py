"""Options of commands, declared by the fields of dataclasses: name, type, default, bounds and help."""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import click

from sslbench.runtime.folders import refuse_address

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class LocalPath(click.Path):
    """Type of an option that names a file or folder of this machine; an address or URL is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        refuse_address(value)
        return super().convert(value, param, ctx)


def flag(text: str, *names: str, default: Any = None, within: str = "", **more: Any) -> Any:
    """Return a dataclass field that is an option; its type is the field's, and tuples are options to repeat.

    Example: `limit: int | None = flag("Largest number of samples per split.", within="[1, inf)")`.

    Args:
        text: for --help.
        names: of the option; by default the field's.
        default: value without the option.
        within: interval of a number, see `config.setting`.
        more: further arguments of `click.option`.
    """
    return dataclasses.field(default=default, metadata={"option": (text, names, {"within": within, **more})})


def flags_of(settings: type[Any], **names: Sequence[str]) -> Any:
    """Return a dataclass field with the settings of another dataclass that were given by flags, as name -> value.

    Args:
        settings: the dataclass, whose fields are declared by `config.setting(..., flag=...)`.
        names: of the options that are not those of their fields.
    """
    return dataclasses.field(default_factory=dict, metadata={"settings": settings, "names": names})


def same(cls: type[Any], name: str) -> Any:
    """Return the declaration of an option of another dataclass."""
    declared = cls.__dataclass_fields__[name]
    return dataclasses.field(default=declared.default, metadata=declared.metadata)


def add_options(*kinds: type[Any]) -> Callable[[F], F]:
    """Add the options of dataclasses to a command, each as an argument of its own."""

    def decorate(function: F) -> F:
        # Decorators apply from the inside out: help lists the last one first.
        for declared in reversed([each for kind in kinds for each in _declared(kind)]):
            function = _option(*declared)(function)
        return function

    return decorate


def argument_options(function: F) -> F:
    """Add an option for each argument of a command whose default is a `flag`."""
    hints = typing.get_type_hints(function)
    for name, argument in reversed(list(inspect.signature(function).parameters.items())):
        if isinstance(field := argument.default, dataclasses.Field):
            field.name = name
            function = _option(field, hints[name], ())(function)
    return function


def take_flags(**kinds: type[Any]) -> Callable[[F], F]:
    """Add the options of dataclasses to a command, which receives an instance of each."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            taken = {name: take(kind, values) for name, kind in kinds.items()}
            return function(*args, **taken, **values)

        return add_options(*kinds.values())(command)  # type: ignore[return-value]

    return decorate


def take(cls: type[T], values: dict[str, Any]) -> T:
    """Remove the options of a dataclass from the values of a command line; return them as an instance."""
    taken: dict[str, Any] = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if dataclasses.is_dataclass(kind := hints[field.name]):
            taken[field.name] = take(kind, values)  # type: ignore[arg-type]
        elif settings := field.metadata.get("settings"):
            given = {name: values.pop(name, None) for name in names_of(settings)}
            taken[field.name] = {name: value for name, value in given.items() if value is not None}
        elif field.name in values:
            taken[field.name] = values.pop(field.name)
    return cls(**taken)


def names_of(cls: type[Any]) -> list[str]:
    """Return the names of a dataclass's options, as values of a command line have them."""
    return [field.name for field, *_ in _declared(cls)]


def _declared(
    cls: type[Any], names: Mapping[str, Sequence[str]] | None = None
) -> Iterator[tuple["dataclasses.Field[Any]", Any, Sequence[str]]]:
    """Yield the fields that are options with types and names, those of dataclasses inside in their place."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        inside = field.metadata.get("settings", hints[field.name])
        if dataclasses.is_dataclass(inside):
            yield from _declared(inside, field.metadata.get("names"))  # type: ignore[arg-type]
        elif field.metadata.get("flag") or "option" in field.metadata:
            yield field, inside, (names or {}).get(field.name, ())


def _option(field: "dataclasses.Field[Any]", kind: Any, names: Sequence[str]) -> Callable[[F], F]:
    """Return the option that a field declares, by `flag` or by `config.setting`."""
    if typing.get_origin(kind) in (Union, types.UnionType):
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    words = typing.get_origin(kind) is Literal
    several = typing.get_origin(kind) is tuple
    more: dict[str, Any]
    if "option" in field.metadata:
        text, names, more = field.metadata["option"]
        more = {"default": field.default, **({"multiple": True} if several else {}), **more}
        if more.get("required"):
            del more["default"]
        if words:
            more["type"] = click.Choice(typing.get_args(kind))
    else:
        meaning, shown = field.metadata["meaning"], field.metadata["flag"]
        shown = shown if isinstance(shown, str) else field.default
        shown = ",".join(shown) if isinstance(shown, tuple) else shown
        text = f"{meaning[:1].upper()}{meaning[1:]}. Default: {shown}."
        # Not a choice of click's: `config.convert` tells the nearest word.
        more = {"within": field.metadata["within"], **({"callback": split_names} if several else {})}
    within = more.pop("within", "")
    if kind is bool:
        more["is_flag"] = True
    elif Path in (kind, *typing.get_args(kind)):
        more["type"] = LocalPath()
    elif kind in (int, float):
        more.setdefault("type", _number(kind, within) if within else kind)
    return click.option(*(names or [f"--{field.name.replace('_', '-')}"]), field.name, help=text, **more)


def _number(kind: type[Any], within: str) -> Any:
    """Return the type of a number in an interval, see `config.setting`."""
    ends = within[1:-1].split(",")
    low, high = (None if "inf" in end else int(end) if "." not in end else float(end) for end in ends)
    interval: Any = click.IntRange if kind is int else click.FloatRange
    return interval(low, high, min_open=within[0] == "(", max_open=high is not None and within[-1] == ")")


def split_names(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    """Return the names in an option, between commas."""
    return [name.strip() for name in value.split(",")] if value else None
