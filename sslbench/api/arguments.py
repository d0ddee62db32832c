"""Arguments of the public functions: models, protocols, options and data of many kinds."""

import atexit
import dataclasses
import functools
import logging
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from sslbench import evaluation
from sslbench.backbones.backbone import Backbone, copied
from sslbench.backbones.in_memory import from_module, unwrapped, users_preprocessing
from sslbench.backbones.layer_spec import split_layers
from sslbench.backbones.layers import last_linear
from sslbench.backbones.named import download_hint
from sslbench.config import build_partial, resolve
from sslbench.data.decode.handlers import Decoder
from sslbench.data.decode.reading import names_of_handlers
from sslbench.data.in_memory import Columns, sources_of
from sslbench.errors import UsageError, WeightsError
from sslbench.features.external import are_features
from sslbench.names import did_you_mean, list_names
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import find as find_protocol
from sslbench.results import Result, Results, records

log = logging.getLogger("sslbench")


def refuse_other_models(model: object) -> None:
    """Refuse a model that is neither a module nor a location of weights.

    Raises:
        UsageError: the model is neither.
        WeightsError: it is the name of an architecture, whose weights could be downloaded.
    """
    if isinstance(model, str | Path | nn.Module):
        plain = isinstance(model, str) and ":" not in model and not Path(model).exists()
        if plain and model not in ("random", "pixels") and (hint := download_hint(str(model))):
            raise WeightsError(f"there is no weights file {model}", hint)
        return
    what = f"the class {model.__name__}" if isinstance(model, type) else f"of the type {type(model).__name__}"
    remedies: dict[Any, str] = {
        type: "Make a module of it first: model = Net().",
        Mapping: "Load these tensors into a module, model.load_state_dict(...), or give the path of their file.",
        Sequence: "Call this once for each of them; sslbench.make_leaderboard makes one table of all.",
        Callable: "Call it if it makes a module, model = resnet50(); else wrap it in an nn.Module.",
    }
    remedy = next((text for kind, text in remedies.items() if isinstance(model, kind)), "Wrap it in an nn.Module.")
    raise UsageError(f"the model is {what}, neither a module nor a weights file", remedy)


def refuse_other_order(train: Any, test: Any) -> None:
    """Refuse what stands at the place of another argument: a module, labels, or a protocol.

    Raises:
        UsageError: one stands there.
    """
    call = "Call evaluate(model, train, test, protocols=[...]): the model comes first."
    for name, given in (("train", train), ("test", test)):
        if isinstance(given, nn.Module):
            raise UsageError(f"{name} is a module, {type(given).__name__}", call)
    if isinstance(test, str) and test in list_names("protocol") and not Path(test).exists():
        raise UsageError(f"test is '{test}', which is a protocol", f"Write protocols='{test}'.")
    listed = isinstance(test, list | tuple) and bool(test) and isinstance(test[0], int | str)
    if hasattr(train, "shape") and (listed or len(getattr(test, "shape", ())) == 1):
        pair = "model, (x, y)" if len(train.shape) > 2 else "None, (x, y)"
        raise UsageError(
            f"test is a list of {len(test)} labels",
            f"Labels stand beside their images or features: evaluate({pair}), or evaluate({pair}, (x_test, y_test)).",
        )


def copied_backbone(model: nn.Module, request: Mapping[str, Any]) -> Backbone:
    """Return a backbone around a copy of the user's module; the classifier of a library's network is left out."""
    inner = unwrapped(model)
    name = request.get("backbone") or type(inner).__name__
    # The user may go on training theirs, whose mode, device and gradients must not change.
    module = copied(inner).cpu().eval().requires_grad_(False)
    backbone = from_module(name, module, users_preprocessing(name, inner), inner)
    published = type(inner).__module__.partition(".")[0] in ("torchvision", "timm")
    if request.get("layers") or not published or not (last := last_linear(backbone)):
        return backbone
    log.warning(f"{name}: taking the features before its classifier '{last}'; layers='output' takes the class scores")
    return dataclasses.replace(backbone, default_layer=f"{last}@input")


