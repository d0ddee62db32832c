"""Identity of a module that no library versions: its code, its structure with all state, and its outputs on a probe.

Two modules may share every tensor and still compute different things: ReLU or Tanh, another stride, an edited
`forward`. Structure alone misses what lies behind names, outputs alone what one image does not show; both are taken.
"""

import contextlib
import copy
import hashlib
import json
import logging
import random
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sslbench import user_code
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.seeds import preserved_random_states

log = logging.getLogger("sslbench")

PROBE_SIDE = 224  # used if the preprocessing fixes no size
UNKNOWN = "unknown"
"""Key of an identity that cannot be known: its value is new each time, so nothing is found again."""

_OF_TORCH = frozenset(vars(nn.Module()))
_DOUBLE_UP_TO = 300_000_000  # parameters of the module; a copy in double precision takes 8 bytes each


def probe_images(preprocessing: Preprocessing, count: int = 1) -> Tensor:
    """Return noise of the size that the backbone expects, always the same: (count, its channels, H, W)."""
    size = preprocessing.crop or preprocessing.squash or preprocessing.resize
    height, width = size if isinstance(size, tuple) else (PROBE_SIDE, PROBE_SIDE)
    return torch.randn(count, preprocessing.channels, height, width, generator=torch.Generator().manual_seed(0))


def identify(module: nn.Module, preprocessing: Preprocessing, name: str) -> dict[str, str]:
    """Return digests of everything but the state dict that determines a user's module's forward pass.

    The module itself is not run: its mode, gradients and buffers stay as they are, and so do all random states.

    Args:
        module: in eval mode.
        preprocessing: gives the size of the probe.
        name: of the backbone, for the message.

    Returns:
        Versions of libraries, 'source' (of the user's files and code), 'structure' and 'probe'; {'unknown': ...} where
        the outputs on the probe are not reproducible, which is said.
    """
    parts = list(module.modules())
    try:
        outputs, reason = _outputs(module, probe_images(preprocessing, 2))
    except Exception as error:  # noqa: BLE001 - a user's forward may raise anything
        reason = f"it fails on noise of the size of its images ({type(error).__name__}: {' '.join(str(error).split())})"
        return _unknown(name, reason[:300])
    if reason:
        return _unknown(name, reason)
    try:
        structure = user_code.ContentDigests().of([[path, *_state(part)] for path, part in module.named_modules()])
    except RecursionError:
        return _unknown(name, "its attributes are nested too deep to be compared")
    return {
        **user_code.library_versions(parts),
        "source": user_code.sha256(parts) or "libraries",
        "structure": structure,
        "probe": outputs,
    }


def _unknown(name: str, reason: str) -> dict[str, str]:
    log.warning(f"{name}: {reason}; its features and results are not stored")
    return {UNKNOWN: uuid.uuid4().hex}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _state(part: nn.Module) -> list[Any]:
    """Return the state of one module outside its weights and submodules.

    Its class, attributes, buffers that a state dict leaves out, and hooks, which may change what comes out.
    """
    own: dict[str, Any] = {key: value for key, value in vars(part).items() if key not in _OF_TORCH}
    if isinstance(part, torch.jit.ScriptModule):
        own = {"graph": str(getattr(part, "inlined_graph", ""))}
    left_out = getattr(part, "_non_persistent_buffers_set", ())
    own |= {name: buffer for name, buffer in part.named_buffers(recurse=False) if name in left_out}
    hooks = [*part._forward_pre_hooks.values(), *part._forward_hooks.values()]
    return [type(part), sorted(own.items()), hooks]


def _outputs(module: nn.Module, images: Tensor) -> tuple[str, str]:
    """Return a digest of all submodules' outputs on the first image, and the reason if it is not reproducible, else ''.

    In double precision, rounded: the number of threads and the kind of processor must not show. A module that does not
    run in double precision runs in its own.
    """
    with preserved_random_states(), torch.no_grad():
        if sum(tensor.numel() for tensor in module.parameters()) <= _DOUBLE_UP_TO:
            with contextlib.suppress(Exception):  # retried in its own precision, whose error is reported
                return _three_passes(copy.deepcopy(module).double(), images.double(), 8)
        return _three_passes(copy.deepcopy(module), images, 4)


def _three_passes(module: nn.Module, images: Tensor, digits: int) -> tuple[str, str]:
    """Run one copy with two seeds (dropout, counters), then on both images (batch statistics)."""
    module.eval()
    first, second = (_one_pass(module, images[:1], digits, seed) for seed in (1, 2))
    if first != second:
        return first, "its features of one image change with every call"
    if _depends_on_batch(module, images):
        return first, "its features of an image depend on the other images of the batch"
    return first, ""


def _depends_on_batch(module: nn.Module, images: Tensor) -> bool:
    """Return whether the first image's features change beside the second image, as with batch statistics."""
    alone, beside = (list(_tensors(module(batch))) for batch in (images[:1], images))
    return any(
        one.ndim and len(one) == 1 and len(two) == 2 and one.shape[1:] == two.shape[1:] and not _close(one[0], two[0])
        for one, two in zip(alone, beside, strict=False)
    )


def _close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding in half precision."""
    a, b = one.to(torch.float64), other.to(torch.float64)
    return bool((a - b).abs().max() <= 0.02 * a.abs().max())


def _one_pass(module: nn.Module, images: Tensor, digits: int, seed: int) -> str:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    seen: list[Any] = []

    def note(path: str, output: Any) -> None:
        seen.append([path, *(_summary(tensor, digits) for tensor in _tensors(output))])

    with contextlib.ExitStack() as stack:
        for path, part in module.named_modules():
            if not isinstance(part, torch.jit.ScriptModule):
                hook = part.register_forward_hook(lambda _, __, output, path=path: note(path, output))
                stack.callback(hook.remove)
        note("output", module(images))
    return _digest(seen)


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)


def _summary(tensor: Tensor, digits: int) -> list[Any]:
    """Shape, and three numbers that move when any value or the order of the values moves."""
    x = tensor.detach().to(torch.float64).flatten()
    if not x.numel():
        return [list(tensor.shape)]
    size = x.abs().mean()
    order = torch.cos(torch.arange(x.numel(), dtype=torch.float64))
    scaled = [(value / size).item() for value in (x.mean(), (x * order).mean())]
    return [list(tensor.shape), f"{size.item():.{digits}e}", *(round(value, digits) + 0.0 for value in scaled)]
