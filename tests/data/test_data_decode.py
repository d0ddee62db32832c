"""Decoding of images, and the fast way."""

import io
import itertools
import os
import pickle
import struct
import warnings
import zlib

import numpy as np
import pytest
import tifffile
import torch
from helpers.offenders import offenders
from PIL import Image, ImageFile, ImageOps
from sklearn.datasets import load_sample_images

from sslbench.data.decode import files as module
from sslbench.data.decode.files import decode
from sslbench.data.decode.picture import OtherChannels, UnreadableImage, Wanted, from_array
from sslbench.data.decode.transforms import resize_and_crop
from sslbench.preprocessing import Preprocessing


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def picture(height=37, width=50, channels=3):
    y, x, c = np.mgrid[:height, :width, :channels]
    return ((x * 5 + y * 3 + c * 70 + (x // 7 + y // 5) % 2 * 60) % 256).astype(np.uint8)


def encode(image, kind, **options):
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


def with_pillow(data):
    """The oracle: what DataLoaders built on Pillow show a network."""
    image = Image.open(io.BytesIO(data))
    image.load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def pixels(decoded):
    assert decoded.image.dtype == torch.uint8
    return decoded.image.permute(1, 2, 0).numpy()


def palette(transparent=False):
    image = Image.fromarray(picture()).quantize(16)
    if transparent:
        image.info["transparency"] = bytes(range(0, 256, 16))
    return image


PLAIN = {
    "jpeg": encode(picture(), "JPEG", quality=90),
    "jpeg 4:4:4": encode(picture(), "JPEG", subsampling=0),
    "progressive": encode(picture(), "JPEG", progressive=True),
    "restart markers": encode(picture(), "JPEG", restart_marker_blocks=2),
    "one pixel": encode(picture(1, 1), "JPEG"),
    "png": encode(picture(), "PNG"),
    "webp": encode(picture(), "WEBP", quality=80),
    "bmp": encode(picture(), "BMP"),
    "tiff": encode(picture(), "TIFF"),
    "ppm": encode(picture(), "PPM"),
}
CONVERTED = {
    "grey jpeg": (encode(picture(channels=1)[..., 0], "JPEG"), ("grey to RGB",)),
    "cmyk jpeg": (encode(Image.fromarray(picture()).convert("CMYK"), "JPEG"), ("CMYK to RGB",)),
    "grey png": (encode(picture(channels=1)[..., 0], "PNG"), ("grey to RGB",)),
    "1 bit png": (encode(Image.fromarray(picture()).convert("1"), "PNG"), ("grey to RGB",)),
    "rgba png": (encode(picture(channels=4), "PNG"), ("alpha dropped",)),
    "grey + alpha png": (encode(Image.fromarray(picture()).convert("LA"), "PNG"), ("grey to RGB", "alpha dropped")),
    "rgba webp": (encode(picture(channels=4), "WEBP", lossless=True, exact=True), ("alpha dropped",)),
    "palette png": (encode(palette(), "PNG"), ("palette to RGB",)),
    "palette + alpha png": (
        encode(palette(), "PNG", transparency=bytes(range(0, 256, 16))),
        ("palette to RGB", "alpha dropped"),
    ),
    "gif": (encode(palette(), "GIF"), ("palette to RGB",)),
}


def test_pictures_of_every_colour_layout_are_pillows_and_conversions_are_counted():
    cases = {name: (data, ()) for name, data in PLAIN.items()} | CONVERTED

    def check(name):
        data, conversions = cases[name]
        decoded = decode(data, name)
        np.testing.assert_array_equal(pixels(decoded), with_pillow(data))
        assert decoded.conversions == conversions

    assert len(cases) == 20 and offenders(cases, check) == []


def test_without_torchvisions_decoder_the_pixels_are_the_same(monkeypatch):
    expected = [decode(PLAIN[name], name) for name in PLAIN] + [decode(data, "") for data, _ in CONVERTED.values()]
    monkeypatch.setattr(module, "jpeg_decoder", lambda: None)
    found = [decode(PLAIN[name], name) for name in PLAIN] + [decode(data, "") for data, _ in CONVERTED.values()]
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one.image, other.image) and one.conversions == other.conversions


def test_what_libjpeg_tells_of_damage_is_counted_and_not_printed(capfd, monkeypatch):
    data = PLAIN["jpeg"]
    damaged = data[:-2] + bytes(12) + data[-2:]
    found = decode(damaged, "a.jpg")
    np.testing.assert_array_equal(pixels(found), with_pillow(damaged))
    assert found.conversions == (module.DAMAGED,) and capfd.readouterr().err == ""

    def fail(*_, **__):
        os.write(2, b"Corrupt JPEG data: x\nfrom another library\n")
        raise RuntimeError

    monkeypatch.setattr(module, "jpeg_decoder", lambda: fail)
    assert decode(data, "a.jpg").conversions == (), "Pillow decides"
    assert capfd.readouterr().err == "from another library\n", "nothing else is lost"


def test_plain_jpeg_takes_the_fast_way(monkeypatch):
    monkeypatch.setattr(module, "decode_with_pillow", lambda *_: pytest.fail("went through Pillow"))
    for name in ("jpeg", "progressive", "restart markers"):
        decode(PLAIN[name], name)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_turns_the_picture_upright(kind):
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encode(picture(), kind, exif=exif)
        decoded = decode(data, "photo")
        np.testing.assert_array_equal(pixels(decoded), with_pillow(data))
        if kind != "TIFF":  # Pillow turns TIFF by itself while loading
            assert decoded.conversions == (("turned upright (EXIF)",) if orientation > 1 else ())


def test_damaged_exif_does_not_cost_the_picture():
    plain = PLAIN["jpeg"]
    for exif in (b"Exif\0\0", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\x05\0", b"x"):
        data = plain[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2) + exif + plain[2:]
        np.testing.assert_array_equal(pixels(decode(data, "")), pixels(decode(plain, "")))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_keeps_its_upper_byte(kind):
    values = np.arange(37 * 50, dtype=np.uint16).reshape(37, 50) * 35
    decoded = decode(encode(values, kind), "scan")
    np.testing.assert_array_equal(pixels(decoded), np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=2))
    assert decoded.conversions == ("16 bit to 8 bit", "grey to RGB")


def test_16_bits_with_a_sign_are_refused_where_some_are_below_0():
    """Seen: CT values of -2,768 became 245."""
    file = io.BytesIO()
    tifffile.imwrite(file, np.full((8, 8), -2768, np.int16))
    with pytest.raises(UnreadableImage, match=r"ct.tif.*samples below 0"):
        decode(file.getvalue(), "ct.tif")


def test_16_bit_colour_keeps_its_upper_byte():
    values = (picture().astype(int) * 256 + 255 - picture()).astype(">u2")

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + row.tobytes() for row in values)
    header = struct.pack(">IIBBBBB", 50, 37, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    decoded = decode(data, "scan")
    np.testing.assert_array_equal(pixels(decoded), picture())
    assert decoded.conversions == ("16 bit to 8 bit",)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_32_bit_pictures_are_refused_because_their_range_is_unknown(dtype):
    data = encode(Image.fromarray(np.linspace(0, 1000, 12).reshape(3, 4).astype(dtype)), "TIFF")
    with pytest.raises(UnreadableImage, match="range is not known"):
        decode(data, "depth.tif")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint32])
