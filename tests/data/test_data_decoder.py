"""Files go through handlers in turn: the user's, the source's, the default; the first answer wins."""

import io
import pickle
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import sslbench
from sslbench import user_code
from sslbench.cli.commands.check_data import command
from sslbench.data.decode.handlers import (
    Decoder,
    PictureDecoder,
    PictureHandler,
    identified,
    make_decoder,
    name_of,
    picture_decoder,
    resolve,
)
from sslbench.data.decode.picture import RGB, Decoded, OtherChannels, UnreadableImage, Wanted
from sslbench.data.decode.reading import names_of_handlers
from sslbench.data.loading import loader
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.preprocessing import Preprocessing


def png(value=7, size=(4, 6)):
    file = io.BytesIO()
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(file, "png")
    return file.getvalue()


def read_all(path, file):
    return (path, file.read())


def text(path, file):
    return file.read().decode() if path.endswith(".txt") else None


def nothing(path, file):
    file.read()


def failing(path, file):
    raise ZeroDivisionError("of\nsome library")


class Held:
    """A source's images, with a handler of its own."""

    def __init__(self, content, handlers=()):
        self.content, self.handlers = content, handlers

    def __len__(self):
        return len(self.content)

    def read(self, index):
        return self.content[index]

    def path(self, index):
        return f"scans/{index}.dcm"


class TestRouting:
    def test_the_first_answer_wins_and_every_handler_reads_from_the_start(self):
        for content in (b"abc", io.BytesIO(b"abc")):
            assert Decoder(nothing, text, read_all)("a.bin", content)["data"] == ("a.bin", b"abc")
            assert Decoder(nothing, text, read_all)("a.txt", content)["data"] == "abc"

    def test_falsy_answers_are_answers(self):
        assert Decoder(lambda path, file: 0, read_all)("a", b"")["data"] == 0

    def test_what_nobody_takes_is_an_error_that_names_who_was_asked(self):
        with pytest.raises(UnreadableImage, match=r"a\.bin: no handler takes it \(.*nothing, .*text\)"):
            Decoder(nothing, text)("a.bin", b"abc")

    def test_without_must_decode_it_stays_as_it_is(self):
        raw = Decoder(nothing, must_decode=False)
        assert raw("a.bin", b"abc") == {"buffer": b"abc", "path": "a.bin"}
        assert raw("a.bin", b"abc", prefix="mask", include_path=False) == {"mask_buffer": b"abc"}
        assert Decoder(must_decode=False).route("a.bin", b"abc") == (None, None)

    def test_prefix_and_path_stand_in_the_sample(self):
        decoder = Decoder(text, lambda path, file: {"frames": 3, "rate": 25})
        sample = {**decoder("a.txt", b"abc", prefix="note"), **decoder("b.mp4", b"", prefix="video")}
        assert sample == {"note": "abc", "note_path": "a.txt", "frames": 3, "rate": 25, "video_path": "b.mp4"}

    def test_a_handler_that_fails_makes_the_file_unreadable_in_one_line(self):
        with pytest.raises(UnreadableImage) as caught:
            Decoder(failing)("a.bin", b"abc")
        assert caught.value.reason == f"{name_of(failing)}: ZeroDivisionError: of some library"

    def test_errors_for_the_user_are_not_a_property_of_the_file(self):
        def refuse(path, file):
            raise DataError("the licence server is down")

        with pytest.raises(DataError, match="licence"):
            Decoder(refuse)("a.bin", b"abc")

    def test_it_can_be_sent_to_other_processes(self):
        decoder = PictureDecoder(Decoder(text, PictureHandler(Wanted(4, max_pixels=9))), Wanted(4))
        copy = pickle.loads(pickle.dumps(decoder))  # noqa: S301 - our own bytes
        assert copy.decoder.handlers[0] is text
        assert copy.decoder.handlers[1].wanted.max_pixels == 9


