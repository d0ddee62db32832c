"""Key patterns, full keys with named holes, and the operations on tensors of rename tables.

`{i}` matches one dotted segment or part of it, `{rest*}` one or more, `{i+1}` a number that is one more than `{i}` on
the other side of a rule, for formats that count from one.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sslbench.errors import WeightsError

_HOLE = re.compile(r"\{([a-z][a-z0-9_]*)(\*|\+1|)\}")


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Parsed pattern, for instance `layer{i}.{j}.bn{k}.{leaf}`; it matches whole keys only.

    Attributes:
        holes: names of the holes in order, with `*` for those that may contain dots.
        expression: regular expression of the keys.
        counted: names of the holes whose number is one more than on the other side.
        start: literal text before the first hole; comparing it first is faster than the expression.
    """

    text: str
    holes: tuple[str, ...]
    expression: str
    counted: frozenset[str]
    start: str

    @functools.cached_property
    def _compiled(self) -> re.Pattern[str]:
        # Most of the 2,000 patterns are never compared with a key that begins as they do.
        return re.compile(self.expression)

    def match(self, key: str) -> dict[str, str] | None:
        """Return the text in each hole if the pattern matches `key`, else None."""
        if not key.startswith(self.start):
            return None
        found = self._compiled.fullmatch(key)
        if found is None:
            return None
        return {name: _moved(text, -1) if name in self.counted else text for name, text in found.groupdict().items()}

    def fill(self, values: dict[str, str]) -> str:
        """Return the key with `values` in the holes."""
        return _HOLE.sub(lambda hole: _moved(values[hole[1]], 1) if hole[2] == "+1" else values[hole[1]], self.text)

    def shape(self) -> str:
        """Return the pattern without the names of its holes; patterns of equal shape match the same keys."""
        return _HOLE.sub(lambda hole: "{" + hole[2] + "}", self.text)

    def summary(self) -> str:
        """Return the pattern as shown in reports: 'fc.*' for `fc.{rest*}`."""
        return _HOLE.sub("*", self.text)


def _moved(number: str, by: int) -> str:
    """Return a number plus 1 or -1; other text as it is, which the rule then does not give back."""
    return str(int(number) + by) if number.isdecimal() else number


@functools.cache
def parse_pattern(text: str) -> Pattern:
    """Parse a pattern.

    >>> parse_pattern("layer{i}.{j}.bn{k}.{leaf}").match("layer1.0.bn2.bias")
    {'i': '1', 'j': '0', 'k': '2', 'leaf': 'bias'}
    """
    holes = list(_HOLE.finditer(text))
    names = [hole[1] for hole in holes]
    literal = _HOLE.sub("\0", text)
    if not text or "{" in literal or "}" in literal:
        raise ValueError(f"'{text}' is not a key with holes such as {{i}} or {{rest*}}")
    if len(set(names)) != len(names):
        raise ValueError(f"'{text}' has a hole twice")
    # A key could be divided between them in several ways, so the rule would have no inverse.
    if "\0\0" in literal:
        raise ValueError(f"'{text}' has two holes with nothing between them")
    if sum(hole[2] == "*" for hole in holes) > 1:
        raise ValueError(f"'{text}' has more than one hole with a *")
    for hole in holes:
        before, after = text[: hole.start()], text[hole.end() :]
        if hole[2] == "*" and not ((before == "" or before[-1] == ".") and (after == "" or after[0] == ".")):
            raise ValueError(f"'{text}': a hole with a * stands for whole dotted segments")
    parts = [re.escape(part) for part in literal.split("\0")]
    expression = parts[0]
    for hole, part in zip(holes, parts[1:], strict=True):
        inside = {"*": r"[^.]+(?:\.[^.]+)*", "+1": r"[1-9]\d*", "": r"[^.]+"}[hole[2]]
        expression += f"(?P<{hole[1]}>{inside})" + part
    counted = frozenset(hole[1] for hole in holes if hole[2] == "+1")
    names = [hole[1] + hole[2].removesuffix("+1") for hole in holes]
    return Pattern(text, tuple(names), expression, counted, literal.split("\0")[0])


@dataclasses.dataclass(frozen=True)
class Operation:
    """Operation on one tensor and its inverse, exact bit for bit.

    Attributes:
        forward: from the format's tensor to the canonical one.
        inverse: from the canonical tensor to the format's.
    """

    forward: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]