def test_tiffs_of_three_bands_of_other_samples_are_no_damaged_ones(dtype):
    file = io.BytesIO()
    tifffile.imwrite(file, np.ones((4, 5, 3), dtype), photometric="rgb")
    with pytest.raises(UnreadableImage, match=f"samples of {np.dtype(dtype)}, whose range is not known"):
        decode(file.getvalue(), "reflectance.tif")


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame_is_taken(kind):
    frames = [Image.fromarray(np.full((8, 9, 3), value, np.uint8)) for value in (40, 200)]
    decoded = decode(encode(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True), "clip")
    assert pixels(decoded).shape == (8, 9, 3) and np.ptp(pixels(decoded)) == 0 and pixels(decoded)[0, 0, 0] == 40
    assert decoded.conversions[-1] == "first of several frames"


def test_arrays_become_rgb():
    grey = ("grey to RGB",)
    for shape, conversions in (((5, 6), grey), ((5, 6, 1), grey), ((5, 6, 3), ())):
        array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
        decoded = decode(array, "digits[3]")
        assert decoded.conversions == conversions
        for channel in range(3):
            plane = array if array.ndim == 2 else array[..., min(channel, array.shape[2] - 1)]
            np.testing.assert_array_equal(decoded.image[channel].numpy(), plane)


def test_a_decoded_array_is_a_copy():
    array = np.zeros((4, 4, 3), np.uint8)
    array.flags.writeable = False
    decode(array, "").image.add_(1)
    assert array.max() == 0


