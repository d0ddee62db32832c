"""Folder of images beside a list: metadata.csv (Hugging Face), _classes.csv (Roboflow), or train/, test/ of these."""

import dataclasses
import os
from pathlib import Path

from sslbench.data.containers.exports import export_of
from sslbench.data.containers.sniff import SUFFIXES, is_clutter
from sslbench.data.format import SampleReader, SampleRequest, SourceFormat
from sslbench.data.formats import table
from sslbench.data.formats.folder import split_folders
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.text import printable

LISTS = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "labels.json", "labels.csv", "_classes.csv")
"""Names of the list of a folder's images."""


def recognises(spec: str) -> bool:
    """Return whether the string is a folder of images and a list, without sub-folders, or of splits that are such."""
    root = Path(spec)
    try:
        return root.is_dir() and all(_lists(folder) for folder in _folders(root).values())
    except (OSError, DataError):  # reading the folder as one without a list says what is wrong with it
        return False


def open(request: SampleRequest[table.TableOptions]) -> dict[str, Source]:
    """Return the images that the list of a folder, or of each of its splits, names."""
    folders = _folders(Path(request.spec))
    if "all" in folders:
        return _open(folders["all"], request)
    sources: dict[str, Source] = {}
    for split, folder in folders.items():
        found = _open(folder, request)
        if set(found) != {"all"}:
            raise DataError(
                f"{folder}/{_lists(folder)[0]} has a column of splits, but the folder itself is the {split} split",
                "Remove the column, or give that file as --data.",
            )
        sources[split] = found["all"]
    return sources


def _folders(root: Path) -> dict[str, Path]:
    """Return split -> folder; {"all": root} without splits."""
    return {split: root / name for split, name in split_folders(root).items()} or {"all": root}


def _lists(folder: Path) -> list[str]:
    """Return the names of a folder's lists; [] if it has sub-folders or no image, so that its files lie elsewhere."""
    names, has_image = [], False
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_clutter(entry.name):
                continue
            if entry.is_dir():
                return []
            has_image = has_image or entry.name.lower().endswith(tuple(SUFFIXES))
            if entry.name in LISTS and table.recognises(entry.path) and export_of(Path(entry.path)) is None:
                names.append(entry.name)
    return sorted(names) if has_image else []


def _open(folder: Path, request: SampleRequest[table.TableOptions]) -> dict[str, Source]:
    lists = _lists(folder)
    if len(lists) > 1:
        raise DataError(f"{folder}/ has {len(lists)} lists of its images: {some(lists)}", "Give one of them as --data.")
    sources = table.open(dataclasses.replace(request, spec=str(folder / lists[0])))
    listed = {image for source in sources.values() for image in source.ids}
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not is_clutter(entry.name)]
    unlisted = sorted(set(map(printable, (n for n in names if Path(n).suffix.lower() in SUFFIXES))) - listed)
    note = f"{folder}/: images and labels as listed in {lists[0]}"
    if unlisted:
        note += f"; {counted(len(unlisted), 'image')} not listed there left out: {some(unlisted)}"
    first = next(iter(sources))
    sources[first] = dataclasses.replace(sources[first], notes=(*sources[first].notes, note))
    return sources


FORMAT = SourceFormat(__doc__, SampleReader(recognises, open, table.TableOptions, table.COLUMNS))
