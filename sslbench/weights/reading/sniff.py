"""Detection of a file's container from its first bytes, and refusal of other files under their right name."""

import difflib
import re
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Literal

from sslbench.errors import WeightsError
from sslbench.names import did_you_mean
from sslbench.weights.reading import folders
from sslbench.weights.reading.folders import METADATA, STATE, is_distributed, is_part, is_sharded, is_unfinished

Container = Literal[
    "torch zip", "torch legacy", "torch tar", "torchscript", "safetensors", "pickle", "npy", "npz",
    "sharded checkpoint", "distributed checkpoint",
]  # fmt: skip

# Endings of the names of weights files; published ones have others too.
SUFFIXES = (".pth", ".pt", ".th", ".torch", ".tar", ".ckpt", ".safetensors", ".bin", ".pkl", ".npy", ".npz")

_TAR_MEMBERS = {"storages", "tensors", "pickle"}
# Pickles of protocols 0 and 1 start with a dict, or with a global name that is then called; later ones with \x80.
_OLD_PICKLE = re.compile(rb"\(dp\d|\(d\n|\}q\x00|c[A-Za-z_][\w.]*\n[A-Za-z_]\w*\n")
# torch.serialization.MAGIC_NUMBER as a pickle stores it: the first thing in a file of torch < 1.6.
_LEGACY_MAGIC = bytes.fromhex("6cfc9c46f9206aa85019")
_OTHER_KINDS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x89PNG", "a PNG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"BZh", "a bzip2 archive: unpack it first"),
    (b"\xfd7zXZ", "an xz archive: unpack it first"),
    (b"7z\xbc\xaf", "a 7z archive: unpack it first"),
    (b"\x89HDF", "an HDF5 file (Keras?), which is not supported"),
)
# Errors of a damaged zip archive; zlib.error occurs if the flag for compression is damaged.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError, RuntimeError)


_ADDRESS = re.compile(r"(https?|ftp|s3|gs|hf|hdfs):/{1,2}(.+)")  # Path collapses two slashes into one


def refuse_path(path: Path) -> None:
    """Raise for a path that is no readable file or sharded checkpoint, and suggest what the user probably meant."""
    if path.is_dir():
        return _refuse_folder(path)
    if (whole := _whole_of(path)) is not None:
        raise WeightsError(f"{path} is {whole}", f"Give the folder: {path.parent}")
    if path.is_file() and (error := folders.without_index(path)) is not None:
        raise error
    if path.is_symlink() and not path.exists():
        raise WeightsError(f"{path} is a link to {path.readlink()}, which does not exist", _LINKED)
    if not path.exists() and (address := _ADDRESS.match(str(path))):
        raise WeightsError(
            f"{address[1]}://{address[2]} is an address, and this command takes files",
            f"Download the file first and give its path: --weights {Path(address[2]).name}",
        )
    if not path.exists():
        folder = path.parent
        if not folder.is_dir():
            raise WeightsError(f"there is no weights file {path}: the folder {folder} does not exist")
        raise WeightsError(f"there is no weights file {path}", _files_instead(path))
    if not path.is_file():
        raise WeightsError(f"{path} is not a regular file")
    if path.stat().st_size == 0:
        raise WeightsError(f"{path} is empty (0 bytes)", "The download or copy may have been interrupted.")


def _refuse_folder(path: Path) -> None:
    if is_sharded(path):
        return None
    for lacks, name in ((is_unfinished(path), STATE), (is_distributed(path), METADATA)):
        if lacks and not (path / name).is_file():
            raise WeightsError(f"{path} is no complete checkpoint: it has no {name}", "Use another, or copy it whole.")
    if is_distributed(path):
        return None
    if (weights := folders.weights_file(path)) is not None:
        return refuse_path(weights)
    if (error := folders.without_index(path)) is not None:
        raise error
    raise WeightsError(f"{path} is a folder, not a weights file", _weights_in(path))


_LINKED = "Copy it again with the file that it stands for (cp -L, rsync -L)."


def _whole_of(path: Path) -> str | None:
    """Return what a file is a part of, in words; None if it is whole."""
    if (index := folders.index_of_shard(path)) is not None:
        return f"one shard of {index.name}"
    if is_part(path):
        return "one file of a sharded checkpoint"
    if path.suffix == ".distcp" or path.name == METADATA:
        return "one file of a checkpoint of torch.distributed.checkpoint"
    return None


