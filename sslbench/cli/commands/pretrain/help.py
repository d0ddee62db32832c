"""Help of `sslbench pretrain NAME`: the recipe and the method's settings, read without importing torch."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from sslbench.library.recipes import leaves, read_recipe
from sslbench.names import find_file, list_names


def write_method(name: str, formatter: click.HelpFormatter) -> None:
    """Write the sections about one recipe."""
    path = find_file("method", name)
    own = _values(name)
    module = str(own.get("method.name", ""))
    rows = list(_settings(module))
    if rows:
        with formatter.section(f"Settings of {module} (method.KEY=VALUE), as {name} has them"):
            formatter.write_dl(
                [(f"{key}={_text(own.get(f'method.{key}', default))}", text) for key, default, text in rows]
            )
    with formatter.section(f"The recipe {name} ({path})"):
        for line in path.read_text(encoding="utf-8").rstrip().splitlines():
            formatter.write(" " * formatter.current_indent + line + "\n")


def _values(name: str) -> dict[str, Any]:
    """Return dotted key -> value of a recipe and of those that it builds on."""
    content = read_recipe("method", name)
    found: dict[str, Any] = {}
    for entry in content.pop("defaults", None) or ():
        if isinstance(entry, str) and entry in list_names("method"):
            found |= _values(entry)
    return found | leaves(content)


def _settings(module: str) -> Iterator[tuple[str, Any, str]]:
    """Yield (key, default, meaning and type) of a built-in method's settings, from the source of its Config."""
    spec = importlib.util.find_spec(f"sslbench.methods.{module}") if module.isidentifier() else None
    if spec is None or spec.origin is None:
        return
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    config = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Config"), None)
    for node in config.body if config is not None else ():
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_setting(node.value)):
            continue
        default, meaning = _first_two(node.value)
        yield node.target.id, default, f"{meaning} [{_type(node.annotation)}]"


def _is_setting(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "setting"


def _first_two(node: ast.expr | None) -> tuple[Any, str]:
    """Return the arguments of setting(default, meaning); expressions other than literals as text."""
    arguments = node.args if isinstance(node, ast.Call) else []
    values = []
    for argument in arguments[:2]:
        try:
            values.append(ast.literal_eval(argument))
        except ValueError:
            values.append(ast.unparse(argument))
    default, meaning = (*values, "", "")[:2]
    return default, str(meaning)


def _type(node: ast.expr) -> str:
    names = {"str": "text", "bool": "true or false", "int": "a whole number", "float": "a number", "None": "null"}
    if isinstance(node, ast.BinOp):
        return f"{_type(node.left)} or {_type(node.right)}"
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if ast.unparse(node.value) == "Literal":
            return "one of " + ", ".join(str(ast.literal_eval(each)) for each in inner)
        if ast.unparse(node.value) == "tuple":
            return f"list of {_type(inner[0])}"
    return names.get(ast.unparse(node), ast.unparse(node))


def _text(value: Any) -> str:
    """Return a value as it is typed after KEY=."""
    from sslbench.cli.settings_page import show_value

    return show_value(tuple(value) if isinstance(value, list) else value)
