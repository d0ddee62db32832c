"""Suffixes of image files, and names that are no data."""

SUFFIXES = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .gif .bmp .dib .webp .tif .tiff .ppm .pgm .pbm .pnm .pfm .avif .avifs "
    ".heif .heic .jp2 .j2k .jpx .ico .tga .qoi .dds .pcx .psd".split()
)
"""Suffixes of image files, in lower case."""


ARRAYS = frozenset((".npy", ".npz"))
"""Suffixes of arrays: images only where there are no others, since lists of labels are arrays as well."""


_CLUTTER = frozenset(("__macosx", "thumbs.db", "desktop.ini", "@eadir", "lost+found", "$recycle.bin"))


def is_clutter(name: str) -> bool:
    """Whether a file or folder is hidden or made by a system, and no data."""
    return name.startswith(".") or name.lower() in _CLUTTER
