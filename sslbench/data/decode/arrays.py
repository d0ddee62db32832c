"""Arrays of numbers in annotation files: NumPy, MATLAB, PFM, Middlebury's and KITTI's flow, told by their first bytes.

One place for all annotations of pixels: label maps, depth, normals and flow. `READERS` has a line for each kind of
file; pictures (PNG, TIFF) are read by those who know what their numbers mean, `flow_of` those of flow.
"""

import io
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.decode.picture import UnreadableImage, check_size
from sslbench.data.wording import one_line
from sslbench.preprocessing import MAX_PIXELS

Array = npt.NDArray[Any]

SUFFIXES = (".npy", ".npz", ".mat", ".pfm", ".flo")
"""Suffixes of these files, in lower case."""
_UNKNOWN_FLOW = 1e9
_PFM = re.compile(rb"(P[Ff])\s+(\d+)\s+(\d+)\s+(-?[\d.]+(?:[eE][-+]?\d+)?)[ \t\r]*\n")


def array_of(data: bytes, path: str, names: Sequence[str] = ()) -> Array | None:
    """Return the array of an annotation file in its own type; None for a file of another kind.

    Args:
        data: content of the file, whose first bytes decide.
        path: name in messages.
        names: of the array to read where a file has several; the first one found is read.

    Returns:
        Numbers (H, W) or (H, W, channels), as the file has them; flow (H, W, 2) in pixels to the right and down.

    Raises:
        UnreadableImage: damaged, several arrays of which none or two have the name to read, or no numbers.

    Examples:
        >>> flow = struct.pack("<4sii4f", b"PIEH", 2, 1, 0.5, 0.0, 1.5, -1.0)
        >>> array_of(flow, "a.flo").tolist()
        [[[0.5, 0.0], [1.5, -1.0]]]
        >>> array_of(b"no array", "a.txt") is None
        True
    """
    read = next((reader for head, reader in READERS.items() if data.startswith(head)), None)
    if read is None:
        return None
    try:
        values = read(data, path, names)
    except UnreadableImage:
        raise
    except Exception as error:  # decoders raise almost anything on a damaged file
        raise UnreadableImage(path, f"damaged ({one_line(error)})") from error
    if not isinstance(values, np.ndarray):  # any file can be a member of an .npz
        raise UnreadableImage(path, "a .npz file whose member is no array")
    if values.dtype.kind not in "fuib":
        raise UnreadableImage(path, f"an array of {values.dtype}, not of numbers")
    return values


def flow_of(data: bytes, path: str) -> Array:
    """Return optical flow, float32 (H, W, 2), pixels to the right and down; NaN where it is not known.

    Middlebury's .flo, where vectors above 10^9 are unknown (Baker et al., IJCV 2011), or KITTI's PNG of 16 bits: red
    and green are 64 times the vectors, plus 2^15, and blue is 0 where there is none (Menze and Geiger, CVPR 2015).

    Raises:
        UnreadableImage: damaged, or another kind of file.

    Examples:
        >>> flow_of(struct.pack("<4sii4f", b"PIEH", 2, 1, 0.5, 0.0, 1e10, 1e10), "a.flo").tolist()
        [[[0.5, 0.0], [nan, nan]]]
    """
    if data.startswith(b"\x89PNG"):
        red, green, valid = np.moveaxis(colours_of_16_bits(data, path).astype(np.float32), 2, 0)
        return np.where(valid[..., None] > 0, (np.stack([red, green], axis=2) - 2**15) / 64, np.float32(np.nan))
    flow = array_of(data, path) if data.startswith(b"PIEH") else None
    if flow is None:
        raise UnreadableImage(path, "no flow: neither Middlebury's .flo nor KITTI's PNG")
    return np.where((np.abs(flow) < _UNKNOWN_FLOW).all(axis=2, keepdims=True), flow, np.float32(np.nan))


