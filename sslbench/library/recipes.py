"""Settings of a run from YAML files, composed by Hydra: plain values with their origins."""

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sslbench import paths
from sslbench.config import in_proportion, is_number, read_yaml
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, find_file, from_file, list_names, modules

log = logging.getLogger("sslbench")
GROUPS = ("augment", "optimizer", "schedule")
RUN_INPUTS: Mapping[str, type] = {
    **dict.fromkeys(("data", "image_column", "label_column", "init", "init_format", "stem"), str),
    "limit": int,
}
"""Inputs of a run that its config.yaml records below 'run' -> type; the same names as in `PretrainRequest`."""


@dataclasses.dataclass(frozen=True)
class Composed:
    """Settings that are not checked yet.

    Attributes:
        values: nested mappings, as in configs/pretrain.yaml with its groups.
        origins: dotted key of every value that is no mapping -> where it came from.
    """

    values: dict[str, Any]
    origins: dict[str, str]


_UNCHECKED = (ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError, RecursionError)
"""Errors of Hydra about a list `defaults` that holds something else than names and mappings of them."""


def compose(config: str, choices: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """configs/CONFIG.yaml with the files of its groups; a user's folders come before the built-in one."""
    import yaml
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for group, name in choices.items():
        if group in ("method", *GROUPS):
            read_recipe(group, name)  # raises a clear message
    folders = [folder.resolve() for folder in paths.search_path("configs")]
    # A quote in the name of a folder would end the text in Hydra's grammar.
    escaped = [str(folder).replace("'", "\\'") for folder in folders]
    searchpath = ",".join(f"'file://{folder}'" for folder in escaped)
    overrides = [f"hydra.searchpath=[{searchpath}]", *(f"{group}={name}" for group, name in choices.items())]
    primary = next(file for folder in folders if (file := folder / f"{config}.yaml").is_file())
    try:
        # Hydra would search the primary file's folder first; from memory, it leaves the order to the search path.
        ConfigStore.instance().store(config, OmegaConf.load(primary))
        with initialize_config_module("hydra.conf", version_base="1.3"):  # of its own; `initialize` searches the stack
            composed = hydra_compose(config, overrides=overrides, return_hydra_config=True)
        chosen = OmegaConf.to_container(composed.hydra.runtime.choices)
        own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        if call := re.search(r"\$\{[^{}]*:[^{}]*\}", str(own)):  # ${oc.env:KEY} would copy it into files
            raise UsageError(
                f"configs/{config}.yaml: {call[0]} calls a function, and recipes are data", "Write the value instead."
            )
        values = OmegaConf.to_container(own, resolve=True)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, *_UNCHECKED) as error:
        with_choices = " ".join(f"{group}={name}" for group, name in choices.items())
        message = " ".join(str(error).split())
        raise UsageError(f"configs/{config}.yaml {with_choices}".rstrip() + f": {message}") from error
    if not isinstance(values, dict) or not isinstance(chosen, dict):
        raise UsageError(f"configs/{config}.yaml should be a mapping")
    return {str(k): v for k, v in values.items()}, {str(k): str(v) for k, v in chosen.items() if v is not None}


def compose_pretraining(method: str, given: Mapping[str, Any], flags: Mapping[str, Any]) -> Composed:
    """configs/pretrain.yaml, then the recipe, then key=value, then flags.

    A group that the user chooses (augment=small) stands as its file says: what the recipe said about that group was
    for the recipe's own choice.
    """
    if "method" in given:
        raise UsageError(
            "give the method as the first word, not as method=...", "For example: sslbench pretrain simclr"
        )
    base, choices = _base(method)
    chosen = {group: given[group] for group in GROUPS if group in given}
    for group, name in chosen.items():
        if not isinstance(name, str):
            raise UsageError(f"{group} takes a name (sslbench list {group}s)", f"Single values: {group}.KEY=VALUE")
        if name not in list_names(group):
            raise UsageError(f"there is no {group} called '{name}'", did_you_mean(name, list_names(group)))
    changed = {group: name for group, name in chosen.items() if name != choices.get(group)}
    values, origins = base.values, base.origins
    if changed:
        # What the recipe said about the group was said for its own choice of it.
        fresh, _ = compose("pretrain", changed)
        for group, name in changed.items():
            values[group] = fresh[group]
            origins = {key: origin for key, origin in origins.items() if key.partition(".")[0] != group}
            origins |= dict.fromkeys(leaves({group: fresh[group]}), f"{group}={name}")
    before, epochs = values["optimizer"].get("name"), values.get("epochs")
    words = {key: value for key, value in given.items() if key not in GROUPS}
    for origin, layer in (("key=value", words), ("flag", flags)):
        for key, value in layer.items():
            _put(values, key, value)
            origins = {k: o for k, o in origins.items() if not (k == key or k.startswith(key + "."))}
            origins |= dict.fromkeys(leaves({key: value}), origin)
    if method in list_names("method") and "optimizer.lr" not in given:
        _same_optimizer(method, choices, changed, before, values["optimizer"].get("name"))
    _mark_code(values, origins, method)
    _shorten(values, origins, epochs)
    return Composed(values, origins)


