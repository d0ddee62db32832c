"""Changed versions of the test images that the settings ask for, and the scores of a classifier on them."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data import geometry
from sslbench.data.corruptions import EXTRA, MAIN, SEVERITIES, SMALLEST, code_of, corrupt
from sslbench.data.decode.transforms import output_size
from sslbench.data.versions import ByteImage, ImageChange
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.preprocessing import Preprocessing
from sslbench.protocols.robustness.settings import Settings

GROUPS: Mapping[str, tuple[str, ...]] = {"main": tuple(MAIN), "extra": tuple(EXTRA)}


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


def corruption_changes(settings: Settings) -> dict[tuple[str, int], ImageChange]:
    """Return the change of each corruption and severity; {} where the corrupted images are files."""
    if settings.corrupted:
        return {}
    return {
        (name, severity): ImageChange(
            corruption_name(name, severity), functools.partial(_corrupt, name=name, severity=severity), code_of(name)
        )
        for name in corruptions(settings)
        for severity in settings.severities
    }


def geometric_changes(settings: Settings) -> dict[str, ImageChange]:
    """Return the rotations, scales and crops by their names in metrics: 'rotation,15'."""
    code = f"geometry {geometry.GEOMETRY_VERSION}"
    found = {}
    for name, values, apply in (
        ("rotation", settings.rotations, _rotate),
        ("scale", settings.scales, _rescale),
        ("crop", settings.crops, _crop),
    ):
        for value in values:
            change = ImageChange(f"{name}-{value:g}", functools.partial(apply, value=value), code)
            found[f"{name},{value:g}"] = change
    return found


def _corrupt(image: ByteImage, rng: np.random.Generator, *, name: str, severity: int) -> ByteImage:
    return corrupt(image, name, severity, rng)


def _rotate(image: ByteImage, rng: np.random.Generator, *, value: float) -> ByteImage:
    return geometry.rotate(image, value)


def _rescale(image: ByteImage, rng: np.random.Generator, *, value: float) -> ByteImage:
    return geometry.rescale(image, value)


def _crop(image: ByteImage, rng: np.random.Generator, *, value: float) -> ByteImage:
    return geometry.crop(image, value, rng)


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


def check_pictures(settings: Settings, preprocessing: Preprocessing) -> None:
    """Refuse images that the changes cannot be applied to.

    Raises:
        UsageError: other channels than RGB or grey, or corruptions of pictures that are too small.
    """
    if preprocessing.channels not in (1, 3):
        raise UsageError(
            f"robustness: images are changed in RGB, and the backbone takes {preprocessing.channels} bands"
        )
    size = output_size(preprocessing)
    if corruption_changes(settings) and size is not None and min(size) < SMALLEST:
        raise UsageError(
            f"robustness: corruptions need {SMALLEST} pixels a side, and the backbone takes {size[0]}x{size[1]}",
            f"Give --resize {SMALLEST} --crop {SMALLEST} or more, or 'corrupt=[]'.",
        )


def reference_errors(settings: Settings, named: Sequence[str]) -> tuple[FloatArray | None, float | None]:
    """Return the errors (C, S) of the reference for corruptions at the severities asked for, and on clean images."""
    if settings.reference is None:
        return None, None
    places = [severity - 1 for severity in settings.severities]
    errors = np.array([settings.reference[name] for name in named])[:, places]
    return errors, settings.reference["clean"][0] if "clean" in settings.reference else None