def tasks_of(
    protocols: str | Sequence[str], settings: Mapping[str, Mapping[str, Any]] | None
) -> tuple[evaluation.Task, ...]:
    """Return the protocols with their settings.

    Raises:
        UsageError: settings of another protocol, no mapping of protocols to their settings, or one needs a benchmark.
    """
    # A text is a sequence too, of its letters.
    names = [protocols] if isinstance(protocols, str) else protocols
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        remedy = f"Write protocols={[*names]}, settings={names}." if isinstance(names, Mapping) else None
        raise UsageError(f"protocols should be a name or a list of names, not {protocols!r:.80}", remedy)
    for key, values in (settings or {}).items():
        if key not in names:
            example = f'Settings belong to a protocol: settings={{"{names[0]}": {{"{key}": ...}}}}.' if names else ""
            nearest = did_you_mean(key, names)
            raise UsageError(
                f"settings: '{key}' is none of the protocols {', '.join(names)}",
                nearest if isinstance(values, Mapping) or not example else example,
            )
        if not isinstance(values, Mapping):
            raise UsageError(f"settings of {key} should map names to values, not {values!r:.80}")
    for name in names:
        if (needed := find_protocol(name).benchmark) is not None:
            raise UsageError(
                f"{name} needs a benchmark, {needed.content}", f"Call sslbench.evaluate_{name}(..., recipe=...)."
            )
    return tuple(evaluation.make_task(name, (settings or {}).get(name, {})) for name in names)


_ARGUMENTS = frozenset(("protocols", "settings", "name", "out", "run"))
"""Further arguments of `evaluate` and its like, for hints."""


_OWN_ARGUMENTS = frozenset(("weights", "data", "test_data", "tasks", "name", "recipe", "baselines"))
"""Fields of requests that are arguments of their own."""


def options_of(
    given: Mapping[str, Any],
    run: evaluation.RunSettings | None,
    request: type[Any],
    *,
    runs: bool = True,
    beside: Collection[str] = _ARGUMENTS,
    tasks: Sequence[evaluation.Task] = (),
) -> tuple[evaluation.RunSettings, dict[str, Any]]:
    """Return the settings of a run and the further fields of a request, from keyword arguments.

    Args:
        given: the keyword arguments.
        run: settings to start from.
        request: dataclass of the request; one with a preprocessing takes its values by their names, too.
        runs: settings of a run have an effect.
        beside: further arguments of the function, for hints.
        tasks: protocols, whose settings are no options.

    Raises:
        UsageError: an option that does not exist, with the nearest one, or of another type.
    """
    fields = {field.name for field in dataclasses.fields(request)} - _OWN_ARGUMENTS
    of_run = {field.name for field in dataclasses.fields(evaluation.RunSettings)} if runs else set()
    of_images = {field.name for field in dataclasses.fields(Preprocessing)} - {"origin"} - of_run
    known = fields | of_run | (of_images if "preprocessing" in fields else set())
    for key in given:
        if key not in known:
            labels = "Labels stand beside their images or features: (images, labels)."
            nearest = labels if key in _LABELS else did_you_mean(key, {*known, *beside} - {key})
            for task in tasks:
                if key in {field.name for field in dataclasses.fields(task.settings)}:
                    nearest = f'It is a setting of {task.protocol}: settings={{"{task.protocol}": {{"{key}": ...}}}}.'
            raise UsageError(f"there is no option '{key}'", nearest)
    # `RunSettings` and its records have the device as text.
    given = {key: str(value) if isinstance(value, torch.device) else value for key, value in given.items()}
    if run is not None and not isinstance(run, evaluation.RunSettings):
        raise UsageError(f"run should be RunSettings, not {type(run).__name__}", "Its settings are arguments as well.")
    if "decoder" in given:
        chosen = given["decoder"]
        given["decoder"] = names_of_handlers(chosen.handlers if isinstance(chosen, Decoder) else chosen)
    start = {} if run is None else dataclasses.asdict(run)
    settings, _ = resolve(evaluation.RunSettings, [("the options", start | _chosen(given, of_run))])
    values = _chosen(given, fields - {"preprocessing"})
    if isinstance(values.get("layers"), str):
        values["layers"] = tuple(split_layers(values["layers"]))
    values = build_partial(request, values, "the options")
    preprocessing = {**(given.get("preprocessing") or {}), **_chosen(given, of_images)}
    # --crop 224 is a square, and so is crop=224.
    if isinstance(preprocessing.get("crop"), int):
        preprocessing["crop"] = (preprocessing["crop"],) * 2
    return settings, values | ({"preprocessing": preprocessing} if preprocessing else {})


