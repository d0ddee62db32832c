"""Schema of a rename table's YAML, and its checks that need no weights: above all, that rules are invertible."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from sslbench.config import build
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.weights.formats import rules
from sslbench.weights.formats.rules import Pattern

# Names of heads in the order of the forward pass: projection head or classifier, prediction head.
HEAD_NAMES = ("head", "predictor")


@dataclasses.dataclass(frozen=True)
class Detect:
    """Detection rule: every pattern of `present` matches some full key, and none of `absent` does."""

    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Write:
    """Entries beside the state dict in a written file; the state dict is stored at the first `state_dict` place.

    Attributes:
        torch: top-level entries of a torch.save file.
        pickle: top-level entries of a .pkl of numpy arrays; None if the format has no such files.
    """

    torch: dict[str, str | bool] = dataclasses.field(default_factory=dict)
    pickle: dict[str, str | bool] | None = None


@dataclasses.dataclass(frozen=True)
class Network:
    """One of several copies of the backbone in a file; empty entries default to the table's.

    Attributes:
        preferred: selected before the others if a file holds several, although the first network is the one written.
    """

    state_dict: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    preferred: bool = False


@dataclasses.dataclass(frozen=True)
class InputImages:
    """Images that the networks of a format were trained on; empty entries default to the backbone's own.

    Attributes:
        space: 'RGB'; 'BGR': the file's first convolution expects blue first, and a rule flips it on loading;
            'lightness': one channel, L of CIE Lab minus 50; 'any': networks of all kinds use the format.
        mean: mean of the pixel values in [0, 1], in the order red, green, blue.
        resize: shorter side in the authors' evaluation transform for a crop of 224 pixels; scaled for other sizes.
        note: note for users if the file does not determine its input space.
    """

    space: Literal["RGB", "BGR", "lightness", "any"]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    resize: int = 0
    interpolation: Literal["", "bilinear", "bicubic"] = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Strides:
    """Strides of the ResNets of a format.

    Attributes:
        bottleneck: convolution of a bottleneck block that has stride 2: '3x3' in torchvision, '1x1' in MSRA's ResNets.
    """

    bottleneck: Literal["3x3", "1x1"] = "3x3"
    last: Literal[1, 2] = 2


@dataclasses.dataclass(frozen=True)
class HeadLayers:
    """Layers of a head: linear layers with an activation between them, and batch or layer norms.

    Attributes:
        keys: alternative patterns of the keys, without the backbone's prefix or whole; `{leaf}` is the tensor of a
            layer, other holes are the numbers of the layers.
        activation: activation before each linear layer but the first.
        absent: patterns of keys that files with another kind of head have.
        network: network of the file that the head belongs to; '' is each.
        classifier: the outputs are scores of classes.
    """

    keys: tuple[str, ...]
    activation: Literal["relu", "gelu"] = "relu"
    absent: tuple[str, ...] = ()
    network: str = ""
    classifier: bool = False


@dataclasses.dataclass(frozen=True)
class Variant:
    """Networks with the same key names but other input images or strides.

    A variant is detected by the channels of the first convolution or by top-level entries of the file; one without
    either must be named by the user: 'FORMAT:VARIANT'.

    Attributes:
        channels: input channels that identify the variant; 0 if they do not.
        marker: top-level entries that identify the variant.
        input: replaces the table's `input`.
        strides: replaces the table's `strides`.
        rules: replace the table's rules with the same canonical keys.
    """

    title: str
    channels: int = 0
    marker: dict[str, str | bool] = dataclasses.field(default_factory=dict)
    input: InputImages | None = None
    strides: Strides | None = None
    rules: tuple[tuple[tuple[str, ...], ...], ...] = ()
    note: str = ""

    @property
    def shows(self) -> bool:
        """Detectability of the variant from a file alone."""
        return bool(self.channels or self.marker)


@dataclasses.dataclass(frozen=True)
class TableFile:
    """Content of a table's YAML; model_converters/README.md explains each entry.

    Attributes:
        source: address of the format's definition.
        note: note for users of the weights, shown in every load report.
        rules: [foreign, canonical] or [foreign, canonical, operations]; several keys on one side are concatenated.
        state_dict: dotted paths of the state dict, '' is the file itself; the first one that matches is used.
        heads_at: dotted paths to dicts that hold heads only.
        marker: top-level entries that identify the format.
        detect: alternatives, one of which must hold; if empty, it is enough that every key matches.
        prefix: alternative prefixes of the backbone's keys, one per file; rules and heads are written without it. The
            first one is used for writing.
        networks: copies of the backbone (query and key encoder, teacher and student), by name. The first one in a file
            is used; 'FORMAT:NETWORK' selects another.
        heads: patterns of head keys, which are left out of the backbone and kept on request.
        head_layers: layers of the heads that `--layers head.0` evaluates: `head` (projection head or classifier) and
            `predictor`, which follows it.
        gem_power: key, among the heads, of the learnt power of GeM pooling; '' if the format has none.
        drop: patterns of full keys (with any prefix) outside the backbone: queues, momentum copies.
        fallback: tried only if no other table matches.
        needs_backbone: usable only if the backbone's own names are known and most of them are in the file.
        write: entries beside the state dict in written files.
        input: images that the networks were trained on.
        variants: networks with the same key names but other input images or strides, by name.
        class_position: the class token of models with register tokens has a position embedding; timm's have none.
    """

    title: str
    source: str
    rules: tuple[tuple[tuple[str, ...], ...], ...]
    state_dict: tuple[str, ...] = ("",)
    heads_at: tuple[str, ...] = ()
    marker: dict[str, str] | None = None
    detect: tuple[Detect, ...] = ()
    prefix: tuple[str, ...] = ("",)
    networks: dict[str, Network] = dataclasses.field(default_factory=dict)
    note: str = ""
    heads: tuple[str, ...] = ()
    head_layers: dict[str, HeadLayers] = dataclasses.field(default_factory=dict)
    gem_power: str = ""
    drop: tuple[str, ...] = ()
    fallback: bool = False
    needs_backbone: bool = False
    write: Write = dataclasses.field(default_factory=Write)
    input: InputImages | None = None
    strides: Strides | None = None
    variants: dict[str, Variant] = dataclasses.field(default_factory=dict)
    class_position: bool = True


@dataclasses.dataclass(frozen=True)
class Rule:
    """Parsed rule: foreign and canonical keys have the same holes; at least one side has a single key.

    Attributes:
        foreign: one key, or several whose tensors are concatenated along dim 0.
        canonical: one key, or several into which the foreign tensor is split.
        operations: operations in the order from foreign to canonical (after concatenation, before splitting).
        shares: shares of the side with several keys in the single tensor of the other; a key written twice has two.
    """

    foreign: tuple[Pattern, ...]
    canonical: tuple[Pattern, ...]
    operations: tuple[str, ...]
    shares: tuple[int, ...] = (1,)

    def __str__(self) -> str:
        sides = [" + ".join(p.text for p in side) for side in (self.foreign, self.canonical)]
        return f"[{sides[0]}, {sides[1]}]"


def parse(values: Mapping[str, Any], *, where: str) -> tuple[TableFile, tuple[Rule, ...]]:
    """Parse and check a table's YAML; return it with its parsed rules."""
    file = build(TableFile, values, where)
    if not file.state_dict or not file.prefix or not file.rules:
        raise UsageError(f"{where}: state_dict, prefix and rules must not be empty")
    rules = tuple(_parse_rule(parts, f"{where}: rule {number + 1}") for number, parts in enumerate(file.rules))
    if any(":" in name for name in (*file.networks, *file.variants)) or set(file.networks) & set(file.variants):
        raise UsageError(f"{where}: names of networks and variants must differ, and not hold ':'")
    for name, variant in file.variants.items():
        # It is detected in the canonical tensors, when the rules have been applied already.
        if variant.shows and variant.rules:
            raise UsageError(f"{where}: variant '{name}' shows in the file, so it cannot have rules of its own")
    for text in (*file.heads, *file.drop, *(t for way in file.detect for t in (*way.present, *way.absent))):
        _parse_pattern(text, where)
    _check_head_layers(file, where)
    # Files are read by one side and written by the other, so each has to lead to one rule.
    for side in ("foreign", "canonical"):
        seen: dict[str, Rule] = {}
        for rule in rules:
            for pattern in rule.foreign if side == "foreign" else rule.canonical:
                shape = pattern.shape()
                if shape in seen:
                    raise UsageError(f"{where}: two rules have the same {side} key: {seen[shape]} and {rule}")
                seen[shape] = rule
    return file, rules