def colours_of_16_bits(data: bytes, path: str) -> Array:
    """Return the colours of a picture of 16 bits, uint16 (H, W, 3), which Pillow cuts to 8.

    Raises:
        UnreadableImage: damaged, or another kind of picture.
    """
    import cv2

    if data.startswith(b"\x89PNG"):
        width, height = struct.unpack_from(">ii", data.ljust(24, b"\0"), 16)
        check_size(width, height, path, MAX_PIXELS)
    colours = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_UNCHANGED)
    if colours is None:
        raise UnreadableImage(path, "damaged")
    if colours.dtype != np.uint16 or colours.ndim != 3 or colours.shape[2] != 3:
        raise UnreadableImage(path, f"{colours.dtype} {colours.shape}, not three channels of 16 bits")
    # OpenCV has blue first.
    return np.asarray(colours[..., ::-1])


def _numpy(data: bytes, path: str, names: Sequence[str]) -> Array:
    loaded = np.load(io.BytesIO(data), allow_pickle=False)
    return loaded if isinstance(loaded, np.ndarray) else loaded[_chosen(loaded.files, path, names)]


def _matlab(data: bytes, path: str, names: Sequence[str]) -> Array:
    from scipy.io import loadmat

    if data.startswith(b"MATLAB 7.3"):
        raise UnreadableImage(path, "a MATLAB 7.3 file: save it with -v7")
    found = list(_arrays(loadmat(io.BytesIO(data), simplify_cells=True)))
    if not found:
        raise UnreadableImage(path, "a MATLAB file without an array of two dimensions")
    return dict(found)[_chosen([name for name, _ in found], path, names)]


def _arrays(content: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a MATLAB file, those in its structures too."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _arrays(value)
        elif isinstance(value, np.ndarray) and value.ndim >= 2 and value.dtype.kind in "fuib":
            yield name, value


def _chosen(found: list[str], path: str, names: Sequence[str]) -> str:
    """Return the name of the array to read: the only one, or the first of the names."""
    chosen = found[0] if len(found) == 1 else next((name for name in names if name in found), None)
    if chosen is None:
        none = f", none called {', '.join(names)}" if names else ""
        raise UnreadableImage(path, f"several arrays ({', '.join(found[:5])}){none}")
    if found.count(chosen) > 1:
        raise UnreadableImage(path, f"{found.count(chosen)} arrays called {chosen}, in different structures")
    return chosen


def _pfm(data: bytes, path: str, names: Sequence[str]) -> Array:
    head = _PFM.match(data)
    if head is None:
        raise UnreadableImage(path, "a .pfm file without a complete head")
    width, height, channels = int(head[2]), int(head[3]), 3 if head[1] == b"PF" else 1
    check_size(width, height, path, MAX_PIXELS)
    if len(data) - head.end() != 4 * width * height * channels:
        raise UnreadableImage(path, "truncated, or longer than its head says")
    # PFM: a negative scale means little-endian.
    order = "<" if float(head[4]) < 0 else ">"
    values = np.frombuffer(data, dtype=f"{order}f4", offset=head.end()).reshape(height, width, channels)
    return values[::-1].astype(np.float32)  # rows from the bottom up


def _flow(data: bytes, path: str, names: Sequence[str]) -> Array:
    width, height = struct.unpack_from("<ii", data, 4)
    check_size(width, height, path, MAX_PIXELS)
    if len(data) != 12 + 8 * width * height:
        size = 12 + 8 * width * height
        raise UnreadableImage(path, f"{len(data):,} bytes; {width} x {height} vectors take {size:,}")
    return np.frombuffer(data, dtype="<f4", offset=12).reshape(height, width, 2).astype(np.float32)


READERS: Mapping[bytes, Callable[[bytes, str, Sequence[str]], Array]] = {
    b"\x93NUMPY": _numpy,
    b"PK\x03\x04": _numpy,
    b"MATLAB": _matlab,
    b"PF": _pfm,
    b"Pf": _pfm,
    b"PIEH": _flow,
}
"""First bytes of a file -> the function that reads its array."""
