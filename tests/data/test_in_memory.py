"""Images in memory: each kind gives the same samples as the files they came from, and bad ones are refused by place."""

import io

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

from sslbench.data.decode.handlers import picture_decoder, picture_of
from sslbench.data.in_memory import Columns, sources_of
from sslbench.errors import DataError, UsageError
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers

N = 6
LABELS = [0, 1, 2, 0, 1, 2]


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (N, 8, 9, 3), dtype=np.uint8)


@pytest.fixture
def paths(images, tmp_path):
    files = []
    for i, image in enumerate(images):
        files.append(tmp_path / f"{9 - i}.png")  # not in order of their names
        Image.fromarray(image).save(files[-1])
    return files


class Pictures(Dataset):
    """A data set as torchvision's: items are (image, class number), `classes` has the names."""

    def __init__(self, images, kind):
        self.images, self.kind, self.classes = images, kind, ["ant", "bee", "cat", "dog"]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.kind(self.images[index]), LABELS[index]


class ImageFeature:
    def __init__(self, decode=True):
        self.decode = decode


ImageFeature.__name__ = "Image"


class ClassLabel:
    names = ("ant", "bee", "cat")


class HuggingFace:
    def __init__(self, columns, features):
        self.columns, self.features = columns, features

    @property
    def column_names(self):
        return list(self.columns)

    def with_format(self, _):
        return self

    def select_columns(self, names):
        return HuggingFace({name: self.columns[name] for name in names}, {n: self.features[n] for n in names})

    def cast_column(self, name, feature):
        return HuggingFace(self.columns, {**self.features, name: feature})

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        assert not self.features["image"].decode
        return {name: cells[key] for name, cells in self.columns.items()}


def tensor(image):
    return torch.from_numpy(image).permute(2, 0, 1)


def to_tensor(image):
    return tensor(image).float() / 255


def pixels(source):
    decoder = picture_decoder(None, source.images)
    return [picture_of(source.images, i, decoder).image.permute(1, 2, 0).numpy() for i in range(len(source))]


KINDS = {
    "array": lambda images, _: (images, LABELS),
    "tensor": lambda images, _: (torch.stack([tensor(i) for i in images]), torch.tensor(LABELS)),
    "floats": lambda images, _: (torch.stack([to_tensor(i) for i in images]), np.array(LABELS)),
    "pillow": lambda images, _: ([Image.fromarray(i) for i in images], LABELS),
    "paths": lambda _, paths: (paths, LABELS),
    "series": lambda _, paths: (pd.Series(list(map(str, paths))), pd.Series(LABELS)),
    "pairs": lambda images, _: list(zip(images, LABELS, strict=True)),
    "TensorDataset": lambda images, _: TensorDataset(torch.stack([tensor(i) for i in images]), torch.tensor(LABELS)),
    "dictionaries": lambda images, _: [{"image": i, "label": label} for i, label in zip(images, LABELS, strict=True)],
}


def test_every_kind_has_the_pixels_labels_and_order_given(images, paths):
    for kind in KINDS:
        data = KINDS[kind](images, paths)
        if kind == "dictionaries":
            data = Subset(data, range(N))
        source = sources_of(data, "mine")["all"]
        assert source.target.classes == ("0", "1", "2") and source.target.values.tolist() == LABELS
        np.testing.assert_array_equal(pixels(source), images)
        assert list(source.ids) == sorted(source.ids)


def test_data_sets_name_their_classes_whatever_their_items_are(images):
    for kind in (Image.fromarray, tensor, to_tensor, np.asarray):
        data = Pictures(images, kind)
        for form in (data, DataLoader(data, batch_size=4, shuffle=True), Subset(data, range(N))):
            source = sources_of(form, "mine")["all"]
            assert source.target.classes == ("ant", "bee", "cat")
            np.testing.assert_array_equal(pixels(source), images)