def _check_head_layers(file: TableFile, where: str) -> None:
    """Raise UsageError if a head has an unknown name or network, or a key without the hole for its tensors."""
    for name, head in file.head_layers.items():
        if name not in HEAD_NAMES:
            raise UsageError(f"{where}: head_layers has '{name}'", did_you_mean(name, HEAD_NAMES))
        if head.network and head.network not in file.networks:
            raise UsageError(f"{where}: head_layers.{name} has no network '{head.network}'")
        for text in (*head.keys, *head.absent):
            if "leaf" not in _parse_pattern(text, where).holes:
                raise UsageError(f"{where}: head_layers.{name}: '{text}' has no hole {{leaf}}")


def take(file: TableFile, network: str) -> TableFile:
    """Return the table restricted to one of its networks; keys with another network's prefix are dropped."""
    chosen = file.networks[network]
    prefixes = chosen.prefix or file.prefix
    others = [prefix for other in file.networks.values() for prefix in other.prefix if prefix not in prefixes]
    drop = [f"{prefix}{{rest*}}" for prefix in dict.fromkeys(others) if prefix and prefix.endswith(".")]
    return dataclasses.replace(
        file,
        state_dict=chosen.state_dict or file.state_dict,
        prefix=prefixes,
        drop=(*file.drop, *(text for text in drop if text not in file.drop)),
    )


