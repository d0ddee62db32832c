"""Grey pictures of few bits per pixel, written by hand: Pillow cannot write them."""

import struct
import zlib

import numpy as np


def packed(values, bits):
    """Rows of values (H, W), each padded to whole bytes."""
    rows = ["".join(format(int(value), f"0{bits}b") for value in row) for row in values]
    rows = [row + "0" * (-len(row) % 8) for row in rows]
    return [bytes(int(row[i : i + 8], 2) for i in range(0, len(row), 8)) for row in rows]


def grey_png(values, bits):
    """A PNG of 1, 2, 4, 8 or 16 bits per pixel."""
    height, width = np.shape(values)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in packed(values, bits)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def grey_tiff(values, bits):
    """A TIFF of 1, 2, 4, 8 or 16 bits per pixel, whose 0 is black."""
    height, width = np.shape(values)
    body = b"".join(packed(values, bits))
    start = 8 + 2 + 9 * 12 + 4
    tags = [(256, 3, width), (257, 3, height), (258, 3, bits), (259, 3, 1), (262, 3, 1), (273, 4, start), (277, 3, 1)]
    tags += [(278, 3, height), (279, 4, len(body))]
    entries = b"".join(struct.pack(">HHI", tag, kind, 1) + _value(kind, value) for tag, kind, value in tags)
    return b"MM\0*" + struct.pack(">IH", 8, len(tags)) + entries + struct.pack(">I", 0) + body


def grey_pgm(values, white):
    """A PGM whose largest possible value is `white`."""
    height, width = np.shape(values)
    return f"P5\n{width} {height}\n{white}\n".encode() + np.asarray(values, ">u2" if white > 255 else "u1").tobytes()


def _value(kind, value):
    return struct.pack(">HH", value, 0) if kind == 3 else struct.pack(">I", value)


FEW_BITS = {
    "1 bit": lambda values: grey_png(values, 1),
    "2 bits": lambda values: grey_png(values, 2),
    "4 bits": lambda values: grey_png(values, 4),
    "16 bits": lambda values: grey_png(values, 16),
    "tiff of 2 bits": lambda values: grey_tiff(values, 2),
    "tiff of 4 bits": lambda values: grey_tiff(values, 4),
    "tiff of 16 bits": lambda values: grey_tiff(values, 16),
    "pgm up to 3": lambda values: grey_pgm(values, 3),
    "pgm up to 1000": lambda values: grey_pgm(values, 1000),
}
"""Name -> function from values (H, W), of which only 1 bit holds none above 1, to a file."""
