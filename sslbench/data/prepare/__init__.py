"""`sslbench data prepare`: official archives that the user downloaded, laid out as the benchmarks look for them.

Nothing is downloaded. Files go into a hidden folder beside the final one, which gets its name when all of them are
there; a run that was interrupted continues.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sslbench import paths
from sslbench.config import read_yaml
from sslbench.data.prepare import ade20k, listed, sets
from sslbench.data.prepare.layout import Maker, Official, archive_space, find_archives, prepare_folder, refuse_existing
from sslbench.errors import UsageError
from sslbench.names import did_you_mean

MAKERS: Mapping[str, Maker] = {
    "ade20k_panoptic": Maker(ade20k.ARCHIVES, ade20k.files),
    "cars196": Maker(listed.CARS_ARCHIVES, listed.cars196),
    "cuhk03": Maker(sets.CUHK03_ARCHIVES, sets.cuhk03, 28_193 * 64_000),
    "cub": Maker(listed.CUB_ARCHIVES, listed.cub),
    "cub200": Maker(listed.CUB_ARCHIVES, listed.cub200),
    "dsprites_location": Maker(sets.DSPRITES_ARCHIVES, sets.dsprites_location, sets.DSPRITES_SPACE),
    "dsprites_orientation": Maker(sets.DSPRITES_ARCHIVES, sets.dsprites_orientation, sets.DSPRITES_SPACE),
    "imagenet1k": Maker(sets.IMAGENET_ARCHIVES, sets.imagenet1k),
    "nabirds": Maker(listed.NABIRDS_ARCHIVES, listed.nabirds),
    "places205": Maker(sets.PLACES_ARCHIVES, sets.places205),
    "small_norb_azimuth": Maker(sets.NORB_ARCHIVES, sets.small_norb_azimuth, sets.NORB_SPACE),
    "small_norb_elevation": Maker(sets.NORB_ARCHIVES, sets.small_norb_elevation, sets.NORB_SPACE),
    "sop": Maker(listed.SOP_ARCHIVES, listed.sop),
    "stanford_dogs": Maker(listed.DOGS_ARCHIVES, listed.stanford_dogs),
    "ucf101": Maker(sets.UCF_ARCHIVES, sets.ucf101, 13_320 * 40_000),
    **{name: Maker(kind.archives, kind.files) for name, kind in sets.SETS.items()},
}
"""Data set -> its archives and its files."""
_BENCHMARKS = (("data", "_"), ("retrieval", ""), ("anomaly", ""))  # folder, and the beginning of the file's name


_WITHOUT_BENCHMARK: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "ade20k_panoptic": (ade20k.FOLDER, ade20k.SAMPLES),
    "cuhk03": (sets.CUHK03_FOLDER, sets.CUHK03_SAMPLES),
    **{name: (kind.folder, kind.samples) for name, kind in sets.SETS.items() if kind.samples},
    "mvtec_loco": (sets.SETS["mvtec_loco"].folder, {}),  # known by its checksum
}
"""Data set -> its folder and its images."""


def archives_of(name: str) -> tuple[Official, ...]:
    """Return the archives that a data set is made of."""
    if name not in MAKERS:
        raise UsageError(f"there is no layout for a data set called '{name}'", did_you_mean(name, MAKERS))
    return MAKERS[name].archives


def prepare(name: str, archives: Sequence[Path], *, root: Path | None = None, verify: bool = True) -> Path:
    """Write a data set's folder and return it.

    Args:
        name: of the data set, as in benchmarks/data or benchmarks/retrieval.
        archives: files, or folders that hold them, under their official names.
        root: parent of the folder; None: the benchmarks' data folder, $SSLBENCH_DATA or ./data.
        verify: compare checksums, where they are published, and the number of images; off for a part of a data set.
    """
    official = archives_of(name)
    settings = _settings(name)
    root = root or paths.data_dir()
    place = place_of(name, root).relative_to(root).as_posix()
    refuse_existing(root / place)
    found = find_archives(name, official, archives, verify=verify)
    samples = settings["samples"]
    if place == settings.get("test_folder"):  # benchmarks that train on other data
        samples = {"test": samples["test"]}
    # Checksums already tell complete archives.
    counted = verify and not all(archive.md5 for archive in official)
    maker = MAKERS[name]
    space = maker.space or archive_space(found)
    return prepare_folder(root / place, samples if counted else {}, maker.files(found), space)


def place_of(name: str, root: Path) -> Path:
    """Return the folder of a data set below the data folder."""
    return root / (sets.SETS[name].folder if name in sets.SETS else str(_settings(name)["folder"]))


def samples_of(name: str) -> dict[str, int]:
    """Return the expected number of images of each part; {} where it is not known."""
    return dict(_settings(name)["samples"] or {})


def _settings(name: str) -> dict[str, Any]:
    """Return the data set's file among the benchmarks; the user's has precedence.

    Some data sets have no benchmark.
    """
    if name in _WITHOUT_BENCHMARK:
        folder, samples = _WITHOUT_BENCHMARK[name]
        return {"folder": folder, "samples": samples}
    for root in paths.search_path("benchmarks"):
        for file in (root / folder / f"{start}{name}.yaml" for folder, start in _BENCHMARKS):
            if file.is_file():
                return read_yaml(file)
    raise UsageError(f"benchmarks/data/_{name}.yaml is missing")


def described() -> list[str]:
    """Return a line for each data set: its name and its archives."""
    width = max(map(len, MAKERS))
    return [
        f"{name:<{width}}  {', '.join(archive.name for archive in maker.archives)}"
        for name, maker in sorted(MAKERS.items())
    ]


__all__ = ["MAKERS", "archives_of", "described", "place_of", "prepare", "samples_of"]