def _chosen(given: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the given values of these names."""
    return {name: value for name, value in given.items() if name in names}


def train_and_test(train: Any, test: Any) -> tuple[Any, Any]:
    """Return the two parts of data in memory, where mappings hold arrays by their names.

    Args:
        train: {'images': x, 'labels': y}, a file of NumPy with x_train, y_train, x_test and y_test, or any other data.
        test: the same, or None.

    Returns:
        (x, y) for such mappings, and two parts for features by split and for two data sets of torch; other data as
        they are.

    Examples:
        >>> train_and_test({"data": [[1.0]], "target": [0]}, None)
        (([[1.0]], [0]), None)
        >>> train_and_test({"x_train": 1, "y_train": 2, "x_test": 3, "y_test": 4}, None)
        ({'train': (1, 2), 'test': (3, 4)}, None)
    """
    train, test = _pair_of(train), _pair_of(test)
    if test is None and isinstance(train, tuple | list) and len(train) == 2:
        # Two data sets are train and test, not images and labels.
        train, test = train if all(isinstance(part, Dataset | DataLoader) for part in train) else (train, test)
    by_split = test is None and isinstance(train, Mapping) and train.keys() == {"train", "test"}
    return (train["train"], train["test"]) if by_split and are_features(train["train"]) else (train, test)


_INPUTS = frozenset(("images", "image", "pixel_values", "features", "embeddings", "x", "data"))
_LABELS = frozenset(("labels", "label", "targets", "target", "y"))


def _pair_of(data: Any) -> Any:
    """Return a mapping of inputs and labels as a pair, one of both for train and test as pairs by split."""
    if not isinstance(data, Mapping):
        return data
    values = {str(key).lower(): data[key] for key in data}
    if {"x_train", "y_train"} <= values.keys():  # further arrays, such as positions in a larger set, are not read
        splits = [split for split in ("train", "test") if f"x_{split}" in values]
        return {split: (values[f"x_{split}"], values.get(f"y_{split}")) for split in splits}
    inputs, labels = values.keys() & _INPUTS, values.keys() & _LABELS
    if len(values) == 2 and len(inputs) == len(labels) == 1:
        return values[inputs.pop()], values[labels.pop()]
    return data


def location(data: Any, name: str, remedy: str) -> str:
    """Return the text of a location.

    Raises:
        UsageError: it is data in memory.
    """
    if isinstance(data, str | Path):
        return str(data)
    raise UsageError(f"{name} should be a location as text, not of the type {type(data).__name__}", remedy)


def refuse_other_fields(given: Mapping[str, Any], request: type[Any], of_settings: type[Any]) -> None:
    """Refuse keyword arguments that are no fields of a request.

    Args:
        given: the keyword arguments.
        request: dataclass of the request.
        of_settings: dataclass of its settings, for the hint.

    Raises:
        UsageError: an argument is no field.
    """
    known = {field.name for field in dataclasses.fields(request)} - {"settings", "data", "out", "chosen"}
    settings = {field.name for field in dataclasses.fields(of_settings)}
    for key in given:
        if key in settings:
            raise UsageError(f"'{key}' is a setting", f'Pass settings={{"{key}": ...}}.')
        if key not in known:
            raise UsageError(
                f"there is no option '{key}'", did_you_mean(key, known | settings | {"settings", "observers"})
            )


@dataclasses.dataclass(frozen=True)
class Places:
    """Data of a request: locations, and data in memory by the names that take their place."""

    names: dict[str, Any]
    in_memory: evaluation.InMemoryData


def places_of(train: Any, test: Any, options: Mapping[str, Any]) -> Places:
    """Return the locations of a request; data in memory are opened."""
    columns = Columns(
        options.get("image_column"),
        options.get("label_column"),
        tuple(options.get("groups", ())),
        tuple(options.get("value_columns", ())),
    )
    names: dict[str, Any] = {"test_data": None}
    in_memory = {}
    for field, part, data in (("data", "train", train), ("test_data", "test", test)):
        if data is None and field == "test_data":
            continue
        if isinstance(data, str | Path):
            names[field] = str(data)
            continue
        name = f"{type(data).__name__} in memory"
        names[field] = name if test is None else f"{name} ({part})"
        in_memory[str(names[field])] = sources_of(data, str(names[field]), columns)
    return Places(names, in_memory)


BOXES = "Boxes are read from manifests (COCO, kwcoco, Pascal VOC, YOLO): write one, and give its path."
FILES = "Images are read from a folder, a table or an archive: write them there, and give its path."
"""Remedies of `location`."""


def folder_of(out: str | Path | None) -> Path:
    """Return the folder for records; None stands for a temporary one."""
    return _temporary_folder() if out is None else Path(out)


@functools.cache
def _temporary_folder() -> Path:
    """Return a folder for records that is removed when Python ends."""
    folder = Path(tempfile.mkdtemp(prefix="sslbench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def record_of(result: str | Path | Result | Sequence[Result]) -> Result:
    """Return the record of a result, of a list of one, or in a file.

    Raises:
        UsageError: it is something else.
        ResultError: the file cannot be read.
    """
    if isinstance(result, Result):
        return result
    if isinstance(result, str | Path):
        return records.read(Path(result))
    if isinstance(result, Sequence) and len(result) == 1 and isinstance(result[0], Result):
        return result[0]
    what = f"{len(result)} results" if isinstance(result, Results) else f"of the type {type(result).__name__}"
    raise UsageError(f"a result is compared with another, and this is {what}", "Give one of them: results[0].")