@pytest.mark.parametrize(
    "extra", [["unspecified"], ["unassalpha"], ["assocalpha"], ["unspecified", "unassalpha"], None]
)
def test_a_band_beside_rgb_is_dropped_only_where_the_file_calls_it_alpha(extra):
    bands = 3 + len(extra or ["array"])
    array = np.arange(8 * 9 * bands, dtype=np.uint8).reshape(8, 9, bands)
    data = array
    if extra is not None:
        file = io.BytesIO()
        tifffile.imwrite(file, array, photometric="rgb", extrasamples=extra)
        data = file.getvalue()
    if extra in (["unassalpha"], ["assocalpha"]):
        assert "alpha dropped" in decode(data, "a").conversions
    else:
        with pytest.raises(OtherChannels) as caught:
            decode(data, "a")
        assert (caught.value.channels, caught.value.wanted) == (bands, 3)


@pytest.mark.parametrize("kind", ["grey", "rgb", "array"])
def test_samples_of_16_bits_are_not_cut_where_8_leave_almost_nothing(kind):
    def cut(largest):
        array = np.linspace(0, largest, 8 * 9 * 3).astype(np.uint16).reshape(8, 9, 3)
        if kind == "array":
            return from_array(array, "scan")
        file = io.BytesIO()
        if kind == "grey":
            Image.fromarray(array[..., 0]).save(file, "PNG")
        else:
            tifffile.imwrite(file, array, photometric="rgb")
        return decode(file.getvalue(), "scan")

    assert "16 bit to 8 bit" in cut(9_000).conversions
    with pytest.raises(UnreadableImage, match=r"samples of 16 bits below 4,096.*scale them to 8 bits"):
        cut(4_095)


def test_arrays_of_another_shape_are_refused():
    for shape in ((4, 4, 2), (4,), (0, 4)):
        with pytest.raises(UnreadableImage):
            decode(np.zeros(shape, np.uint8), "digits[3]")


def test_float_arrays_are_refused():
    with pytest.raises(UnreadableImage, match="float32"):
        decode(np.zeros((4, 4, 3), np.float32), "digits[3]")


@pytest.mark.parametrize("name", ["jpeg", "progressive", "png", "webp", "bmp", "tiff"])
def test_a_truncated_file_is_refused_even_if_pillow_was_told_to_be_lenient(name, monkeypatch):
    data = PLAIN[name]
    lengths = np.linspace(4, len(data) - 1, 40).astype(int)
    for lenient, length in itertools.product((False, True), lengths):
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
        try:
            decoded = decode(data[:length], f"cut at {length}")
        except UnreadableImage as error:
            assert "\n" not in error.reason and error.path == f"cut at {length}"
        else:  # only checksums or padding are cut off, the picture is all there
            assert name in ("png", "bmp") and len(data) - length < 30
            np.testing.assert_array_equal(pixels(decoded), picture())
        assert lenient == ImageFile.LOAD_TRUNCATED_IMAGES


def test_a_damaged_png_gives_no_partial_picture():
    data = bytearray(encode(picture(200, 200), "PNG", compress_level=0))
    at = data.index(b"IDAT") + 4
    data[at + 3000 : at + 60000] = bytes(57000)
    with pytest.raises(UnreadableImage, match="damaged PNG"):
        decode(bytes(data), "photo.png")


