"""Haiku checkpoints (DeepMind's BYOL): functions that their pickles may call, and flattening of their nested dicts.

Sources: https://github.com/google-deepmind/deepmind-research/blob/master/byol/utils/checkpointing.py and
https://github.com/google-deepmind/dm-haiku/blob/main/haiku/_src/data_structures.py. They are pickled by dill, which
constructs arrays and named tuples with functions of its own.
"""

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from sslbench.weights.reading.pickled import ArrayDescription, DtypeDescription, PickledName

_STATE = "experiment_state"
_NETWORKS = ("online", "target")
# byol_experiment._ByolExperimentState, in its order: a pickle of a named tuple does not hold the names.
_NUMBERS = frozenset("bool bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())
_FIELDS = ("online_params", "target_params", "online_state", "target_state", "opt_state")


def flattened(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file with one flat dict per network if it is a BYOL checkpoint; else unchanged.

    `experiment_state` with {online,target}_params and {online,target}_state, each {module: {name: tensor}}, becomes
    `experiment_state` with online and target, each {'module/name': tensor}.
    """
    state = content.get(_STATE)
    if not isinstance(state, Mapping):
        return content
    networks = {}
    for network in _NETWORKS:
        params, moving = state.get(f"{network}_params"), state.get(f"{network}_state")
        if isinstance(params, Mapping) and isinstance(moving, Mapping):
            networks[network] = {**_flat(params), **_flat(moving)}
    rest = {key: value for key, value in state.items() if key not in _FIELDS}
    return {**content, _STATE: {**rest, **networks}} if networks else content


def _flat(modules: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        f"{module}/{name}": value
        for module, values in modules.items()
        if isinstance(values, Mapping)
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def functions() -> dict[str, Callable[..., Any]]:
    """Return full name -> function of the functions that these pickles may call; all only construct data."""
    structures = "haiku._src.data_structures"
    return {
        **{f"{structures}.{name}": _as_dict for name in ("FlatMapping", "FlatMap", "frozendict")},
        "dill._dill._create_array": _array,
        "dill._dill._create_dtypemeta": _dtype,
        "dill._dill._create_namedtuple": _named_tuple,
        "jax._src.array._reconstruct_array": _array,
        "jax._src.device_array.reconstruct_device_array": _array,
        "byol.byol_experiment._ByolExperimentState": _named_tuple("_ByolExperimentState", _FIELDS).make,
    }


def _as_dict(items: object = ()) -> dict[Any, Any]:
    """Return the dict of a Haiku mapping, which is pickled with a single dict."""
    if not isinstance(items, dict):
        raise pickle.UnpicklingError("a mapping of Haiku is damaged")
    return items


def _array(make: object, args: object, state: object, *_: object) -> ArrayDescription:
    """Return the description of an array that dill pickles as one call, with numpy's `make`, `args` and `state`."""
    array = make.make(*args) if isinstance(make, PickledName) and isinstance(args, tuple) else None
    if not isinstance(array, ArrayDescription):
        raise pickle.UnpicklingError("an array is constructed by a function that does not return arrays")
    array.set_state(state)
    return array


def _dtype(kind: object) -> DtypeDescription:
    """Return the dtype of one of numpy's scalar classes."""
    name = kind.name.removeprefix("numpy.") if isinstance(kind, PickledName) else ""
    if name not in _NUMBERS:
        raise pickle.UnpicklingError("a numpy dtype is damaged")
    return DtypeDescription(np.dtype(name.removesuffix("_")))


def _named_tuple(name: object, fields: object, *_: object) -> PickledName:
    """Return the stand-in for a named tuple class; its objects are plain dicts, field -> value."""
    names = fields if isinstance(fields, tuple | list) else ()
    if not names or not all(isinstance(field, str) for field in names):
        raise pickle.UnpicklingError("a named tuple is damaged")

    def make(*values: object) -> dict[str, object]:
        if len(values) != len(names):
            raise pickle.UnpicklingError(f"a named tuple has {len(values)} values for {len(names)} fields")
        return dict(zip(names, values, strict=True))

    return PickledName(str(name), make)