class TestPictureHandler:
    def test_the_users_come_before_the_sources_and_those_before_the_default(self, tmp_path, monkeypatch):
        (tmp_path / "handlers_of_a_user.py").write_text(
            "import numpy as np\n"
            "def odd(path, file):\n"
            "    return np.full((2, 2, 3), 1, np.uint8) if path.endswith('1.dcm') else None\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])

        def of_source(path, file):
            return None if path.endswith("2.dcm") else np.full((2, 2, 3), 2, np.uint8)

        images = Held([png()] * 3, (of_source,))
        decoder = picture_decoder(Preprocessing(decoder=("handlers_of_a_user.odd", "reference")), images)
        found = [loader.read(images, i, decoder) for i in range(3)]
        assert [int(decoded.image[0, 0, 0]) for decoded in found] == [2, 1, 7]
        assert [d.conversions for d in found] == [
            (f"decoded by {name_of(of_source)}",),
            ("decoded by handlers_of_a_user.odd",),
            (),
        ]
        assert [int(loader.read(images, i).image[0, 0, 0]) for i in range(3)] == [2, 2, 7]

    @pytest.mark.parametrize("deep", [False, True])
    def test_whatever_a_handler_returns_is_the_same_picture(self, deep):
        for value in (
            np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
            torch.arange(24, dtype=torch.uint8).reshape(2, 4, 3).permute(2, 0, 1),
            Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3)),
            np.arange(24, dtype=np.uint16).reshape(2, 4, 3) * 257,
            np.arange(24).reshape(2, 4, 3) / 255,
            torch.arange(24).reshape(2, 4, 3).permute(2, 0, 1) / 255,
            Decoded(torch.arange(24, dtype=torch.uint8).reshape(2, 4, 3).permute(2, 0, 1), ()),
            Decoded(torch.arange(24, dtype=torch.int32).reshape(2, 4, 3).permute(2, 0, 1), ()),
        ):
            decoder = PictureDecoder(Decoder(lambda path, file, value=value: value), Wanted(deep=deep))
            image = decoder("a", b"").image
            assert image.shape == (3, 2, 4)
            assert image.dtype == torch.uint8 or deep
            np.testing.assert_allclose(
                image.permute(1, 2, 0).numpy(),
                np.arange(24).reshape(2, 4, 3),
                atol=0 if image.dtype == torch.uint8 else 4e-3,
            )

    def test_what_is_no_picture_as_wanted_is_unreadable(self):
        for value, reason in (
            (np.zeros((3, 4, 5), np.uint8), "5 channels, the backbone takes 3"),
            (np.zeros((200, 200), np.uint8), "200 x 200 pixels, more than the limit of 1,000"),
            (np.zeros((0, 4), np.uint8), "shape"),
            (np.zeros((3, 3), np.int64), "int64"),
            (np.full((3, 3), 1.5), "values from 1.5 to 1.5"),
            (np.full((3, 3), np.nan), "values from nan"),
        ):
            decoder = PictureDecoder(Decoder(lambda path, file, value=value: value), Wanted(max_pixels=1000))
            with pytest.raises(UnreadableImage, match=reason):
                decoder("a", b"")

    def test_a_handler_that_returns_no_picture_at_all_is_the_users_mistake(self):
        with pytest.raises(UsageError, match=r"returned a dict for a\.png"):
            PictureDecoder(Decoder(lambda path, file: {"image": 1}))("a.png", b"")

    def test_arrays_of_a_source_are_decoded_already(self):
        decoder = PictureDecoder(Decoder(failing))
        assert decoder("digits[1]", np.zeros((4, 4), np.uint8)).image.shape == (3, 4, 4)

    def test_left_undecoded_is_no_picture(self):
        with pytest.raises(UnreadableImage, match="undecoded"):
            PictureDecoder(Decoder(must_decode=False))("a.png", png())

    def test_a_backbone_for_one_channel_gets_rgb_of_which_the_luminance_is_taken(self):
        assert Wanted.by(Preprocessing(mean=(0.5,), std=(0.5,))).channels == 3
        with pytest.raises(OtherChannels):
            make_decoder((), Wanted(4), Held([]))("a.png", png())
        assert make_decoder((), RGB, Held([]))("a.png", png()).conversions == ()


