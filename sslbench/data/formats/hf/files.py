"""Files of a Hugging Face data set, in a folder or the hub's cache, by split."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeVar

from sslbench.data.containers.members import split_name
from sslbench.data.containers.sniff import json_of
from sslbench.data.regular import reading
from sslbench.data.wording import one_line, some
from sslbench.errors import DataError, UsageError
from sslbench.paths import files_below

_HUB_NAME = re.compile(r"(?P<name>\w[\w.-]*/[\w.-]+)(?:/(?P<inside>[^?@]+))?(?:@(?P<revision>[^?]+))?(?P<query>\?.*)?")
_NUMBERED = re.compile(r"(?P<name>.+?)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?")
_DOWNLOAD = "?download=1"
P = TypeVar("P", bound=PurePath)


def find_files(spec: str, location: str) -> dict[str, list[Path]]:
    """Split -> its files in order. 'all' if nothing says what the split is."""
    path = Path(location).expanduser()
    if location and path.is_file():
        return {"all": [path]}
    if location and path.is_dir():
        return _in_folder(spec, path)
    return _in_folder(spec, _from_hub(spec, location))


def _from_hub(spec: str, location: str) -> Path:
    """Return the folder of a data set in the hub's cache; it is fetched only if the string has ?download=1."""
    match = _HUB_NAME.fullmatch(location)
    if match is None or match["query"] not in (None, _DOWNLOAD):
        raise UsageError(
            f"'{spec}' is neither a path nor the name of a data set",
            f"Write hf:FOLDER, hf:OWNER/NAME for one in the cache, or hf:OWNER/NAME{_DOWNLOAD} to fetch it.",
        )
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                match["name"],
                repo_type="dataset",
                revision=match["revision"],
                allow_patterns=["*.parquet", "*.arrow", "*.json"],
                local_files_only=match["query"] is None,
            )
        )
    except Exception as error:  # of whichever HTTP library huggingface_hub uses
        if match["query"] is None and isinstance(error, LocalEntryNotFoundError | FileNotFoundError):
            raise DataError(
                f"'{match['name']}' is no folder here and not in the cache of the Hugging Face hub",
                f"To download it: hf:{match['name']}{_DOWNLOAD}",
            ) from error
        raise not_reached(f"cannot get '{match['name']}' from the hub", error) from error
    return folder / match["inside"] if match["inside"] else folder


def not_reached(problem: str, error: Exception) -> DataError:
    """Return the error of a data set that the hub does not give."""
    return DataError(
        f"{problem}: {one_line(error)}",
        "Without a network: save_to_disk elsewhere, copy the folder and give it as --data hf:FOLDER.",
    )


def streamed_files(spec: str, location: str) -> dict[str, list[str]]:
    """Split -> addresses of the Parquet files of a data set of the hub; only their names are fetched."""
    match = _HUB_NAME.fullmatch(location)
    if match is None or match["query"] or Path(location).expanduser().exists():
        raise UsageError(
            f"'{spec}': streaming=1 is for data sets of the hub", "Write hf:OWNER/NAME?streaming=1; files need nothing."
        )
    import huggingface_hub

    name, inside = match["name"], PurePosixPath(match["inside"] or "")
    try:
        info = huggingface_hub.HfApi().dataset_info(name, revision=match["revision"])
    except Exception as error:  # of whichever HTTP library huggingface_hub uses
        raise not_reached(f"'{name}' cannot be streamed from the hub", error) from error
    files = sorted(PurePosixPath(each.rfilename) for each in info.siblings or ())
    files = [file for file in files if file.suffix == ".parquet" and file.is_relative_to(inside)]
    if not files:
        raise DataError(
            f"'{name}' has no .parquet file, and others are not streamed",
            f"The hub converts most data sets: hf:{name}@refs/convert/parquet?streaming=1; or fetch it: ?download=1.",
        )
    splits = _by_split(spec, inside, files)
    return {split: [_address(name, str(info.sha), file) for file in found] for split, found in splits.items()}


def _address(name: str, commit: str, file: PurePosixPath) -> str:
    """Return the address of a file for fsspec, which has the user's token; that of a commit never changes."""
    return f"hf://datasets/{name}@{commit}/{file}"


def _in_folder(spec: str, folder: Path) -> dict[str, list[Path]]:
    if (folder / "dataset_dict.json").is_file():
        splits = _json_list(folder / "dataset_dict.json", "splits")
        names = [_checked_name(folder, split) for split in splits]
        return {name: _saved(folder / name) for name in names}
    if (folder / "state.json").is_file():
        return {"all": _saved(folder)}
    with reading():
        files = sorted(file for suffix in (".parquet", ".arrow") for file in files_below(folder, suffix))
    if not files:
        raise DataError(
            f"{folder} has no .parquet or .arrow file", "Give the folder that save_to_disk or the hub wrote."
        )
    return _by_split(spec, folder, files)


def _by_split(spec: str, folder: PurePath, files: Sequence[P]) -> dict[str, list[P]]:
    """Split -> its files, by their names below a folder."""
    splits_of = {file: _split_of(folder, file) for file in files}
    # The first folder of a file is its configuration, unless it is 'data' or a split.
    parts = [file.relative_to(folder).parts for file in files]
    tops = {first for first, *rest in parts if rest and first != "data" and split_name(first) is None}
    if len(tops) > 1:
        raise DataError(
            f"{spec} has several configurations: {some(sorted(tops), 8)}", f"Name one: {folder}/{min(tops)}"
        )
    unknown = [str(file.relative_to(folder)) for file, split in splits_of.items() if split == "all"]
    if unknown and len(unknown) < len(files):
        raise DataError(f"{spec}: some files belong to a split, others not: {some(unknown)}")
    return {split: [f for f in files if splits_of[f] == split] for split in dict.fromkeys(splits_of.values())}


def _split_of(folder: PurePath, file: PurePath) -> str:
    match = _NUMBERED.fullmatch(file.stem)
    stem = match["name"] if match else file.stem
    parents = file.relative_to(folder).parts[:-1]
    # `datasets` calls files of its cache NAME-SPLIT; else the innermost folder with the name of a split decides.
    names: Iterable[str] = (stem, stem.rpartition("-")[2], *reversed(parents))
    known = next((split for name in names if (split := split_name(name))), None)
    return known or (stem if match else "all")


def _saved(folder: Path) -> list[Path]:
    """Return the files that save_to_disk lists, in its order."""
    rows = _json_list(folder / "state.json", "_data_files")
    files = [folder / _checked_name(folder, row.get("filename") if isinstance(row, dict) else None) for row in rows]
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise DataError(f"{folder}: of the files in state.json are missing: {some(missing or ['all'])}")
    return files


def _checked_name(folder: Path, name: object) -> str:
    # The list comes with the data, and must not lead out of its folder.
    if not isinstance(name, str) or not name or "/" in name or "\\" in name or name.startswith("."):
        raise DataError(f"{folder}: its list of files names {name!r:.60}, which is no name of a file in it")
    return name


def _json_list(path: Path, key: str) -> list[object]:
    content = json_of(path)
    rows = content.get(key) if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise DataError(f"{path} has no list '{key}'")
    return rows
