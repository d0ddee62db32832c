"""Settings of robustness, checked without torch: names and locations of sets, corruptions, videos, classifier."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sslbench import paths
from sslbench.data.corruptions import EXTRA, MAIN, SEVERITIES
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.protocols.linear import check_settings as check_linear
from sslbench.protocols.robustness.classifier import linear_settings
from sslbench.protocols.robustness.settings import Settings

VERSIONS, UNKNOWN = "versions", "unknown"
REAL = "imagenet-real"
"""Name of the set of ImageNet's validation images with several right labels (Beyer et al. 2020)."""
OBJECTNET = "objectnet"
SEVERAL_RIGHT = (REAL, OBJECTNET)
"""Sets whose images have several right classes: they have metrics in the record on test, and no record of their own."""
PERTURBED = "perturbed-"
"""Beginning of the names of sets of videos."""
GROUPS: Mapping[str, tuple[str, ...]] = {"main": tuple(MAIN), "extra": tuple(EXTRA)}

_NO_PATH = "*{?:"  # characters of strings such as 'torchvision:svhn', and of shards


def corruptions(settings: Settings) -> tuple[str, ...]:
    """Return the names of the corruptions, groups written out, each once."""
    found = (each for name in settings.corrupt for each in GROUPS.get(name, (name,)))
    return tuple(dict.fromkeys(found))


