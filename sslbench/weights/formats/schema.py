"""The schema of a rename table's YAML, and the checks that need no weights: above all, that rules can be undone."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from sslbench.config import build
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.weights.formats import operations, patterns
from sslbench.weights.formats.patterns import Pattern


@dataclasses.dataclass(frozen=True)
class Detect:
    """One way in which a format shows itself: all of `present` fit some full key, and none of `absent` does."""

    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Write:
    """What stands beside the state dict in a file that is written; the state dict lies at the first `state_dict` place.

    Attributes:
        torch: entries at the top of a file of torch.save.
        pickle: entries at the top of a .pkl of numpy arrays; None: the format has no such files.
    """

    torch: dict[str, str | bool] = dataclasses.field(default_factory=dict)
    pickle: dict[str, str | bool] | None = None


@dataclasses.dataclass(frozen=True)
class Network:
    """One of several copies of the backbone in a file; what is not said here, the table says for all of them.

    Attributes:
        state_dict: where its tensors may lie.
        prefix: how its keys begin.
        preferred: taken before the others when a file holds several, although files are written as the first one.
    """

    state_dict: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    preferred: bool = False


@dataclasses.dataclass(frozen=True)
class Input:
    """Images that the networks of a format were trained on; what is not said here is the backbone's own.

    Attributes:
        space: 'RGB'; 'BGR': the file's first convolution takes blue first, and a rule turns it round on loading;
            'lightness': one channel, L of CIE Lab less 50; 'any': all kinds of networks have the format.
        mean: of the values 0 to 1, in the order red, green, blue.
        std: the same.
        resize: the shorter side in the authors' evaluation transform, for a crop of 224; other sizes in proportion.
        interpolation: of that resize.
        note: what users must know where the file does not tell its input space.
    """

    space: Literal["RGB", "BGR", "lightness", "any"]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    resize: int = 0
    interpolation: Literal["", "bilinear", "bicubic"] = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Strides:
    """Places of the strides in the ResNets of a format.

    Attributes:
        bottleneck: the convolution of a block with stride 2: '3x3' as in torchvision, '1x1' as in MSRA's own ResNets.
        last: stride of the last stage.
    """

    bottleneck: Literal["3x3", "1x1"] = "3x3"
    last: Literal[1, 2] = 2


@dataclasses.dataclass(frozen=True)
class Variant:
    """Networks with the same key names that take other images or have other strides.

    A variant shows by the channels of the first convolution or by entries at the top of the file; one that has neither
    can only be named: 'FORMAT:VARIANT'. Where a table has such variants and none shows, the user must choose.

    Attributes:
        title: what a person calls these networks.
        channels: of the images, where the variant shows by them; 0: it does not.
        marker: entries at the top of the file by which it shows.
        input: in place of the table's.
        strides: in place of the table's.
        rules: take the place of the table's rules with the same canonical keys.
        note: what whoever uses the weights should know.
    """

    title: str
    channels: int = 0
    marker: dict[str, str | bool] = dataclasses.field(default_factory=dict)
    input: Input | None = None
    strides: Strides | None = None
    rules: tuple[tuple[tuple[str, ...], ...], ...] = ()
    note: str = ""

    @property
    def shows(self) -> bool:
        """Whether a file tells that it is of this variant."""
        return bool(self.channels or self.marker)


@dataclasses.dataclass(frozen=True)
class TableFile:
    """What a table's YAML may hold; model_converters/README.md explains each entry.

    Attributes:
        title: what a person calls the format.
        source: address where the format is defined.
        note: what whoever uses the weights should know; every report of loading says it.
        rules: [foreign, canonical] or [foreign, canonical, operations]; a list of keys on one side is concatenated.
        state_dict: where the tensors may lie: dotted paths, '' is the file itself; the first place that fits counts.
        heads_at: dotted paths to dicts that hold nothing but heads.
        marker: entries at the top of the file which, when equal, settle that it has this format.
        detect: one of these must hold; none given: it is enough that every key fits.
        prefix: how all keys of the backbone begin, one for the whole file; rules and heads are written without it. The
            first is the one that is written.
        networks: copies of the backbone that files of this format hold (query and key encoder, teacher and student), by
            name. The first that a file holds is taken, and the others are left out; 'FORMAT:NETWORK' asks for another.
        heads: patterns of keys that are heads: left out of the backbone and kept on request.
        drop: patterns of full keys (with any prefix) that belong to no backbone: queues, momentum copies.
        fallback: looked at only when no other table fits.
        needs_backbone: usable only when the backbone's own names are known and most of them are in the file.
        write: what else files of this format hold when they are written.
        input: images that the networks were trained on.
        strides: of ResNets.
        variants: networks that share the key names and take other images or have other strides, by name.
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
    drop: tuple[str, ...] = ()
    fallback: bool = False
    needs_backbone: bool = False
    write: Write = dataclasses.field(default_factory=Write)
    input: Input | None = None
    strides: Strides | None = None
    variants: dict[str, Variant] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Rule:
    """One parsed rule: foreign and canonical keys have the same holes; one side has one key.

    Attributes:
        foreign: one key, or several that are concatenated along dim 0 to the canonical one.
        canonical: one key, or several into which the foreign one is split.
        operations: applied in this order on the way to the canonical name (after concatenating, before splitting).
    """

    foreign: tuple[Pattern, ...]
    canonical: tuple[Pattern, ...]
    operations: tuple[str, ...]

    def __str__(self) -> str:
        sides = [" + ".join(p.text for p in side) for side in (self.foreign, self.canonical)]
        return f"[{sides[0]}, {sides[1]}]"