class TestNames:
    @pytest.fixture(autouse=True)
    def module(self, tmp_path, monkeypatch):
        (tmp_path / "a_module_of_handlers.py").write_text("def dicom(path, file): ...\nnumber = 3\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        yield tmp_path / "a_module_of_handlers.py"
        sys.modules.pop("a_module_of_handlers", None)

    @pytest.mark.parametrize("name", ["a_module_of_handlers.dicom", "a_module_of_handlers:dicom"])
    def test_a_function_is_found_by_its_name(self, name):
        (handler,) = resolve(("fast", name))
        assert name_of(handler) == "a_module_of_handlers.dicom"
        assert resolve((name + "@0a1b2c3d",)) == (handler,)

    def test_a_wrong_name_is_an_error_with_the_nearest(self):
        for names, words in (
            (("fats",), "Did you mean 'fast'"),
            (("a_module_of_handlers.dicon",), "Did you mean 'dicom'"),
            (("no_such_module_here.dicom",), "no_such_module_here"),
            (("a_module_of_handlers.number",), "is not a function"),
            (("fast", "reference"), "exclude each other"),
        ):
            with pytest.raises(UsageError, match=words):
                identified(names)

    def test_a_handlers_name_changes_with_its_code_and_only_then(self, module):
        first = identified(("a_module_of_handlers.dicom",))
        assert first == identified(first)
        assert first[1] == "reference" and first[0].startswith("a_module_of_handlers.dicom@")
        module.write_text(module.read_text() + "# another version\n")
        assert identified(first) != first
        assert identified(("fast",)) == ("fast",)


def read_raw(path, file):
    if not path.endswith(".RAW8"):
        return None
    return np.frombuffer(file.read(), np.uint8).reshape(8, 8)


read_raw.suffixes = (".raw8",)


class Brighter:
    """A handler with a state, whose name does not tell it."""

    suffixes = (".raw8",)

    def __init__(self, by):
        self.by = by

    def __call__(self, path, file):
        return read_raw(path, file) // 2 + self.by


@pytest.fixture
def scans(tmp_path):
    """Files that only the user's own handler can read, in folders by class, dark and bright."""
    noise = np.random.default_rng(0)
    for split, number in (("train", 6), ("test", 4)):
        for name, least in (("dark", 0), ("bright", 100)):
            folder = tmp_path / "scans" / split / name
            folder.mkdir(parents=True)
            for i in range(number):
                pixels = (noise.integers(0, 90, (8, 8)) + least).astype(np.uint8)
                (folder / f"{i}.RAW8").write_bytes(pixels.tobytes())
    return str(tmp_path / "scans")


class TestFilesOfAnySuffix:
    def test_a_folder_lists_the_files_that_a_handler_declares(self, scans):
        with pytest.raises(DataError, match=r"has no image \(12 files of other kinds \(\.raw8\)\)"):
            open_data(scans)
        decoder = names_of_handlers(read_raw)
        parts = open_data(scans, decoder=decoder)
        assert {split: len(part) for split, part in parts.items()} == {"train": 12, "test": 8}
        assert parts["train"].ids[0] == "bright/0.RAW8" and parts["train"].target.classes == ("bright", "dark")
        joined = open_data(f"several:a={scans},b={scans}", decoder=decoder)
        assert len(joined["train"]) == 24

    def test_files_of_several_kinds_are_samples_beside_each_other(self, scans, tmp_path):
        (tmp_path / "scans" / "train" / "dark" / "7.png").write_bytes(png())
        assert len(open_data(scans, decoder=names_of_handlers(read_raw))["train"]) == 13

    @pytest.mark.parametrize("suffixes", [".raw8", ("raw8",), (8,), (".a/b",), 3, None])
    def test_what_is_no_list_of_suffixes_is_refused(self, scans, suffixes):
        odd = Brighter(1)
        odd.suffixes = suffixes
        with pytest.raises(UsageError, match="suffixes of a decoder are"):
            open_data(scans, decoder=names_of_handlers(odd))


class TestObjects:
    def run(self, scans, decoder, network=None):
        network = network or torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
        return sslbench.evaluate(
            network,
            scans,
            protocols=["knn"],
            settings={"knn": {"k": [3]}},
            decoder=decoder,
            resize=8,
            crop=8,
            floors=False,
            overlaps=False,
            workers=0,
        )

    def test_functions_decoders_and_objects_are_given_from_python(self, scans):
        one, other = Brighter(1), Brighter(100)
        for decoder in (read_raw, Decoder(read_raw), [lambda path, file: None, one]):
            assert self.run(scans, decoder)[0].metrics["top1"].value == 100.0
        for decoder in ("reference", lambda path, file: None):
            with pytest.raises(DataError, match="has no image"):
                self.run(scans, decoder)
        names = [identified(names_of_handlers(each))[0] for each in (read_raw, one, other, one)]
        assert names[0].startswith(f"{__name__}:read_raw@")
        # Equal code, another state: features of one are not those of the other, nor of the same object later.
        assert len({*names[1:]}) == 3
        assert name_of(resolve(names[1:2])[0]).endswith("Brighter") and resolve(names[1:2])[0] is one
        user_code.of_process.cache_clear()  # as in another process, where the same number is another object
        assert (
            identified(names_of_handlers(one))[0] != names[1] and identified(names_of_handlers(read_raw))[0] == names[0]
        )

    def test_features_of_an_object_that_changed_are_not_used_again(self, scans, monkeypatch, tmp_path):
        calls = []

        class Counting(Brighter):
            def __call__(self, path, file):
                calls.append(self.by)
                return super().__call__(path, file)

        monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
        counting = Counting(1)
        self.run(scans, counting, "pixels:4")  # whose features are stored by name
        counting.by = 100
        self.run(scans, counting, "pixels:4")
        assert calls.count(100) == calls.count(1) > 0

    def test_a_function_that_its_module_has_not_is_an_object(self, monkeypatch):
        monkeypatch.setattr(read_raw, "__qualname__", "gone")
        assert names_of_handlers(read_raw)[0].startswith("object ")

    def test_several_processes_take_functions_of_modules(self, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "0")
        with pytest.raises(UsageError, match=r"Brighter is an object, which several (.|\n)*decoder='my_pkg"):
            names_of_handlers(Brighter(1))
        assert names_of_handlers(read_raw) == (f"{__name__}:read_raw",)

    def test_an_object_of_another_process_is_a_message(self):
        with pytest.raises(UsageError, match="was an object of another process"):
            resolve(("object 12345: readers.Brighter@0a1b2c3d",))

    @pytest.mark.parametrize("decoder", [3, [3], {"png": read_raw}])
    def test_what_is_no_handler_is_refused(self, scans, decoder):
        with pytest.raises(UsageError, match=r"Give functions of \(path, file\)"):
            self.run(scans, decoder)


class TestNone:
    @pytest.fixture
    def undecodable(self, tmp_path):
        for name, content in (("a/1", b"one"), ("a/2", b"two"), ("b/1", b"three"), ("b/2", b"four")):
            file = tmp_path / f"{name}.jpg"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
        return str(tmp_path)

    def check(self, *arguments):
        result = CliRunner().invoke(command, arguments)
        return result.exit_code, result.output + str(result.exception or "")

    def test_data_are_checked_without_decoding(self, undecodable):
        code, text = self.check(undecodable, "--decoder", "none")
        assert code == 0 and "decoded: 0 of 4 images" in text, text
        code, text = self.check(undecodable)
        assert code == 1 and "a/1.jpg" in text

    @pytest.mark.parametrize("flags", [("--decode", "all"), ("--near-copies", "pixels"), ("--sheet", "x.png")])
    def test_flags_that_need_decoded_images_are_refused(self, undecodable, flags):
        code, text = self.check(undecodable, "--decoder", "none", *flags)
        assert code != 0 and f"{flags[0]} does not go with --decoder none" in text

    @pytest.mark.parametrize("decoder", [None, "none", ["none", "fast"]])
    def test_a_network_takes_images(self, undecodable, decoder):
        with pytest.raises(UsageError, match=r"networks take images\nDecode them by a function of your own"):
            sslbench.evaluate(torch.nn.Flatten(), undecodable, protocols="knn", decoder=decoder)