def test_the_identity_is_the_content(images):
    first, second = (sources_of((array, LABELS), name)["all"] for array, name in ((images, "a"), (images.copy(), "b")))
    assert first.fingerprint() == second.fingerprint()
    assert sources_of([*images], "list")["all"].images_fingerprint() == first.images_fingerprint()
    changed = images.copy()
    changed[3, 0, 0, 0] ^= 1
    assert sources_of((changed, LABELS), "a")["all"].fingerprint() != first.fingerprint()
    assert sources_of((images, LABELS[::-1]), "a")["all"].fingerprint() != first.fingerprint()


def test_random_transforms_are_an_error_at_the_second_reading(images):
    rng = np.random.default_rng(1)
    source = sources_of(Pictures(images, lambda image: np.roll(image, rng.integers(1, 5), axis=0)), "mine")["all"]
    with pytest.raises(DataError, match="at random"):
        for _ in range(5):
            source.images.read(0)


def test_a_frame_lists_files_with_its_columns_and_splits(images, paths):
    frame = pd.DataFrame({"file": paths, "kind": LABELS, "site": list("aabbcc"), "split": ["train", "test"] * 3})
    found = sources_of(frame, "frame", Columns(image="file", label="kind", attributes=("site",)))
    assert set(found) == {"train", "test"}
    test = found["test"]  # in order of the ids, which are paths
    assert [int(i.rsplit("/", 1)[-1][0]) for i in test.ids] == [4, 6, 8]
    assert test.attributes["site"] == ("c", "b", "a") and test.target.text(0) == "2"
    with pytest.raises(UsageError, match="no column 'kinds'"):
        sources_of(frame, "frame", Columns(image="file", label="kinds"))


def test_hugging_face_data_sets_give_their_encoded_images(images, paths):
    del images
    cells = [{"bytes": path.read_bytes(), "path": None} for path in paths[:5]] + [{"bytes": None, "path": paths[5]}]
    data = HuggingFace({"image": cells, "label": LABELS}, {"image": ImageFeature(), "label": ClassLabel()})
    source = sources_of({"train": data, "validation": data}, "hub")["val"]
    assert source.target.classes == ClassLabel.names and source.name == "hub (validation)"
    assert source.images.read(5) == paths[5].read_bytes()
    assert (source.images.digests() == sources_of(paths, "files")["all"].images.digests()).all()
    with pytest.raises(UsageError, match="no column 'labels'"):
        sources_of(data, "hub", Columns(label="labels"))


def test_pictures_of_other_modes_are_decoded_like_files(images):
    grey = Image.fromarray(images[0, :, :, 0])
    turned = Image.fromarray(images[1])
    turned.getexif()[274] = 6
    buffer = io.BytesIO()
    turned.save(buffer, "PNG", exif=turned.getexif())
    pictures = [
        grey,
        grey.convert("1"),
        Image.fromarray(images[2]).convert("P"),
        Image.fromarray(images[3]).convert("CMYK"),
        Image.fromarray(images[4]).convert("RGBA"),
        Image.open(buffer),
    ]
    found = pixels(sources_of(pictures, "mine")["all"])
    expected = [picture.convert("RGB") for picture in pictures[:5]] + [Image.fromarray(np.rot90(images[1], -1))]
    for mine, true in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, np.asarray(true))


def test_several_labels_numbers_and_missing_labels(images):
    flags = np.eye(N, 4, dtype=int)
    assert isinstance(sources_of((images, flags), "m")["all"].target, MultiLabel)
    assert sources_of((images, ["a;b", "b", "a", "a", "b", "a"]), "m")["all"].target.classes == ("a", "b")
    assert isinstance(sources_of((images, np.linspace(0, 1, N)), "m")["all"].target, Numbers)
    assert not sources_of(images, "m")["all"].target.labelled


