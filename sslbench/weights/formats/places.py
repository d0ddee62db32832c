"""Places of networks in a weights file: dicts at any key, and the keys of a dict behind a prefix."""

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

# Segments that DataParallel, DeepSpeed, torch.compile, checkpointing, FSDP and Fabric put anywhere into keys.
WRAPPERS = frozenset(
    ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_fpw_module", "_forward_module")
)

# Copies that authors evaluate, and those that they do not: DINO's teacher, timm's average, BYOL's online network,
# MoCo's query encoder. A target is neither: I-JEPA evaluates its own, BYOL does not.
_EVALUATED = frozenset(("teacher", "ema", "averaged", "online", "query", "q"))
_OTHER_COPIES = frozenset(("student", "momentum", "key", "k"))


@dataclasses.dataclass(frozen=True)
class Place:
    """Dict of a file, or what it holds behind a prefix of its keys.

    Attributes:
        where: dotted path of the dict; '' is the file itself.
        content: entries of the dict, by their keys without the prefix.
        prefix: the prefix, with its final dot; '' for the whole dict.
        outside: keys of the dict's tensors that do not start with the prefix.
    """

    where: str
    content: Mapping[str, Any]
    prefix: str = ""
    outside: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The whole path, as --format takes it behind the name of a format; it ends with a dot if it is a prefix."""
        return joined(self.where, self.prefix)

    @property
    def text(self) -> str:
        """The place in words: "at 'teacher'", "behind 'net.' at 'state_dict'"."""
        at = f"at '{self.where}'" if self.where else ""
        if self.prefix:
            return f"behind '{self.prefix}'" + (f" {at}" if at else "")
        return at or "at the top of the file"

    @functools.cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors directly in it."""
        return tensors_at(self.content, "")

    def ends_with(self, where: str) -> bool:
        """Return whether a dotted path, which is not empty, is the end of this one."""
        return f".{self.name.strip('.')}".endswith(f".{where}")

    def behind(self, prefix: str, *, without: tuple[str, ...] = ()) -> "Place":
        """Return what the dict holds behind a prefix, less what it holds behind others."""
        taken = {key: key.startswith(prefix) and not key.startswith(without) for key in self.tensors}
        inner = {key.removeprefix(prefix): self.tensors[key] for key in taken if taken[key]}
        outside = (self.prefix + key for key in taken if not taken[key])
        return Place(self.where, inner, self.prefix + prefix, (*self.outside, *outside))


def joined(where: str, inner: str) -> str:
    """Return the dotted path of an inner dict."""
    return ".".join(filter(None, (where, inner)))


def dicts(content: Mapping[str, Any]) -> list[Place]:
    """Return every dict of a file, outer ones first, without those of optimizers; a shared one is returned once."""
    return list(_dicts(content, "", set()))


def _dicts(content: Mapping[str, Any], where: str, seen: set[int]) -> Iterator[Place]:
    # A pickle may hold one dict at several keys, or inside itself.
    seen.add(id(content))
    yield Place(where, content)
    for key, value in content.items():
        if isinstance(value, Mapping) and id(value) not in seen and not is_of_optimizer(key):
            yield from _dicts(value, joined(where, key), seen)


def is_of_optimizer(key: str) -> bool:
    """Return whether a key says that its dict is the state of optimizers.

    >>> [is_of_optimizer(key) for key in ("optim", "optimizer_states", "optimizerD", "optimal_model", "optimized")]
    [True, True, True, False, False]
    """
    return re.match(r"(?i:optim(?:i[sz]ers?|s)?)(?![a-z])", key) is not None


def largest(content: Mapping[str, Any]) -> Place:
    """Return the dict of a file that holds the most tensors."""
    return max(dicts(content), key=lambda place: len(place.tensors))


