"""Settings of built-in methods, read from the source of their `Config`: the modules themselves import torch."""

import ast
import dataclasses
from typing import Any, Literal, Union

from sslbench import names
from sslbench.config import setting

_PARTS = "sslbench.methods._parts."
_PLAIN = {"str": str, "int": int, "float": float, "bool": bool}


def declared_config(method: str) -> type[Any] | None:
    """Return a dataclass with the names, types, defaults and meanings of a method's settings.

    A type that its source does not say in place is Any.

    Returns the dataclass; None for a method of the user's own.

    >>> declared_config("simclr")().temperature
    0.1
    """
    file = names.module_file("method", method)
    if file is None:
        return None
    # Importing the method would import torch, for which --help need not wait.
    tree = ast.parse(file.read_text(encoding="utf-8"))
    aliases = _assignments(tree)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PARTS):
            shared = file.parent / "_parts" / f"{str(node.module).removeprefix(_PARTS)}.py"
            aliases = {**_assignments(ast.parse(shared.read_text(encoding="utf-8"))), **aliases}
    (config,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Config")
    fields = [
        (node.target.id, _type(node.annotation, aliases), _setting(node.value))
        for node in config.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call)
    ]
    return dataclasses.make_dataclass("Config", fields, frozen=True)


def _assignments(tree: ast.Module) -> dict[str, ast.expr]:
    """Return name -> value of the assignments of a module, among which are names of types."""
    return {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _setting(call: ast.Call) -> Any:
    """Return the field that a call of `config.setting` with literal arguments makes."""
    named = {str(argument.arg): ast.literal_eval(argument.value) for argument in call.keywords}
    return setting(*map(ast.literal_eval, call.args), **named)


def _type(node: ast.expr, aliases: dict[str, ast.expr]) -> Any:
    """Return the type that an annotation names."""
    if isinstance(node, ast.BinOp):
        return Union[_type(node.left, aliases), _type(node.right, aliases)]  # noqa: UP007 - made of values
    if isinstance(node, ast.Constant):
        return node.value if node.value is Ellipsis else type(None)
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if ast.unparse(node.value) == "Literal":
            return Literal[tuple(ast.literal_eval(each) for each in inner)]
        return tuple.__class_getitem__(tuple(_type(each, aliases) for each in inner))
    name = ast.unparse(node)
    return _PLAIN[name] if name in _PLAIN else _type(aliases[name], aliases) if name in aliases else Any
