"""Arrays in files: NumPy's, and TIFF with any number of bands, 8 and 16 bits, complete or refused."""

import contextlib
import io
import itertools
import zipfile

import numpy as np
import pytest
import torch
from helpers.offenders import offenders

from sslbench.data.decode.files import decode
from sslbench.data.decode.picture import OtherChannels, UnreadableImage, Wanted

tifffile = pytest.importorskip("tifffile")


def pixels(channels, dtype=np.uint16, size=(20, 30)):
    rng = np.random.default_rng(channels)
    return rng.integers(0, np.iinfo(dtype).max, (*size, channels), endpoint=True).astype(dtype)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(*arrays, compress=True):
    file = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(file, *arrays)
    return file.getvalue()


def tiff(array, layout="interleaved", compression=None, **options):
    file = io.BytesIO()
    planes = np.moveaxis(array, 2, 0)
    options = {"photometric": "minisblack", "compression": compression, **options}
    if len(planes) == 1:
        tifffile.imwrite(file, planes[0], **options)
        return file.getvalue()
    if layout == "pages":
        tifffile.imwrite(file, planes, **options)
    else:
        planar = "contig" if layout == "interleaved" else "separate"
        tifffile.imwrite(file, array if planar == "contig" else planes, planarconfig=planar, **options)
    return file.getvalue()


def shown(decoded):
    """The values as they were before 16 bits were put on a scale to 255."""
    image = decoded.image.permute(1, 2, 0)
    return (image.double() * 257).round().numpy() if image.dtype == torch.float32 else image.numpy()


@pytest.mark.parametrize("kind", ["npy", "npz", "interleaved", "separate", "pages"])
def test_every_band_of_every_bit_arrives(kind):
    def check(case):
        channels, dtype, compressed = case
        array = pixels(channels, dtype)
        if kind == "npy":
            data, name = npy(np.asfortranarray(array) if compressed else array), "a.npy"
        elif kind == "npz":
            data, name = npz(array, compress=compressed), "a.npz"
        else:
            data, name = tiff(array, kind, "zlib" if compressed else None), "a.tif"
        decoded = decode(data, name, Wanted(channels, deep=True))
        np.testing.assert_array_equal(shown(decoded), array)
        assert decoded.conversions == ()
        assert decoded.image.dtype == (torch.uint8 if dtype == np.uint8 else torch.float32)
        shallow = decode(data, name, Wanted(channels))
        np.testing.assert_array_equal(shown(shallow), array if dtype == np.uint8 else array >> 8)

    assert offenders(itertools.product([2, 4, 5, 13], [np.uint8, np.uint16], [False, True]), check) == []


def test_grey_arrays_become_rgb_with_all_their_bits():
    for data in (npy(pixels(1)[..., 0]), npy(pixels(1)), npz(pixels(1))):
        decoded = decode(data, "a.npz", Wanted(deep=True))
        np.testing.assert_array_equal(shown(decoded), np.repeat(pixels(1), 3, axis=2))
        assert decoded.conversions == ("grey to RGB",)
        assert decode(data, "a.npz").conversions == ("16 bit to 8 bit", "grey to RGB")


def test_rgb_arrays_stay_what_they_are():
    np.testing.assert_array_equal(shown(decode(npy(pixels(3, np.uint8)), "a.npy")), pixels(3, np.uint8))


@pytest.mark.parametrize("kind", ["npy", "interleaved", "separate"])
def test_other_channels_than_the_backbone_takes_are_said(kind):
    counts = [(13, 3), (2, 3), (5, 3), (13, 12), (3, 13), (1, 4)]
    for (channels, wanted), dtype, compression in itertools.product(counts, [np.uint8, np.uint16], [None, "zlib"]):
        array = pixels(channels, dtype)
        data = npy(array) if kind == "npy" else tiff(array, kind, compression)
        said = rf"^scan: {channels} channels?, the backbone takes {wanted}$"
        with pytest.raises(OtherChannels, match=said) as caught:
            decode(data, "scan", Wanted(wanted, deep=True))
        assert (caught.value.channels, caught.value.wanted) == (channels, wanted)


def test_alpha_is_a_fourth_channel_where_four_are_wanted():
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels(4, np.uint8)).save(file, "png")
    np.testing.assert_array_equal(shown(decode(file.getvalue(), "a.png", Wanted(4))), pixels(4, np.uint8))


def test_what_tifffile_makes_of_an_array_without_being_told_is_understood():
    for dtype in (np.uint8, np.uint16):
        file = io.BytesIO()
        tifffile.imwrite(file, pixels(13, dtype), photometric="minisblack")
        np.testing.assert_array_equal(shown(decode(file.getvalue(), "", Wanted(13, deep=True))), pixels(13, dtype))