def _shorten(values: dict[str, Any], origins: dict[str, str], before: Any) -> None:
    """Fit, in place, lengths in epochs that the user did not choose into fewer epochs than a recipe's `before`."""
    epochs: Any = values.get("epochs")
    if not is_number(before) or not is_number(epochs):
        return
    lengths = leaves({part: values.get(part) or {} for part in ("schedule", "method", "groups")})
    lengths = {
        key: value
        for key, value in lengths.items()
        if key.endswith("_epochs") or (key.endswith(".milestones") and lengths.get(f"{key[:-10]}name") == "multistep")
        if origins.get(key) not in ("key=value", "flag")
    }
    fitted = {key: part for key, value in lengths.items() if (part := in_proportion(value, before, epochs)) != value}
    for key, part in fitted.items():
        _put(values, key, part)
        origins[key] = f"{origins.get(key, 'default')}, in proportion to epochs={epochs:g}"
    if fitted:
        listed = ", ".join(f"{key}={part}" for key, part in fitted.items())
        log.info(f"{listed}, in proportion to epochs={epochs:g} (the recipe has {before:g})")


def inputs_of_run(method: str) -> dict[str, Any]:
    """Return the data and first weights of an earlier run, from its config.yaml; {} for the name of a method."""
    if not (method.endswith(".yaml") and Path(method).is_file()):
        return {}
    inputs = read_yaml(Path(method)).get("run") or {}
    if not isinstance(inputs, dict):
        raise UsageError(f"{method}: run should be a mapping, such as run: {{data: photos/}}")
    for name, value in inputs.items():
        if name not in RUN_INPUTS:
            raise UsageError(f"{method}: unknown key 'run.{name}'", did_you_mean(str(name), RUN_INPUTS))
        if not isinstance(value, RUN_INPUTS[name]) or isinstance(value, bool):
            raise UsageError(f"{method}: run.{name} should be of type {RUN_INPUTS[name].__name__}, not {value!r}")
    return inputs


def _mark_code(values: dict[str, Any], origins: Mapping[str, str], method: str) -> None:
    """Mark, in place, the Python code that files name; code that the user typed is theirs to run."""
    typed = ("key=value", "flag")
    settings, backbone = values.get("method"), values.get("backbone")
    name = settings.get("name") if isinstance(settings, dict) else None
    is_typed = name == method and origins.get("method.name") == "the command"
    if isinstance(settings, dict) and not is_typed and origins.get("method.name") not in typed:
        settings["name"] = from_file(name, f"{method}: method.name", "method.name={}")
    key = "method.teacher_backbone"
    if isinstance(settings, dict) and settings.get("teacher_backbone") and origins.get(key) not in typed:
        teacher = settings["teacher_backbone"]
        # 'timm:NAME' looks like code, MODULE:ATTRIBUTE, and is none.
        if not str(teacher).startswith("timm:"):
            settings["teacher_backbone"] = from_file(teacher, f"{method}: {key}", f"{key}={{}}")
    if origins.get("backbone") not in typed and not str(backbone).startswith("timm:"):
        values["backbone"] = from_file(backbone, f"{method}: backbone", "--backbone {}")
    optimizer = values.get("optimizer")
    if isinstance(optimizer, dict) and origins.get("optimizer.name") not in typed:
        own = optimizer.get("name")
        if not str(own).startswith("timm:"):
            optimizer["name"] = from_file(own, f"{method}: optimizer.name", "optimizer.name={}")
    _mark_schedules(values, origins, method)
    augment = values.get("augment")
    if isinstance(augment, dict) and origins.get("augment.views") not in typed:
        code = augment.get("code") if origins.get("augment.code") in typed else None
        allowed = code if isinstance(code, list) else [code]
        for view in augment["views"] if isinstance(augment.get("views"), list) else ():
            if isinstance(view, dict) and isinstance(view.get("order"), list):
                view["order"] = [_marked_change(entry, method, allowed) for entry in view["order"]]
    for key, remedy in (("decoder", "decoder=[{}]"), ("batch_transform", "batch_transform={}")):
        if key in values and origins.get(key) not in typed:
            values[key] = from_file(values[key], f"{method}: {key}", remedy)


def _mark_schedules(values: Mapping[str, Any], origins: Mapping[str, str], method: str) -> None:
    """Mark, in place, the functions of the user's own in the schedules of a run and of its groups."""
    groups = values.get("groups")
    found = {"schedule": values.get("schedule")}
    for name, part in groups.items() if isinstance(groups, dict) else ():
        found[f"groups.{name}.schedule"] = part.get("schedule") if isinstance(part, dict) else None
    for place, schedule in found.items():
        for key, spec in schedule.items() if isinstance(schedule, dict) else ():
            if origins.get(f"{place}.{key}.name") not in ("key=value", "flag"):
                _mark_schedule(spec, f"{method}: {place}.{key}", f"{place}.{key}.name={{}}")


