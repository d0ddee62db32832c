"""Odd and damaged images, and things in a folder that are no images at all."""

import io
import os
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from hostile.campaign import Case
from hostile.text_cases import PIXELS, mutated, photos
from PIL import Image

FORMATS = {"png": "PNG", "jpg": "JPEG", "gif": "GIF", "bmp": "BMP", "tif": "TIFF", "webp": "WEBP", "ppm": "PPM"}
WAYS = {
    "skip": (*PIXELS, "--data", "photos", "--on-error", "skip"),
    "stop": (*PIXELS, "--data", "photos"),
    "check": ("check-data", "photos"),
}


def encoded(kind: str, mode: str = "RGB", size: int = 24, **options: object) -> bytes:
    """Return a small picture of random pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def png_chunk(name: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, data: bytes, *before: bytes, depth: int = 8) -> bytes:
    """Return a grey PNG that says it has this size."""
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(before) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")


def _pillow(mode: str, kind: str) -> bytes:
    file = io.BytesIO()
    values = np.arange(24 * 24).reshape(24, 24)
    dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
    Image.fromarray((values * 100).astype(dtype)).save(file, kind)
    return file.getvalue()


def _frames(kind: str, n: int) -> bytes:
    file = io.BytesIO()
    first, *others = (Image.new("RGB", (24, 24), (i % 256, 0, 0)) for i in range(n))
    first.save(file, kind, save_all=True, append_images=others)
    return file.getvalue()


def _tiff(width: int, height: int, strip: int = 0xFFFFFFF0) -> bytes:
    entries = (
        (256, width),
        (257, height),
        (258, 8),
        (259, 1),
        (262, 1),
        (273, 8),
        (277, 1),
        (278, height),
        (279, strip),
    )
    rows = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + rows + bytes(4)


def odd_images() -> dict[str, bytes]:
    """Return name of the file -> its bytes."""
    many = zlib.compress(bytes(1 << 26), 9)
    exif = Image.Exif()
    exif[0x0112] = 99
    animated = {f"animated.{kind.lower()}": _frames(kind, 60) for kind in ("GIF", "WEBP", "TIFF", "PNG")}
    return animated | {
        "empty.png": b"",
        "zeros.png": bytes(4096),
        "text.jpg": b"not an image\n",
        "page.png": b"<html><script>alert(1)</script></html>",
        "pointer.jpg": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "jpeg_inside.png": encoded("JPEG"),
        "png_inside.jpg": encoded("PNG"),
        "gif_inside.tif": encoded("GIF"),
        "vector.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "drawing.png": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "script.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(ran) (w) file closefile\n%%EOF\n",
        "document.jpg": b"%PDF-1.4\n%\xff\xff\n1 0 obj<<>>endobj\ntrailer<<>>\n%%EOF",
        "bomb.png": png(60000, 60000, many),
        "larger_than_said.png": png(4, 4, many),
        "largest.png": png(2**31 - 1, 2**31 - 1, b""),
        "no_width.png": png(0, 4, b""),
        "text_bomb.png": png(4, 4, zlib.compress(bytes(20)), png_chunk(b"zTXt", b"a\0\0" + many)),
        "profile_bomb.png": png(4, 4, zlib.compress(bytes(20)), png_chunk(b"iCCP", b"a\0\0" + many)),
        "depth.png": png(4, 4, zlib.compress(bytes(20)), depth=77),
        "bomb.tif": _tiff(60000, 60000),
        "long_strip.tif": _tiff(16, 16),
        "bomb.bmp": encoded("BMP")[:18] + struct.pack("<ii", 1 << 30, 1 << 30) + encoded("BMP")[26:],
        "bomb.gif": b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0x80, 0, 0) + bytes(6) + b"," + bytes(20),
        "bomb.ppm": b"P6 99999999999 99999999999 255\n",
        "digits.ppm": b"P6 " + b"9" * 5000 + b" 4 255\n",
        "16.png": _pillow("I;16", "PNG"),
        "16.tif": _pillow("I;16", "TIFF"),
        "32.tif": _pillow("I", "TIFF"),
        "float.tif": _pillow("F", "TIFF"),
        "cmyk.jpg": encoded("JPEG", "CMYK"),
        "cmyk.tif": encoded("TIFF", "CMYK"),
        "lab.tif": encoded("TIFF", "LAB"),
        "bits.png": encoded("PNG", "1"),
        "palette.png": encoded("PNG", "P", transparency=0),
        "grey.jpg": encoded("JPEG", "L"),
        "alpha.png": encoded("PNG", "RGBA"),
        "grey_alpha.png": encoded("PNG", "LA"),
        "orientation.jpg": encoded("JPEG", exif=exif.tobytes()),
        "broken_exif.jpg": encoded("JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff" + b"\xff" * 40),
        "one_pixel.png": encoded("PNG", size=1),
        "line.png": png(20000, 1, zlib.compress(bytes(20001))),
        "jpeg2000.jp2": encoded("JPEG2000"),
        "icon.ico": encoded("ICO"),
        "object.npy": b"\x93NUMPY\x01\0\x46\0{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
        + b" " * 13
        + b"\n",
        "huge.npy": b"\x93NUMPY\x01\0v\0{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999, 9999999), }\n",
    }


def special_files() -> dict[str, Callable[[Path], None]]:
    """Return name of the file -> a function that makes it: no regular file, or none that should be read whole."""

    def sparse(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(20_000_000_000)

    def deep(path: Path) -> None:
        here = os.getcwd()  # noqa: PTH109 - longer than a path may be
        try:
            os.chdir(path.parent)
            for _ in range(1200):
                os.mkdir("d")  # noqa: PTH102
                os.chdir("d")
        finally:
            os.chdir(here)

    return {
        "pipe.png": os.mkfifo,
        "zero.png": lambda path: path.symlink_to("/dev/zero"),
        "terminal.png": lambda path: path.symlink_to("/dev/tty"),
        "sparse.png": sparse,
        "itself.png": lambda path: path.symlink_to(path.name),
        "circle": lambda path: path.symlink_to(path.parent),
        "nowhere.png": lambda path: path.symlink_to("nowhere"),
        "folder.png": lambda path: path.mkdir(),
        "closed.png": lambda path: (path.write_bytes(encoded("PNG")), path.chmod(0)),
        "deep": deep,
        "process.png": lambda path: path.symlink_to("/proc/self/mem"),
    }


def odd_names() -> tuple[bytes, ...]:
    """Return names of sound files that programs stumble over."""
    return (
        b"\xff\xfe.png",
        b"a\nb.png",
        b"\x1b[31mred.png",
        b" .png",
        b"-rf.png",
        b'a,b".png',
        "\u202egnp.png".encode(),
    )


def image_cases(seed: int = 0, n: int = 0) -> Iterator[Case]:
    """Yield folders with one odd image among sound ones; `n`: mutations of each format."""
    draw = random.Random(seed)
    contents = odd_images()
    for suffix, kind in FORMATS.items():
        whole = encoded(kind)
        for part in (0.1, 0.5, 0.9, 0.99):
            contents[f"cut_{part}.{suffix}"] = whole[: int(part * len(whole))]
        for i in range(n):
            contents[f"mutation_{i}.{suffix}"] = mutated(whole, draw)
    for name, content in contents.items():
        for way in ("skip", "check") if name.startswith("mutation") else WAYS:
            yield f"{way}: {name}", _beside(name.encode(), lambda path, content=content: path.write_bytes(content), way)
    for name, make in special_files().items():
        for way in WAYS:
            yield f"{way}: {name}", _beside(name.encode(), make, way)
    for raw in odd_names():
        for way in WAYS:
            yield f"{way}: {raw!r}", _beside(raw, lambda path: path.write_bytes(encoded("PNG")), way)


def _beside(name: bytes, make: Callable[[Path], object], way: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        make(photos(folder) / "a" / os.fsdecode(name))
        return list(WAYS[way])

    return write
