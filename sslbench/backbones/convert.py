"""Conversion of a weights file to another format, with the architecture that its tensors are of."""

import dataclasses
from pathlib import Path

from sslbench.backbones.build import build, check_recorded
from sslbench.backbones.layer_spec import parse_stem
from sslbench.backbones.load import architecture, load_file, recorded_preprocessing
from sslbench.backbones.stems import fit_stem, with_channels
from sslbench.errors import UsageError
from sslbench.weights.convert import ConversionReport, check_output, rewrite
from sslbench.weights.formats.recognise import Recognised, recognise
from sslbench.weights.reading import files


def convert(  # noqa: PLR0913  the options of the command
    src: Path,
    dst: Path,
    *,
    to: str,
    format: str | None = None,
    backbone: str | None = None,
    stem: str | None = None,
    channels: int | None = None,
    keep_heads: bool = False,
    overwrite: bool = False,
    trust_pickle: bool = False,
) -> ConversionReport:
    """Write the backbone in `src` to `dst` in another format; `dst` appears complete and verified, or not at all.

    Args:
        src: weights file.
        dst: file to write.
        to: format of `dst`.
        format: format of `src`; recognised when None.
        backbone: architecture; read from `src` when None.
        stem: rule that adapts the first convolution to `channels`.
        channels: number of input channels of `dst`; None: 1 for the rule 'sum'.
        keep_heads: keep heads that the target format can name.
        overwrite: replace `dst` if it exists.
        trust_pickle: run code in the pickle of `src`.
    """
    check_output(src, dst, to=to, overwrite=overwrite)
    file = files.read(src, trust_pickle=trust_pickle)
    expected = None
    if backbone is not None:
        expected = {name: tuple(tensor.shape) for name, tensor in build(backbone).module.state_dict().items()}
    found = recognise(file, expected=expected, format=format)
    if stem is not None:
        found, backbone = _mapped_stem(found, str(src), rule=stem, channels=channels, backbone=backbone)
        # The written file has the adapted stem, whose shape is no longer that of the built network.
        expected = expected and {name: tuple(tensor.shape) for name, tensor in found.canonical.items()}
    preprocessing = recorded_preprocessing(file) if stem is None else None
    if to == "sslbench":
        if stem is None:
            preprocessing = load_file(file, backbone=backbone, format=format).preprocessing
        backbone = backbone or architecture(found, str(src))
    return rewrite(
        file,
        found,
        dst,
        to=to,
        keep_heads=keep_heads,
        backbone=backbone,
        expected=expected,
        preprocessing=preprocessing,
    )


def _mapped_stem(
    recognised: Recognised, weights: str, *, rule: str, channels: int | None, backbone: str | None
) -> tuple[Recognised, str]:
    """Map the stem of recognised weights to another number of channels.

    channels: to which number; None: 1 for 'sum'.
    -> The same with another stem, and the name of the backbone that takes it.
    """
    stem = parse_stem(rule)
    if stem.name == "random":
        raise UsageError("--stem random does not apply to convert, which adds no new values")
    channels = 1 if stem.name == "sum" and channels is None else channels
    if channels is None:
        raise UsageError(f"--stem {rule} needs --in-chans, the number of channels", "For example --in-chans 4.")
    name = with_channels(backbone or architecture(recognised, weights), channels)
    if backbone is None:
        check_recorded(name, weights, numbers=sum(tensor.numel() for tensor in recognised.canonical.values()))
    built = build(name)
    canonical, mapped, _ = fit_stem(recognised.canonical, built, stem, what=weights)
    return dataclasses.replace(recognised, canonical=canonical, changes=mapped), built.name