def _mark_schedule(spec: Any, where: str, remedy: str) -> None:
    """Mark, in place, the functions of the user's own in a schedule of a file."""
    if not isinstance(spec, dict):
        return
    if ":" in str(spec.get("name")):
        spec["name"] = from_file(spec["name"], f"{where}.name", remedy)
    for part in spec["parts"] if isinstance(spec.get("parts"), list) else ():
        _mark_schedule(part, f"{where}.parts", f"{remedy.partition('.name')[0]}={{{{...}}}}")


def _marked_change(entry: Any, method: str, allowed: Sequence[Any]) -> Any:
    """Return an entry of a view's order with the user's own functions marked, unless they are allowed."""
    if isinstance(entry, dict):
        inner = entry.get("transforms")
        parts = [_marked_change(part, method, allowed) for part in inner] if isinstance(inner, list) else inner
        marked = {**entry, "name": _marked_change(entry.get("name"), method, allowed)}
        return marked if inner is None else {**marked, "transforms": parts}
    if ":" not in str(entry) or entry in allowed:
        return entry
    return from_file(entry, f"{method}: augment.views", "augment.code=[{}]")


def _same_optimizer(method: str, choices: Mapping[str, str], changed: Mapping[str, str], old: Any, new: Any) -> None:
    """Refuse another optimizer without another learning rate, which only the user can know."""
    known = modules("optimizer")
    if new not in known and not {".", ":"} & set(str(new)):
        raise UsageError(f"optimizer.name: there is no optimizer called '{new}'", did_you_mean(str(new), known))
    if "optimizer" in changed or old != new:
        chosen = changed.get("optimizer", new)
        raise UsageError(
            f"the learning rate of {method} is for the optimizer {choices.get('optimizer')}, not {chosen}",
            f"Give a learning rate too: optimizer={chosen} optimizer.lr=...",
        )


def _base(method: str) -> tuple[Composed, dict[str, str]]:
    """Return the settings before the user's words, and the file of every group."""
    if method in list_names("method"):
        path = find_file("method", method)
        # For its messages, which are clearer than Hydra's.
        read_yaml(path)
        # Without it Hydra would put the recipe's groups below `method`, where nobody reads them.
        if "@package _global_" not in path.read_text(encoding="utf-8").partition("\n")[0]:
            raise UsageError(f"the first line of {path} should be '# @package _global_'")
        values, choices = compose("pretrain", {"method": method})
    elif method.endswith(".yaml") and Path(method).is_file():
        values = read_yaml(Path(method))
        values.pop("run", None)  # see `inputs_of_run`
        missing = [group for group in ("method", *GROUPS) if not isinstance(values.get(group), dict)]
        if missing:
            raise UsageError(
                f"{method} is not the configuration of a run: it has no mapping '{missing[0]}'",
                "Give the config.yaml that an earlier run wrote into its --out.",
            )
        return Composed(values, dict.fromkeys(leaves(values), method)), {}
    elif method.endswith(".yaml"):
        raise UsageError(f"there is no file {method}", "Give the name of a method, or the config.yaml of a run.")
    elif "." in method:
        values, choices = compose("pretrain", {})
        values["method"] = {"name": method}
    else:
        raise UsageError(f"there is no method called '{method}'", did_you_mean(method, list_names("method")))
    if not isinstance(values.get("method"), dict) or "name" not in values["method"]:
        raise UsageError(f"the recipe {method} lacks 'method: {{name: ...}}'", "Name the module of a method.")
    origins = {"method.name": "the command"}
    for group, name in choices.items():
        if group in ("method", *GROUPS):
            origins |= {key: origin for key, origin in _in_files(group, name).items() if group != "method"}
    if "method" in choices:
        origins |= _in_files("method", choices["method"])
    found = {key: origins.get(key, "configs/pretrain.yaml") for key in leaves(values)}
    return Composed(values, found), choices


def _in_files(group: Any, name: str) -> dict[str, str]:
    """Return the origin of each dotted key of a group's file and of the files of the group that it builds on."""
    content = read_recipe(group, name)
    found: dict[str, str] = {}
    for entry in content.pop("defaults", None) or ():
        if isinstance(entry, str) and entry != "_self_":
            found |= _in_files(group, entry)
    label = f"recipe {name}" if group == "method" else f"{group}={name}"
    return found | dict.fromkeys(leaves(content if group == "method" else {group: content}), label)


def read_recipe(group: Any, name: str) -> dict[str, Any]:
    """Return the own content of one file of a group; {} when it holds only comments."""
    return read_yaml(find_file(group, name), may_be_empty=True)


def leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted key -> value of everything that is no mapping (or an empty one)."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a value by its dotted key, in place."""
    *parents, last = key.split(".")
    for depth, parent in enumerate(parents):
        if values.get(parent) is None:
            values[parent] = {}
        values = values[parent]
        if not isinstance(values, dict):
            raise UsageError(f"{key}: {'.'.join(parents[: depth + 1])} holds a single value, not a mapping")
    values[last] = value