def _step(needs: str, fits: Callable[[Tensor], bool], change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function of tensors that refuses those that do not fit."""

    def step(tensor: Tensor) -> Tensor:
        if not fits(tensor):
            raise ValueError(f"needs {needs}")
        return change(tensor)

    return step


def _patches_to_conv(weight: Tensor) -> Tensor:
    side = math.isqrt(weight.shape[1] // 3)
    return weight.reshape(-1, side, side, 3).permute(0, 3, 1, 2).contiguous()


# Reverses the input channels of a convolution: BGR to RGB and back.
_FLIP = _step("a convolution's weight (out, in, h, w)", lambda w: w.ndim == 4, lambda w: w.flip(1))
# A linear layer's weight from (in, out), as in TensorFlow and JAX, to (out, in), and back.
_TRANSPOSE = _step("a matrix", lambda w: w.ndim == 2, lambda w: w.t().contiguous())
# A convolution's weight from (h, w, in, out), as in TensorFlow, JAX and Haiku, to (out, in, h, w).
_HWIO_TO_OIHW = _step(
    "a convolution's weight (h, w, in, out)", lambda w: w.ndim == 4, lambda w: w.permute(3, 2, 0, 1).contiguous()
)
_OIHW_TO_HWIO = _step(
    "a convolution's weight (out, in, h, w)", lambda w: w.ndim == 4, lambda w: w.permute(2, 3, 1, 0).contiguous()
)
# A linear layer's weight (out, in) to that of the equivalent 1x1 convolution, (out, in, 1, 1).
_LINEAR_TO_CONV = _step("a matrix", lambda w: w.ndim == 2, lambda w: w[:, :, None, None])
_CONV_TO_LINEAR = _step(
    "a 1x1 convolution's weight (out, in, 1, 1)",
    lambda w: w.ndim == 4 and w.shape[2:] == (1, 1),
    lambda w: w[:, :, 0, 0],
)
# Removes a first dimension of 1: CLIP stores tokens and position embeddings without the batch dimension.
_SQUEEZE = _step("a first dimension of 1", lambda t: t.ndim > 0 and t.shape[0] == 1, lambda t: t[0])
# A linear layer on flat RGB patches, (out, side * side * 3), to a convolution (out, 3, side, side).
_PATCHES_TO_CONV = _step(
    "a matrix for square patches of three channels",
    lambda w: w.ndim == 2 and w.shape[1] > 0 and w.shape[1] == 3 * math.isqrt(w.shape[1] // 3) ** 2,
    _patches_to_conv,
)
_CONV_TO_PATCHES = _step(
    "a convolution's weight for three channels and square patches",
    lambda w: w.ndim == 4 and w.shape[1] == 3 and w.shape[2] == w.shape[3],
    lambda w: w.permute(0, 2, 3, 1).flatten(1).contiguous(),
)
# Refuses everything but a convolution over frames.
_VIDEO = _step("a convolution's weight (out, in, frames, h, w)", lambda w: w.ndim == 5, lambda w: w)

OPERATIONS: Mapping[str, Operation] = {
    "flip_channels": Operation(_FLIP, _FLIP),
    "transpose": Operation(_TRANSPOSE, _TRANSPOSE),
    "hwio_to_oihw": Operation(_HWIO_TO_OIHW, _OIHW_TO_HWIO),
    "oihw_to_hwio": Operation(_OIHW_TO_HWIO, _HWIO_TO_OIHW),
    "linear_to_conv": Operation(_LINEAR_TO_CONV, _CONV_TO_LINEAR),
    "conv_to_linear": Operation(_CONV_TO_LINEAR, _LINEAR_TO_CONV),
    "patches_to_conv": Operation(_PATCHES_TO_CONV, _CONV_TO_PATCHES),
    "unsqueeze": Operation(lambda tensor: tensor[None], _SQUEEZE),
    "video": Operation(_VIDEO, _VIDEO),
    "squeeze": Operation(_SQUEEZE, lambda tensor: tensor[None]),
}


def concat(parts: list[Tensor], shares: tuple[int, ...]) -> Tensor:
    """Concatenate tensors along dim 0, for instance q, k, v to qkv; their lengths are in proportion to `shares`."""
    if any(part.ndim == 0 for part in parts) or len({part.shape[1:] for part in parts}) != 1:
        raise ValueError("needs tensors of one shape")
    if len({part.shape[0] / share for part, share in zip(parts, shares, strict=True)}) != 1:
        raise ValueError(f"needs tensors with lengths in proportion {':'.join(map(str, shares))}")
    return torch.cat(parts, dim=0)


def split(whole: Tensor, shares: tuple[int, ...]) -> list[Tensor]:
    """Split a tensor into parts along dim 0 in proportion to `shares`; the inverse of `concat`."""
    if whole.ndim == 0 or whole.shape[0] % sum(shares):
        raise ValueError(f"cannot be split into {sum(shares)} equal parts")
    unit = whole.shape[0] // sum(shares)
    return [part.contiguous() for part in torch.split(whole, [unit * share for share in shares])]


def apply(names: tuple[str, ...], tensor: Tensor, *, key: str, inverse: bool = False) -> Tensor:
    """Apply the operations of a rule in order, or their inverses in reverse order.

    >>> apply(("linear_to_conv",), torch.zeros(10, 4), key="fc.weight").shape
    torch.Size([10, 4, 1, 1])
    """
    for name in reversed(names) if inverse else names:
        operation = OPERATIONS[name]
        try:
            tensor = operation.inverse(tensor) if inverse else operation.forward(tensor)
        except ValueError as error:
            raise WeightsError(f"'{name}' does not fit '{key}' of shape {tuple(tensor.shape)}: it {error}") from error
    return tensor
