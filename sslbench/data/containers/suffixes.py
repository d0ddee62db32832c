"""Suffixes of image files, and names of hidden and system files."""

SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .gif .bmp .dib .webp .tif .tiff .ppm .pgm .pbm .pnm .pfm .avif .avifs "
    ".heif .heic .jp2 .j2k .jpx .ico .tga .qoi .dds .pcx .psd".split()
)
"""Suffixes of image files, in lower case."""


ARRAYS = frozenset((".npy", ".npz"))
"""Suffixes of arrays: images only where there are no others, since labels are stored as arrays too."""


_CLUTTER = frozenset(("__macosx", "thumbs.db", "desktop.ini", "@eadir", "lost+found", "$recycle.bin"))


def is_clutter(name: str) -> bool:
    """Return whether a file or folder is hidden or made by an operating system."""
    return name.startswith(".") or name.lower() in _CLUTTER