def _weights_in(folder: Path) -> str | None:
    """Return the weights or the newest checkpoint in a folder, else the names of what it holds."""
    # checkpoint-1000 comes behind checkpoint-500.
    inside = sorted(
        folder.iterdir(),
        key=lambda path: [
            (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", path.name)
        ],
    )
    inner = [path for path in inside if is_sharded(path) or is_distributed(path)]
    inner = inner or [path for path in inside if path.is_dir() and folders.weights_file(path)]
    saved = inner or sorted([*folder.glob("step_*.ckpt"), *folder.glob("checkpoints/step_*.ckpt")])
    saved = saved or [path for path in inside if path.is_file() and path.suffix.lower() in SUFFIXES]
    if found := [path for path in (folder / "weights.torch",) if path.is_file()] or saved[-1:]:
        others = f", the last of {len(saved)}" if len(saved) > 1 and found[0] == saved[-1] else ""
        return f"Did you mean {found[0]}{others}?"
    names = [path.name + ("/" if path.is_dir() else "") for path in inside]
    return f"It holds: {', '.join(names[:5])}{' ...' if len(names) > 5 else '.'}" if names else "It is empty."


def _files_instead(path: Path) -> str:
    """Return the files beside a missing one that are named alike, else those that look like weights."""
    names = [file.name for file in path.parent.iterdir()]
    if near := difflib.get_close_matches(path.name, names, n=3, cutoff=0.6):
        return did_you_mean(path.name, near)
    weights = sorted(name for name in names if name.lower().endswith(SUFFIXES))
    place = "this folder" if path.parent == Path() else str(path.parent)
    if not weights:
        return f"There are no weights files in {place}; hf:OWNER/MODEL, timm:MODEL and vissl:NAME download some."
    return f"Weights in {place}: {', '.join(weights[:5])}" + (f" and {len(weights) - 5} more." if weights[5:] else ".")


def sniff(path: Path) -> Container:
    """Return the container of a weights file."""
    with path.open("rb") as file:
        head = file.read(4096)
    if head[:4] == b"PK\x03\x04":
        return _sniff_zip(path)
    if tarfile.is_tarfile(path):  # first, since a tar archive may start with any bytes
        try:
            with tarfile.open(path) as archive:
                names = archive.getnames()
        except (tarfile.TarError, OSError, EOFError, ValueError) as error:
            raise WeightsError(f"{path} is a damaged tar archive: {error}", "Get the file again.") from error
        if set(names) >= _TAR_MEMBERS:
            return "torch tar"
        raise WeightsError(f"{path} is a tar archive, not weights", "Unpack it and give the file inside.")
    if _LEGACY_MAGIC in head[:40]:
        return "torch legacy"
    # A file of safetensors begins with the length of its JSON header.
    if len(head) > 8 and head[8:9] == b"{" and struct.unpack("<Q", head[:8])[0] < 1 << 32:
        return "safetensors"
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05") or _OLD_PICKLE.match(head):
        return "pickle"
    for magic, kind in _OTHER_KINDS:
        if head.startswith(magic):
            raise WeightsError(f"{path} is {kind}", "Give a file of torch.save or safetensors.")
    _refuse_text(path, head)
    raise WeightsError(
        f"{path} is not a known kind of weights file; it starts with {head[:8]!r}",
        "Give a file of torch.save or safetensors.",
    )


def refuse_other_kind(path: Path) -> None:
    """Raise for a path that is no weights file by its first bytes; the slow checksums of a zip are left to `sniff`."""
    refuse_path(path)
    path = (folders.weights_file(path) if path.is_dir() else None) or path
    if path.is_file() and not folders.is_index(path) and not zipfile.is_zipfile(path):
        sniff(path)


def _sniff_zip(path: Path) -> Container:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            # A zip bomb unpacks to far more than its size; weights hardly compress.
            unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked > 64_000_000 + 16 * path.stat().st_size:
                raise WeightsError(
                    f"{path} has {path.stat().st_size:,} bytes and unpacks to {unpacked:,}, far more than weights do",
                    "It is damaged or malicious: get it from another place.",
                )
            damaged = damaged_member(archive)
    except _ZIP_ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        raise WeightsError(
            f"{path} is damaged: it starts like a torch.save file, but its end is missing or broken ({reason})",
            f"It has {path.stat().st_size:,} bytes: was the download or copy interrupted?",
        ) from error
    is_script = any(name.endswith("/constants.pkl") for name in names)
    is_torch = any(name.endswith("/data.pkl") or name == "data.pkl" for name in names)
    if is_script and not is_torch:
        raise WeightsError(f"{path} is a TorchScript program without weights", "Save model.state_dict() instead.")
    if not is_torch and not (names and all(name.endswith(".npy") for name in names)):
        inside = f"it holds {', '.join(names[:3]) or 'nothing'}"
        raise WeightsError(f"{path} is a zip archive with no weights; {inside}", "Unpack it, and give the file in it.")
    if damaged is not None:
        raise WeightsError(f"{path} is damaged: the checksum of '{damaged}' in it is wrong", "Get the file again.")
    if is_script:
        return "torchscript"
    return "torch zip" if is_torch else "npz"


def damaged_member(archive: zipfile.ZipFile) -> str | None:
    """Return the first member with a wrong checksum; None if no tensor has a right one, as torch can omit them."""
    wrong = []
    for member in archive.infolist():
        try:
            with archive.open(member) as file:
                while file.read(1 << 22):
                    pass
        except zipfile.BadZipFile as error:
            if "CRC" not in str(error):
                raise
            wrong.append(member.filename)
    tensors = [name for name in archive.namelist() if "/data/" in name]
    written_without = len(tensors) > 1 and set(tensors) <= set(wrong)
    return wrong[0] if wrong and not written_without else None


def _refuse_text(path: Path, head: bytes) -> None:
    try:
        # A full block may end inside a character.
        text = head.decode("utf-8", errors="strict" if len(head) < 4096 else "ignore")
    except UnicodeDecodeError:
        return
    if any(ord(c) < 9 or 13 < ord(c) < 32 for c in text):
        return
    first = text.strip().splitlines()[0].strip()[:80] if text.strip() else ""
    if first.startswith("version https://git-lfs"):
        raise WeightsError(
            f"{path} is a git-lfs pointer, not the weights themselves", "Run 'git lfs pull' in its repository."
        )
    if first.lower().startswith(("<!doctype html", "<html", "<?xml")):
        raise WeightsError(
            f"{path} is a web page, not weights: {first}", "The download failed, or its address was that of a page."
        )
    raise WeightsError(f"{path} is text, not weights; its first line: {first}", "Give a weights file.")
