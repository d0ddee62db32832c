"""Opening of images for signals of their pixels: computed from the images, or read from maps of numbers beside them."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from sslbench.data.depth.location import holds_values, open_depth, open_normals
from sslbench.data.location import locate
from sslbench.data.maps import pairs
from sslbench.data.maps.layout import in_order
from sslbench.data.open import are_label_maps, open_data, open_label_maps
from sslbench.data.signal_maps import TASKONOMY, is_taskonomy, open_signal_maps
from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.targets.pixel_values import Orientations, Signals


def open_signals(spec: str) -> dict[str, Source]:
    """Open images for signals of their pixels; labels of other kinds are left out.

    Args:
        spec: any images, of which the signal is computed. Where maps lie beside them (images/ and labels/, depth/ or
            normals/; Taskonomy's rgb/), the images alone count. With `DATA?maps=NAME` the files of that folder are the
            signal, see `signal_maps`.

    Raises:
        UsageError: the location does not exist, or its format is not known.
        DataError: a file is damaged.

    >>> open_signals("textures:images")["test"].target.name
    'signal'
    """
    location = locate(spec)
    if "maps" in location.options:
        return open_signal_maps(location)
    return _as(_images_alone(spec), Signals)


def open_orientations(spec: str) -> dict[str, Source]:
    """Open images whose orientations are computed from them; maps and labels beside them are left out."""
    return _as(_images_alone(spec), Orientations)


def _images_alone(spec: str) -> Mapping[str, Source]:
    location = locate(spec)
    root = Path(location.text)
    if "maps" in location.options:
        raise UsageError(f"{spec}: orientations are computed from the images, so maps= has no effect", "Leave it out.")
    if is_taskonomy(root):
        if other := location.options.keys() - {"images", "partition"}:
            raise UsageError(f"{spec}: {min(other)}= has no effect without maps=", "Name the maps, or leave it out.")
        maps = next(name for name in TASKONOMY if (root / name).is_dir())
        options = {"maps": maps, "valid": "", **location.options}
        return open_signal_maps(dataclasses.replace(location, options=options))
    if not location.options and root.is_dir() and pairs.recognises(root):
        return _of_places(location.text, pairs.find_places(root))
    if (quantity := holds_values(spec)) is not None:
        return open_depth(spec) if quantity == "depth" else open_normals(spec)
    return open_label_maps(spec) if are_label_maps(spec) else open_data(spec)


def _of_places(text: str, places: list[pairs.Place]) -> dict[str, Source]:
    """Return the images of images/, or of train/images/ and so on, with the name of the whole location."""
    if [place.split for place in places] == ["all"]:
        return open_data(str(places[0].images))
    found = {}
    for place in places:
        for part in open_data(str(place.images)).values():
            found[place.split] = dataclasses.replace(part, name=f"{text} ({place.split})")
    return in_order(found)


def _as(sources: Mapping[str, Source], kind: type[Signals] | type[Orientations]) -> dict[str, Source]:
    return {split: dataclasses.replace(found, target=kind(len(found))) for split, found in sources.items()}
