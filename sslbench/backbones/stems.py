"""Stems for another number of channels, by the rule given as `--stem`; never done unasked."""

from collections.abc import Mapping

from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layer_spec import STEM_REMEDY, StemRule
from sslbench.errors import UsageError, WeightsError


def map_stem(weight: Tensor, channels: int, rule: StemRule) -> Tensor:
    """Map the weights of a first convolution to another number of channels.

    weight: (out, C, ...) for C channels.
    -> (out, N, ...), of the same dtype; computed in double.
    """
    has = weight.shape[1]
    exact = weight.double()
    if rule.name == "sum":
        if channels != 1:
            raise UsageError(
                f"--stem sum gives a stem for 1 channel, the backbone takes {channels}", "Use --stem average."
            )
        mapped = exact.sum(1, keepdim=True)
    elif rule.name == "average":
        mapped = (exact.mean(1, keepdim=True) * (has / channels)).repeat_interleave(channels, 1)
    elif rule.name == "repeat":
        if channels < has:
            raise UsageError(
                f"--stem repeat leads to more channels, not from {has} to {channels}",
                "Use --stem average (for 1 channel the same as sum).",
            )
        mapped = exact[:, [index % has for index in range(channels)]] * (has / channels)
    else:
        _check_bands(rule, has, channels)
        mapped = exact.new_zeros((exact.shape[0], channels, *exact.shape[2:]))
        for source, band in enumerate(rule.bands):
            if band is not None:
                mapped[:, band] = exact[:, source]
    return mapped.to(weight.dtype)


def _check_bands(rule: StemRule, has: int, channels: int) -> None:
    if len(rule.bands) != has:
        raise UsageError(
            f"--stem bands names {len(rule.bands)} bands, the stem in the file has weights for {has} channels",
            "Give one input band for each of them, '-' to leave one out.",
        )
    highest = max(band for band in rule.bands if band is not None)
    if highest >= channels:
        raise UsageError(
            f"--stem bands names band {highest}; the backbone takes {channels} channels: 0 to {channels - 1}"
        )


def fit_stem(
    tensors: Mapping[str, Tensor], backbone: Backbone, rule: StemRule | None, *, what: str
) -> tuple[dict[str, Tensor], tuple[str, ...], tuple[str, ...]]:
    """Return a file's tensors with the stem mapped to the backbone's number of channels.

    What differs in more than the number of channels is left for `fill` to refuse.

    tensors: canonical name -> tensor; not changed.
    rule: mapping of a stem with another number of channels; None refuses it.
    """
    wanted = backbone.preprocessing.channels
    changed, notes, random = dict(tensors), list[str](), list[str]()
    for name, own in _stems(backbone).items():
        given = tensors.get(name)
        shapes = [(t.ndim, t.shape[:1] + t.shape[2:]) for t in (given, own) if t is not None]
        if given is None or shapes[0] != shapes[1]:
            continue
        has = given.shape[1]
        if rule is None:
            if has != own.shape[1]:
                raise WeightsError(
                    f"{what}: its stem ('{name}') takes images of {_channels(has)}, that of {backbone.name} takes "
                    f"{_channels(own.shape[1])}",
                    f"Name a backbone for {_channels(has)}, or give the rule that maps the stem. {STEM_REMEDY}",
                )
            continue
        if own.shape[1] != wanted:
            raise UsageError(
                f"--stem: '{name}' of {backbone.name} takes {own.shape[1]} channels, but its images have {wanted}",
                "For your own network, give its attribute 'preprocessing' one mean and std per channel."
                if backbone.kind.users
                else "It does not see the image itself: leave --stem out.",
            )
        if has == wanted and rule.name != "bands":
            raise UsageError(
                f"--stem {rule.name} has no effect: the stems of {what} and {backbone.name} both take {_channels(has)}",
                "Leave it out, or name a backbone for other channels, such as --backbone resnet50,in_chans=4.",
            )
        changed[name] = own if rule.name == "random" else map_stem(given, wanted, rule)
        random += [name] if rule.name == "random" else []
        how = {
            "bands": f"bands={','.join('-' if band is None else str(band) for band in rule.bands)}, zero elsewhere",
            "sum": "sum",
            "random": "random, not from the file",
        }.get(rule.name, f"{rule.name}, times {has}/{wanted}")
        notes.append(f"stem {name} from {has} to {wanted} channels: {how}")
    if rule is not None and not notes:
        raise UsageError(f"--stem {rule.name}: {what} has no stem like that of {backbone.name}", "Leave it out.")
    return changed, tuple(notes), tuple(random)


def with_channels(name: str, channels: int) -> str:
    """Return the backbone's name for another number of channels: 'resnet50,in_chans=4'."""
    head, *options = name.split(",")
    if ":" in head and not head.startswith("timm:"):
        raise UsageError(f"'{name}' fixes its number of channels", "Build the network for the wanted channels.")
    return ",".join(
        [head, *(option for option in options if not option.startswith("in_chans=")), f"in_chans={channels}"]
    )


def _stems(backbone: Backbone) -> dict[str, Tensor]:
    """Return names and weights of the convolutions applied to the image: the backbone's list, else the first one."""
    modules = dict(backbone.module.named_modules())
    paths = backbone.stems
    if not paths:
        kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        paths = tuple([path for path, module in modules.items() if isinstance(module, kinds)][:1])
    state = backbone.module.state_dict()
    return {f"{path}.weight": state[f"{path}.weight"] for path in paths if f"{path}.weight" in state}


def _channels(count: int) -> str:
    return f"{count} channel{'s' if count > 1 else ''}"