def test_what_is_no_picture_is_refused_with_its_reason():
    for data, reason in (
        (b"", "empty file"),
        (bytes(3000), "zero bytes"),
        ("Straße, not a picture\n".encode() * 40, r"\(text\)"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "Git LFS"),
        (b"\0\0\0\x18ftypheic" + bytes(60), "HEIC"),
        (bytes(range(256)) * 4, "not an image"),
        (b"\xff\xd8\xff\xe0" + bytes(50), "JPEG"),
        (PLAIN["jpeg"][: len(PLAIN["jpeg"]) // 2], "truncated JPEG"),
        (PLAIN["png"][: len(PLAIN["png"]) // 2], "truncated PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", "EPS"),
    ):
        with pytest.raises(UnreadableImage, match=reason):
            decode(data, "photo.jpg")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(kind):
    data = bytearray(PLAIN["jpeg" if kind == "JPEG" else "png"])
    if kind == "JPEG":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", 65000, 65000)
    else:
        data[16:24] = struct.pack(">II", 65000, 65000)
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    with pytest.raises(UnreadableImage, match="178,956,970"):
        decode(bytes(data), "bomb")


def test_the_refusal_survives_pickling():
    error = pickle.loads(pickle.dumps(UnreadableImage("a/b.jpg", "truncated JPEG")))  # noqa: S301 (our own bytes)
    assert (error.path, error.reason, str(error)) == ("a/b.jpg", "truncated JPEG", "a/b.jpg: truncated JPEG")


@pytest.mark.parametrize("name", ["jpeg", "progressive", "jpeg 4:4:4", "restart markers"])
def test_damaged_jpegs_give_what_pillow_gives_or_are_refused(name):
    generator = np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(PLAIN[name])
        data[generator.integers(2, len(data))] = generator.integers(256)
        try:
            found = pixels(decode(bytes(data), ""))
        except UnreadableImage:
            with pytest.raises(Exception):  # noqa: B017 (Pillow raises almost anything on a damaged file)
                with_pillow(bytes(data))
        else:
            np.testing.assert_array_equal(found, with_pillow(bytes(data)))


PHOTOS = [Image.fromarray(photo) for photo in load_sample_images().images]  # 640 x 427 each


def jpeg(image, **options):
    file = io.BytesIO()
    image.save(file, "jpeg", quality=90, **options)
    return file.getvalue()


def both(data, resize, crop=None):
    reference = Preprocessing(resize=resize, crop=crop)
    fast = Preprocessing(resize=resize, crop=crop, decoder=("fast",))
    found = []
    for preprocessing in (reference, fast):
        decoded = decode(data, "photo.jpg", Wanted.by(preprocessing))
        found.append((decoded, resize_and_crop(decoded.image, preprocessing, decoded.full)))
    return found


@pytest.mark.parametrize("photo", PHOTOS, ids=["first", "second"])
def test_the_picture_is_decoded_at_the_smallest_size_that_is_large_enough(photo):
    data = jpeg(photo)
    for resize, part in ((300, 1), (107, 1), (106, 2), (54, 2), (53, 4), (27, 4), (26, 8)):
        (whole, expected), (reduced, found) = both(data, resize)
        assert whole.full is None and whole.image.shape == (3, 427, 640)
        assert reduced.image.shape == (3, -(-427 // part), 640 // part)
        assert min(reduced.image.shape[1:]) >= 2 * resize or part == 1
        assert found.shape == expected.shape
        difference = (found.int() - expected.int()).abs().float()
        if part == 1:
            assert torch.equal(found, expected)
        else:  # measured: 0.8 to 2.8
            assert 0 < difference.mean() < 3


def test_the_difference_is_no_shift_and_no_change_of_brightness():
    y, x = np.mgrid[:480, :640]
    smooth = np.stack([x * 0.3 + y * 0.1, 120 + 90 * np.sin(x / 60), 255 - y * 0.5], axis=2).clip(0, 255)
    (_, expected), (reduced, found) = both(jpeg(Image.fromarray(smooth.astype(np.uint8))), 60)
    assert reduced.full is not None
    assert (found.float() - expected.float()).abs().mean() < 0.5, "half a pixel to the side would be 1.5"


@pytest.mark.parametrize("resize", [100, (80, 60), (60, 60)])
def test_turned_pictures_come_out_upright_and_of_the_same_size(resize):
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        (whole, expected), (reduced, found) = both(jpeg(PHOTOS[0], exif=exif), resize, crop=(50, 50))
        assert reduced.full == whole.image.shape[1:]
        assert reduced.conversions == whole.conversions
        assert found.shape == expected.shape == (3, 50, 50)
        assert (found.float() - expected.float()).abs().mean() < 4


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_colour_layouts_are_the_same_pictures(mode):
    (whole, expected), (reduced, found) = both(jpeg(PHOTOS[0].convert(mode)), 100)
    assert reduced.conversions == whole.conversions
    assert (found.float() - expected.float()).abs().mean() < 2.5


@pytest.mark.parametrize("kind", ["png", "webp", "bmp"])
def test_other_formats_are_decoded_as_ever(kind):
    file = io.BytesIO()
    PHOTOS[0].save(file, kind)
    (_, expected), (reduced, found) = both(file.getvalue(), 50)
    assert reduced.full is None and torch.equal(found, expected)


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_a_truncated_jpeg_is_refused_all_the_same(options):
    data = jpeg(PHOTOS[0], **options)
    for length in np.linspace(4, len(data) - 3, 12).astype(int):
        with pytest.raises(UnreadableImage):
            decode(data[:length], "photo.jpg", Wanted(resize=50))


def test_without_a_resize_nothing_is_reduced():
    assert decode(jpeg(PHOTOS[0]), "", Wanted.by(Preprocessing(resize=None, decoder=("fast",)))).full is None


def test_libtiff_writes_nothing_to_stderr(capfd):
    file = bytearray(encode(picture(64, 64), "TIFF", compression="tiff_lzw"))
    file[1000:1600] = b"\xff" * 600
    with pytest.raises(UnreadableImage, match="damaged TIFF"):
        decode(bytes(file), "x.tif")
    assert capfd.readouterr() == ("", "")