def tensors_at(content: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """Return the tensors directly in the dict at a dotted path ('' is the whole content); empty if there are none."""
    level = _level(content, where)
    return {key: value for key, value in level.items() if isinstance(value, Tensor)} if level is not None else {}


def _level(content: Mapping[str, Any], where: str) -> Mapping[str, Any] | None:
    """Return the dict at a dotted path, whose keys may contain dots themselves."""
    if not where:
        return content
    value = content.get(where)
    if isinstance(value, Mapping):
        return value
    for dot in re.finditer(r"\.", where):
        value = content.get(where[: dot.start()])
        if isinstance(value, Mapping) and (level := _level(value, where[dot.end() :])) is not None:
            return level
    return None


def selected(content: Mapping[str, Any], name: str) -> list[Place]:
    """Return the places that a user means: a dict and those inside it, or a prefix of keys in one dict or in any.

    >>> from torch import zeros
    >>> [place.name for place in selected({"net": {}, "model": {"net.w": zeros(1)}}, "net.")]
    ['net']
    >>> [place.name for place in selected({"model": {"net.w": zeros(1)}}, "net")]
    ['model.net.']
    """
    everywhere, path = dicts(content), name.strip(".")
    if found := [place for place in everywhere if f"{place.where}.".startswith(f"{path}.")]:
        return found
    prefixes = [(place, f"{path}.".removeprefix(f"{place.where}.")) for place in everywhere]
    exact = [(place, prefix) for place, prefix in prefixes if place.where and prefix != f"{path}."]
    for ways in (exact, prefixes):
        if found := [inner for place, prefix in ways if (inner := place.behind(prefix)).content]:
            return found
    return []


def prefixes(keys: Iterable[str]) -> dict[str, int]:
    """Return every prefix of whole dotted segments -> number of keys that start with it, short prefixes first.

    >>> prefixes(["net.conv1.weight", "net.bias"])
    {'net.': 2, 'net.conv1.': 1}
    """
    counts = Counter(key[: dot.end()] for key in keys for dot in re.finditer(r"\.", key))
    return dict(sorted(counts.items(), key=lambda entry: len(entry[0])))


def common_prefix(keys: Iterable[str]) -> str:
    """Return the longest prefix of whole dotted segments that all keys share, with its final dot; '' if none.

    >>> common_prefix(["module.conv1.weight", "module.conv2.weight"])
    'module.'
    """
    shared: list[str] | None = None
    for key in keys:
        segments = key.split(".")[:-1]
        pairs = zip(segments, segments if shared is None else shared, strict=False)
        shared = [left for left, right in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return "".join(f"{segment}." for segment in shared or [])


def has_wrapper(key: str) -> bool:
    """Return whether a segment of a key, other than its last, is the name of a wrapper."""
    return not WRAPPERS.isdisjoint(key.split(".")[:-1])


def without_wrappers(keys: Iterable[str]) -> dict[str, str]:
    """Return key without the names of wrappers -> key; empty if there are none, or two keys would be the same.

    >>> without_wrappers(["module.layer1._orig_mod.0.weight"])
    {'layer1.0.weight': 'module.layer1._orig_mod.0.weight'}
    """
    keys = list(keys)
    found = {}
    for key in keys:
        *segments, last = key.split(".")
        found[".".join([*(segment for segment in segments if segment not in WRAPPERS), last])] = key
    return found if len(found) == len(keys) and any(map(has_wrapper, keys)) else {}


def branch(key: str, prefix: str) -> str:
    """Return the part of the file that a key outside the prefix belongs to.

    >>> branch("net.probe.0.weight", "net.backbone.")
    'net.probe.*'
    """
    segments, others = key.split("."), prefix.split(".")
    shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(segments, others, strict=False))))
    return ".".join(segments[: shared + 1]) + ("" if shared + 1 >= len(segments) else ".*")


def order(name: str) -> int:
    """Return the position of a network among several by its name: 0 for a copy that authors evaluate, 2 for others.

    >>> order("model_ema"), order("net"), order("momentum_encoder")
    (0, 1, 2)
    """
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
    if words & _EVALUATED:
        return 0
    return 2 if words & _OTHER_COPIES else 1