def parse(values: Mapping[str, Any], *, where: str) -> tuple[TableFile, tuple[Rule, ...]]:
    """A table from the mapping in its YAML, and its rules.

    Raises:
        UsageError: an unknown or missing key, a pattern or rule that makes no sense, a rule that cannot be undone.
    """
    file = build(TableFile, values, where)
    if not file.state_dict or not file.prefix or not file.rules:
        raise UsageError(f"{where}: state_dict, prefix and rules must not be empty")
    rules = tuple(_parse_rule(parts, f"{where}: rule {number + 1}") for number, parts in enumerate(file.rules))
    if any(":" in name for name in (*file.networks, *file.variants)) or set(file.networks) & set(file.variants):
        raise UsageError(f"{where}: names of networks and variants must differ, and not hold ':'")
    for name, variant in file.variants.items():
        if variant.shows and variant.rules:
            raise UsageError(f"{where}: variant '{name}' shows in the file, so it cannot have rules of its own")
    for text in (*file.heads, *file.drop, *(t for way in file.detect for t in (*way.present, *way.absent))):
        _parse_pattern(text, where)
    _refuse_twins(rules, where)
    return file, rules


def take(file: TableFile, network: str) -> TableFile:
    """The table for one of its networks: the prefixes of the others are dropped."""
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
    """Return the table of one of its variants, and its rules.

    Raises:
        UsageError: a rule of the variant makes no sense.
    """
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


def _refuse_twins(rules: tuple[Rule, ...], where: str) -> None:
    """Two rules with the same key on one side: each key that fits one fits the other."""
    for side in ("foreign", "canonical"):
        seen: dict[str, Rule] = {}
        for rule in rules:
            for pattern in rule.foreign if side == "foreign" else rule.canonical:
                shape = pattern.shape()
                if shape in seen:
                    raise UsageError(f"{where}: two rules have the same {side} key: {seen[shape]} and {rule}")
                seen[shape] = rule


def _parse_rule(parts: tuple[tuple[str, ...], ...], where: str) -> Rule:
    if len(parts) not in (2, 3):
        raise UsageError(f"{where}: should be [foreign, canonical] or [foreign, canonical, operations]")
    foreign, canonical = (tuple(_parse_pattern(text, where) for text in side) for side in parts[:2])
    rule = Rule(foreign, canonical, parts[2] if len(parts) == 3 else ())
    if not foreign or not canonical or (len(foreign) > 1 and len(canonical) > 1):
        raise UsageError(f"{where}: {rule} should have one key on at least one side")
    for pattern in (*foreign, *canonical):
        if sorted(pattern.holes) != sorted(foreign[0].holes):
            raise UsageError(f"{where}: {rule} cannot be undone: both sides must have the same holes")
    for operation in rule.operations:
        if operation not in operations.OPERATIONS:
            raise UsageError(
                f"{where}: unknown operation '{operation}'", did_you_mean(operation, operations.OPERATIONS)
            )
    return rule


def _parse_pattern(text: str, where: str) -> Pattern:
    try:
        return patterns.parse(text)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