def corruption_name(name: str, severity: int) -> str:
    """Return the name of a corruption at a severity, as a set or version of images.

    >>> corruption_name("fog", 3)
    'fog-3'
    """
    return f"{name}-{severity}"


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible or have no effect, whatever the data.

    Raises:
        UsageError: names the setting.
    """
    _check_classifier(settings)
    check_linear(linear_settings(settings))
    check_changes(settings)
    check_perturbations(settings)
    if settings.neighbours < 1:
        raise UsageError(f"robustness: neighbours should be at least 1, not {settings.neighbours}")
    for setting in ("neighbours", "known"):
        if getattr(settings, setting) != getattr(Settings(), setting) and not settings.unknown:
            raise UsageError(f"robustness: {setting} has no effect without unknown images", "Add unknown=LOCATION.")
    own = {VERSIONS, UNKNOWN, "", *(corruption_name(n, s) for n in corruptions(settings) for s in settings.severities)}
    for name in settings.sets or {}:
        if name in own or is_perturbed(name):
            raise UsageError(f"robustness: a set cannot be called '{name}'")
    for name in settings.lines or {}:
        if name not in (settings.sets or {}) or name in SEVERAL_RIGHT:
            raise UsageError(f"robustness: the line of {name} has no effect without that set", f"Add {name} to sets=.")
    changed = settings.corrupt or settings.rotations or settings.scales or settings.crops
    if not (changed or settings.perturbations or settings.sets or settings.unknown):
        raise UsageError("robustness: nothing is left to measure", "Name corruptions, sets, videos or unknown images.")


def _check_classifier(settings: Settings) -> None:
    """Refuse settings of the classifier that is not chosen."""
    if settings.classifier == "linear" and settings.class_names:
        raise UsageError("robustness: class_names has no effect on a linear probe", "Add classifier=file.")
    for setting in ("c", "holdout"):
        if settings.classifier == "file" and getattr(settings, setting) != getattr(Settings(), setting):
            raise UsageError(
                f"robustness: {setting} has no effect with classifier=file: nothing is trained", "Leave it out."
            )


def check_changes(settings: Settings) -> None:
    """Refuse changes that do not exist, or are asked for twice.

    Raises:
        UsageError: names the setting.
    """
    known = (*MAIN, *EXTRA, *GROUPS)
    for name in settings.corrupt:
        if name not in known:
            raise UsageError(f"robustness: there is no corruption '{name}'", did_you_mean(name, known))
    wrong = [severity for severity in settings.severities if severity not in SEVERITIES]
    if wrong or not settings.severities:
        raise UsageError(f"robustness: severities should be some of 1, 2, 3, 4, 5, not {list(settings.severities)}")
    values = {name: getattr(settings, name) for name in ("corrupt", "severities", "rotations", "scales", "crops")}
    for name, each in values.items():
        if len(set(each)) < len(each):
            raise UsageError(f"robustness: {name} has a value twice: {list(each)}")
    if not all(np.isfinite(settings.rotations)):
        raise UsageError(f"robustness: rotations should be degrees, not {list(settings.rotations)}")
    if not all(0 < scale < 100 and scale != 1 for scale in settings.scales):
        raise UsageError(f"robustness: scales should be greater than 0 and other than 1, not {list(settings.scales)}")
    if not all(0 < share < 1 for share in settings.crops):
        raise UsageError(f"robustness: crops should lie between 0 and 1, not {list(settings.crops)}")
    if settings.corrupted and not settings.corrupt:
        raise UsageError("robustness: corrupted has no effect without corruptions", "Name some: corrupt=main.")
    if settings.severities != SEVERITIES and not settings.corrupt:
        raise UsageError("robustness: severities has no effect without corruptions", "Name some: corrupt=main.")
    corrupts = bool(settings.corrupt) and not settings.corrupted
    if settings.change_seed and not (corrupts or settings.crops):
        raise UsageError(
            "robustness: change_seed has no effect: no image is corrupted or cropped at random",
            "Name corruptions or crops, or leave change_seed out.",
        )
    _check_reference(settings)


def _check_reference(settings: Settings) -> None:
    reference = settings.reference
    if reference is None:
        return
    named = corruptions(settings)
    if not named:
        raise UsageError("robustness: reference has no effect without corruptions", "Name some: corrupt=main.")
    if missing := [name for name in named if name not in reference]:
        raise UsageError(f"robustness: reference has no errors for {', '.join(missing)}")
    for name, errors in reference.items():
        number = 1 if name == "clean" else len(SEVERITIES)
        if len(errors) != number or not all(0 < error <= 1 for error in errors):
            raise UsageError(
                f"robustness: reference.{name} should be {number} error{'s' if number > 1 else ''} from 0 to 1, "
                f"not {list(errors)}"
            )


def check_perturbations(settings: Settings) -> None:
    """Refuse settings of videos without a folder of them, and values that are not possible.

    Raises:
        UsageError: names the setting.
    """
    for name in ("frame_step", "reference_flips"):
        if getattr(settings, name) != getattr(Settings(), name) and not settings.perturbations:
            raise UsageError(f"robustness: {name} has no effect without videos", "Add perturbations=FOLDER.")
    if settings.frame_step < 1:
        raise UsageError(f"robustness: frame_step should be at least 1, not {settings.frame_step}")
    for name, value in (settings.reference_flips or {}).items():
        if not 0 < value <= 1:
            raise UsageError(f"robustness: reference_flips.{name} should be a probability from 0 to 1, not {value}")


def is_perturbed(name: str) -> bool:
    """Return whether a set of images is the frames of a perturbation."""
    return name.startswith(PERTURBED)


def located(location: str, setting: str) -> str:
    """Return a location; a name that exists only in the data folder ($SSLBENCH_DATA, else ./data) as the path there.

    Args:
        location: as for --data: a path, a name of the catalog, or a string such as 'torchvision:svhn'.
        setting: setting that has it, for messages.

    Raises:
        UsageError: it is a path with a slash, and there is nothing.
    """
    if not location or Path(location).exists():
        return location
    inside = paths.data_dir() / location
    if inside.exists():
        return str(inside)
    if "/" in location and not any(character in location for character in _NO_PATH):
        raise UsageError(
            f"{setting}={location} does not exist"
            + ("" if Path(location).is_absolute() else f", neither here nor in {paths.data_dir()}/ ($SSLBENCH_DATA)"),
            "Name an existing folder or file.",
        )
    return location