def take_variant(
    file: TableFile, rules: tuple[Rule, ...], name: str, *, where: str
) -> tuple[TableFile, tuple[Rule, ...]]:
    """Return the table of one of its variants, and its rules."""
    chosen = file.variants[name]
    own = tuple(_parse_rule(parts, f"{where}: variant {name}") for parts in chosen.rules)
    replaced = {pattern.shape() for rule in own for pattern in rule.canonical}
    kept = tuple(rule for rule in rules if not replaced & {pattern.shape() for pattern in rule.canonical})
    changed = dataclasses.replace(
        file,
        input=chosen.input or file.input,
        strides=chosen.strides or file.strides,
        note="; ".join(text for text in (file.note, chosen.note) if text),
    )
    return changed, (*kept, *own)


def _parse_rule(parts: tuple[tuple[str, ...], ...], where: str) -> Rule:
    if len(parts) not in (2, 3):
        raise UsageError(f"{where}: should be [foreign, canonical] or [foreign, canonical, operations]")
    foreign, canonical = (tuple(_parse_pattern(text, where) for text in dict.fromkeys(side)) for side in parts[:2])
    several = parts[0] if len(foreign) > 1 else parts[1]
    shares = tuple(several.count(text) for text in dict.fromkeys(several))
    rule = Rule(foreign, canonical, parts[2] if len(parts) == 3 else (), shares)
    if not foreign or not canonical or (len(foreign) > 1 and len(canonical) > 1):
        raise UsageError(f"{where}: {rule} should have one key on at least one side")
    for pattern in (*foreign, *canonical):
        if sorted(pattern.holes) != sorted(foreign[0].holes):
            raise UsageError(f"{where}: {rule} is not invertible: both sides must have the same holes")
    for operation in rule.operations:
        if operation not in rules.OPERATIONS:
            raise UsageError(f"{where}: unknown operation '{operation}'", did_you_mean(operation, rules.OPERATIONS))
    return rule


def _parse_pattern(text: str, where: str) -> Pattern:
    try:
        return rules.parse_pattern(text)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
