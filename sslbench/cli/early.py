"""Refusal of mistyped paths, names and values before anything heavy is imported.

Names of other kinds, addresses, patterns and entries of the catalog are left to their readers.
"""

from collections.abc import Sequence
from pathlib import Path

from sslbench.backbones.architectures import refuse_unknown_backbone
from sslbench.backbones.named import download_hint, is_pixels, pixels_backbone, random_backbone, refuse_unknown
from sslbench.cli.options import PreprocessingFlags, RunFlags, WeightsFlags
from sslbench.cli.words import resolve_run
from sslbench.data import catalog
from sslbench.data.regular import refuse_empty_folder, refuse_missing, refuse_missing_file
from sslbench.errors import WeightsError
from sslbench.evaluation.request import RunSettings
from sslbench.runtime.resources import refuse_unknown_device
from sslbench.weights.format_name import find_format
from sslbench.weights.reading.sniff import refuse_other_kind, refuse_path


def refuse_mistyped(
    weights: Sequence[str | None] = (),
    data: Sequence[str | None] = (),
    *,
    backbone: str | None = None,
    device: str | None = None,
) -> None:
    """Refuse weights, data, a --backbone and a --device that do not exist; None is skipped.

    Raises:
        WeightsError: there is no such file of weights; the message gives the nearest files, or the nearest downloads.
        UsageError: there is no such path of data or name, or a folder of data is empty.
    """
    for word in weights:
        if word is not None:
            _refuse_missing_weights(word)
    refuse_unknown_backbone(backbone)
    if device is not None:
        refuse_unknown_device(device)
    for spec in data:
        if spec and _is_plain(spec) and spec not in catalog.entries():
            refuse_missing(spec)
            refuse_empty_folder(spec)


def _refuse_missing_weights(weights: str) -> None:
    if _is_plain(weights) and weights not in ("random", "pixels") and not Path(weights).exists():
        if hint := download_hint(weights):
            raise WeightsError(f"there is no weights file {weights}", hint)
        refuse_path(Path(weights))
    refuse_unknown(weights)


def refuse_wrong_network(format: str | None, stem: str | None) -> None:
    """Refuse a --format and a --stem that do not exist.

    Raises:
        UsageError: one does not exist.
    """
    if format is not None:
        find_format(format)
    if stem is not None:
        from sslbench.backbones.stems import parse_rule  # loads torch

        parse_rule(stem)


def checked_run(
    run: RunFlags, weights: WeightsFlags | None = None, preprocessing: PreprocessingFlags | None = None
) -> RunSettings:
    """Return the settings of a run by its flags, after a check of them and of those on network and preprocessing.

    Raises:
        UsageError: a value that is not possible.
    """
    if weights is not None:
        refuse_wrong_network(weights.format, weights.stem)
        weights.layer_names()
        if weights.weights == "random":
            random_backbone(weights.backbone)
        elif is_pixels(weights.weights or ""):
            pixels_backbone(str(weights.weights), weights.backbone)
    if preprocessing is not None:
        preprocessing.check()
    return resolve_run({}, run.settings())[0]


def refuse_other_files(weights: Sequence[str | None]) -> None:
    """Refuse files that are no weights, by their first bytes, and folders; what does not exist is left out.

    It comes last: mistakes in the command are told before those in a file.

    Raises:
        WeightsError: the message says what it is instead.
    """
    for word in weights:
        if word is not None and _is_plain(word) and Path(word).exists():
            refuse_other_kind(Path(word))


def refuse_missing_files(*files: str | None) -> None:
    """Refuse files of embeddings or labels that do not exist; '?group=COLUMN' may follow their name.

    Raises:
        UsageError: one does not exist.
    """
    for text in files:
        if text is not None and not Path(text).is_file():
            refuse_missing_file(Path(text.partition("?")[0]))


def _is_plain(text: str) -> bool:
    return not set(text) & set(":*?[]{}~")