def test_a_tiff_of_many_bands_is_turned_upright():
    for orientation, turns in {1: 0, 3: 2, 6: -1, 8: 1}.items():
        data = tiff(pixels(5), extratags=[(274, "H", 1, orientation, True)])
        decoded = decode(data, "a.tif", Wanted(5, deep=True))
        np.testing.assert_array_equal(shown(decoded), np.rot90(pixels(5), turns))
        assert decoded.conversions == (() if orientation == 1 else ("turned upright (EXIF)",))


@pytest.mark.parametrize("kind", ["npy", "npz", "interleaved", "separate", "pages"])
def test_a_truncated_file_is_refused_in_one_line(kind):
    array = pixels(5)
    files = [
        {"npy": npy(array), "npz": npz(array, compress=bool(compression))}.get(kind) or tiff(array, kind, compression)
        for compression in (None, "zlib")
    ]
    for data, length in ((file, k) for file in files for k in np.linspace(8, len(file) - 1, 25).astype(int)):
        try:
            decoded = decode(data[:length], f"a.{kind}", Wanted(5, deep=True))
        except UnreadableImage as error:
            assert "\n" not in error.reason
        else:  # all pixels are there, what is cut off is a list of them at the end of the file
            np.testing.assert_array_equal(shown(decoded), array)
            assert kind not in ("npy", "npz")


@pytest.mark.parametrize("tag", ["StripByteCounts", "StripOffsets"])
def test_a_tiff_whose_pixels_are_not_there_gives_no_black_picture(tag):
    data = bytearray(tiff(pixels(5)))
    with tifffile.TiffFile(io.BytesIO(bytes(data))) as file:
        at, size = file.pages.first.tags[tag].valueoffset, {3: 2, 4: 4}[int(file.pages.first.tags[tag].dtype)]
    data[at : at + size] = (0 if tag == "StripByteCounts" else len(data) + 5000).to_bytes(size, "little")
    with pytest.raises(UnreadableImage, match="truncated TIFF"):
        decode(bytes(data), "a.tif", Wanted(5))


@pytest.mark.parametrize("kind", ["npy", "npz", "interleaved", "separate"])
def test_damage_gives_a_picture_or_a_reason_and_never_another_error(kind):
    array = pixels(5, np.uint8)
    whole = {"npy": npy(array), "npz": npz(array)}.get(kind) or tiff(array, kind, "zlib")
    rng = np.random.default_rng(0)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.integers(1, 6)):
            data[rng.integers(len(data) if rng.random() < 0.5 else min(300, len(data)))] = rng.integers(256)
        try:
            assert decode(bytes(data), f"a.{kind}", Wanted(5, deep=True)).image.shape[0] == 5
        except UnreadableImage as error:
            assert "\n" not in error.reason


def test_sizes_are_refused_by_the_header_before_anything_is_unpacked():
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**6, 10**6, 4)})
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.npy", header.getvalue())
    for data in (header.getvalue(), archive.getvalue()):
        with pytest.raises(UnreadableImage, match="more than the limit of 178,956,970"):
            decode(data, "bomb.npz", Wanted(4))
    with pytest.raises(UnreadableImage, match="more than the limit of 500"):
        decode(tiff(pixels(5)), "a.tif", Wanted(5, max_pixels=500))


def test_a_zip_bomb_under_the_name_of_an_array_is_refused():
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", npy(pixels(4, np.uint8)) + bytes(50_000_000))
    with pytest.raises(UnreadableImage, match="larger than declared"):
        decode(archive.getvalue(), "bomb.npz", Wanted(4))


def test_arrays_that_are_no_pictures_are_refused_with_the_reason():
    for data, reason in (
        (npy(np.zeros((4, 4), np.float32)), "float32, whose range is not known"),
        (npy(np.array([[{}]], dtype=object)), "object"),
        (npy(np.zeros(4, np.uint8)), "shape"),
        (npy(np.zeros((2, 2, 2, 2), np.uint8)), "shape"),
        (npy(np.zeros((0, 4, 3), np.uint8)), "4 x 0 pixels"),
        (npz(np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.uint8)), "2 arrays"),
        (b"PK\x03\x04" + bytes(40), "damaged NumPy file"),
    ):
        with pytest.raises(UnreadableImage, match=reason):
            decode(data, "a.npz")


def test_a_compression_that_needs_another_package_is_named(monkeypatch):
    def no_codec(*args, **kwargs):
        raise ValueError("<COMPRESSION.LZW: 5> requires the 'imagecodecs' package")

    monkeypatch.setattr(tifffile.TiffPageSeries, "asarray", no_codec)
    with pytest.raises(UnreadableImage, match="needs imagecodecs: install it, or write DEFLATE"):
        decode(tiff(pixels(5)), "a.tif", Wanted(5))


def test_what_tifffile_says_of_damaged_files_stays_off_the_users_screen(caplog):
    data = bytearray(tiff(pixels(5)))
    for at in range(8, 250, 3):
        with contextlib.suppress(UnreadableImage):
            decode(bytes(data[:at]) + bytes(3) + bytes(data[at + 3 :]), "a.tif", Wanted(5))
    assert not caplog.records