REFUSED = {
    "normalised tensors": (lambda images: [to_tensor(i) * 4 - 2 for i in images], DataError, "Normalize"),
    "a number": (lambda _: 7, UsageError, "these are no images"),
    "other lengths": (lambda images: (images, LABELS[1:]), DataError, "6 images and 5 labels"),
    "empty": (lambda _: [], DataError, "no images"),
    "words as images": (lambda _: [None, None], UsageError, "is no image"),
    "no label": (lambda images: [(images[0], 1), (images[1], None)], DataError, "no label"),
    "half a class": (lambda images: (images, [0, 1, 2, 0, 1, None]), DataError, "label is None"),
    "a matrix of numbers": (lambda images: (images, np.arange(12).reshape(6, 2)), DataError, "0, 1 and -1"),
    "a missing number": (
        lambda images: (images, pd.Series([0, 1, None] * 2, dtype="Int64")),
        DataError,
        "label is <NA>",
    ),
    "one label": (lambda images: (images, 3), DataError, "type int"),
    "a text": (lambda images: (images, "abcdef"), DataError, "type str"),
    "a mapping": (lambda images: (images, dict(enumerate("ababab"))), DataError, "type dict"),
    "an empty label": (lambda images: (images, ["a;b", "", "a", "b", "a", "b"]), DataError, "label is ''"),
    "infinite": (lambda images: (images, [0.5, 1.5, 2, float("nan"), 1, 1]), DataError, "label"),
}


OTHER_ORDERS = {
    "x.transpose(0, 2, 3, 1)": np.zeros((2, 3, 16, 16), np.uint8),
    "x.permute(0, 3, 1, 2)": torch.zeros(2, 28, 28, 1),
    "x.transpose(1, 2, 0)": [np.zeros((4, 16, 16), np.uint8)],
    "x.permute(2, 0, 1)": [torch.zeros(16, 16, 3)],
}


def test_channels_at_the_other_end_are_named_with_the_call_that_moves_them():
    for remedy in OTHER_ORDERS:
        given = OTHER_ORDERS[remedy]
        with pytest.raises(UsageError, match="looks like") as refused:
            sources_of(given, "mine")
        assert remedy in refused.value.remedy
        one = given[0] if isinstance(given, list) else given
        moved = eval(remedy, {"x": one})  # noqa: S307  the call in the message
        source = sources_of([moved] if isinstance(given, list) else moved, "mine")["all"]
        assert source.images.read(0).shape[:2] in ((16, 16), (28, 28))


def test_samples_with_none_of_the_classes_are_lists_or_flags_without_any(images):
    """Empty lists and rows of 0 are samples; an empty label is a missing one in every kind of data."""
    lists = [["a"], [], ["a", "b"], [], ["b"], ["a"]]
    flags = np.array([[1, 0], [0, 0], [1, 1], [0, 0], [0, 1], [1, 0]])
    for labels in (lists, flags, flags.astype(bool), iter(lists)):
        np.testing.assert_array_equal(sources_of((images, labels), "m")["all"].target.values, flags)
    with pytest.raises(DataError, match="label is ''") as refused:
        sources_of((images, [";".join(names) for names in lists]), "m")
    assert "only 0" in refused.value.remedy


def test_numbers_of_channels_that_tell_no_order_are_taken():
    for shape in ((2, 16, 16, 13), (2, 4, 4, 13), (2, 13, 16, 16), (3, 16, 16), (2, 3, 3, 3)):
        assert len(sources_of(np.zeros(shape, np.uint8), "mine")["all"]) == shape[0]


def test_unusable_data_are_refused_by_name(images):
    for case in REFUSED:
        make, error, words = REFUSED[case]
        with pytest.raises(error, match=words):
            sources_of(make(images), "mine")


def test_loaders_and_streams_without_a_position_are_refused(images):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(images)

    with pytest.raises(UsageError, match="list"):
        sources_of(Stream(), "mine")
    weighted = WeightedRandomSampler([1.0] * N, N)
    with pytest.raises(UsageError, match="WeightedRandomSampler"):
        sources_of(DataLoader(Pictures(images, tensor), sampler=weighted), "mine")


def test_columns_are_refused_for_data_without_any(images):
    with pytest.raises(UsageError, match="no column 'x'"):
        sources_of(images, "mine", Columns(label="x"))
