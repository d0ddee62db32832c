"""Images whose channels lie in several files: put together, ordered, resampled; what cannot be is refused by name."""

import json
import pickle

import numpy as np
import pytest
from PIL import Image

from sslbench.data.decode.picture import OtherChannels, UnreadableImage
from sslbench.data.export import write_kwcoco
from sslbench.data.formats.coco.assets import IDENTITY, placed
from sslbench.data.loading.loader import batches, read, survey
from sslbench.data.open import open_data, open_objects
from sslbench.errors import DataError, UsageError
from sslbench.preprocessing import Preprocessing

RGB_NIR = ("red", "green", "blue", "nir")


def grey_only(path, file):
    """A decoder of a user's own: 7 everywhere for .npy files, nothing for others."""
    return np.full((8, 10), 7, dtype=np.uint8) if path.endswith(".npy") else None


pytestmark = pytest.mark.filterwarnings("ignore:DelayedLoad may not be efficient")


@pytest.fixture
def scene(tmp_path):
    """`scene()` writes two images of 8 x 10: RGB as PNG and nir as .npy of 16 bits; gives the path and the arrays."""

    def write(n=2, **changes):
        rng = np.random.default_rng(1)
        arrays, images, annotations = [], [], []
        for i in range(n):
            rgb = rng.integers(0, 256, (8, 10, 3), dtype=np.uint8)
            nir = rng.integers(0, 65536, (8, 10), dtype=np.uint16)
            Image.fromarray(rgb).save(tmp_path / f"{i}.png")
            np.save(tmp_path / f"{i}.npy", nir)
            assets = [
                {"file_name": f"{i}.png", "channels": "red|green|blue"},
                {"file_name": f"{i}.npy", "channels": "nir", "warp_aux_to_img": {"type": "affine"}},
            ]
            image = {"id": i + 1, "file_name": None, "name": f"scene-{i}", "width": 10, "height": 8, "assets": assets}
            images.append(image | changes)
            annotations.append({"id": i, "image_id": i + 1, "category_id": 1 + i % 2, "bbox": [2, 1, 5, 4]})
            arrays.append(np.dstack([rgb.astype(np.uint16) * 257, nir]))
        categories = [{"id": 1, "name": "field"}, {"id": 2, "name": "wood"}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (tmp_path / "m.json").write_text(json.dumps(content))
        return str(tmp_path / "m.json"), arrays

    return write


def edit(spec, change):
    with open(spec) as file:  # noqa: PTH123
        content = json.load(file)
    change(content)
    with open(spec, "w") as file:  # noqa: PTH123
        json.dump(content, file)


def test_all_channels_are_one_image_and_may_be_chosen_and_ordered(scene):
    spec, arrays = scene()
    source = open_data(spec)["all"]
    assert source.ids == ("scene-0", "scene-1") and source.images.channels == RGB_NIR
    assert source.target.classes == ("field", "wood")
    for i, array in enumerate(arrays):
        assert np.array_equal(source.images.read(i), array)
    for asked in ("nir|blue", "nir,blue", "nir, blue"):
        chosen = open_data(f"{spec}?channels={asked}")["all"]
        assert np.array_equal(chosen.images.read(1), arrays[1][:, :, [3, 2]])
    rgb = open_data(f"{spec}?channels=red|green|blue")["all"].images
    assert rgb.read(0).dtype == np.uint8 and np.array_equal(rgb.read(0) * np.uint16(257), arrays[0][:, :, :3])


def test_pictures_are_as_one_file_with_all_bands_would_give_them(scene, tmp_path):
    spec, arrays = scene()
    (tmp_path / "whole").mkdir()
    for i, array in enumerate(arrays):
        np.save(tmp_path / "whole" / f"{i}.npy", array)
    whole = open_data(str(tmp_path / "whole"))["all"]
    preprocessing = Preprocessing(resize=(6, 6), crop=None, mean=(0.5,) * 4, std=(0.2,) * 4)
    found = [
        next(batches(s, np.arange(2), preprocessing, batch_size=2, workers=0)) for s in (open_data(spec)["all"], whole)
    ]
    assert np.allclose(found[0].images, found[1].images, atol=0.01)
    assert survey(open_data(spec)["all"], np.arange(2), workers=0).unreadable == ()


def test_one_channel_is_grey_for_a_network_of_three_and_four_are_refused_for_it(scene):
    spec, _ = scene()
    picture = read(open_data(f"{spec}?channels=nir")["all"].images, 0)
    assert tuple(picture.image.shape) == (3, 8, 10) and "grey to RGB" in picture.conversions
    with pytest.raises(OtherChannels, match="4 channels, the backbone takes 3"):
        read(open_data(spec)["all"].images, 0)


def test_users_decoders_and_the_limit_of_pixels_hold_for_the_files(scene):
    spec, arrays = scene()
    source = open_data(f"{spec}?channels=nir|red|green")["all"]
    own = Preprocessing(decoder=(f"{__name__}.grey_only",), resize=None, crop=None)
    picture = next(batches(source, np.arange(1), own, batch_size=1, workers=0)).images[0]
    assert (np.asarray(picture[0]) == 7).all()
    assert np.array_equal(np.asarray(picture[1]) * np.uint16(257), arrays[0][:, :, 0])
    found = survey(source, np.arange(2), workers=0, preprocessing=Preprocessing(max_pixels=79)).unreadable
    assert len(found) == 2 and "10 x 8 pixels, more than the limit of 79" in found[0][2]


def test_files_of_another_size_are_resampled_as_kwcoco_does(tmp_path):
    warped = pytest.importorskip("kwcoco")
    spec = "kwcoco:vidshapes2-msi-96"
    channels = "B1|B8|B8a|B11"
    source = open_data(f"{spec}?channels={channels}")["all"]
    write_kwcoco({"all": source}, tmp_path / "m.json")
    manifest = warped.CocoDataset(str(tmp_path / "m.json"))
    for i in range(len(source)):
        theirs = manifest.coco_image(i + 1).imdelay(channels).finalize(interpolation="linear").astype(float)
        ours = source.images.read(i).astype(float)
        # Their outermost pixels are mixed with a border of zeros, half a pixel of the smallest file (6 times) wide.
        assert np.abs(ours - theirs)[8:-8, 8:-8].max() <= 1
        assert ours.max() > 60_000


def test_an_enlarged_file_covers_the_image_to_its_edge_and_nothing_more():
    small = np.array([[[10.0], [20.0]], [[30.0], [40.0]]], dtype=np.float32)
    twice = placed(small, (2, 0, 0, 0, 2, 0), 4, 4)[:, :, 0]
    assert twice[0].tolist() == [10, 12.5, 17.5, 20] and twice[:, 3].tolist() == [20, 25, 35, 40]
    moved = placed(small, (1, 0, 1, 0, 1, 0), 2, 4)[:, :, 0]
    assert moved.tolist() == [[0, 10, 20, 0], [0, 30, 40, 0]]
    smaller = placed(np.full((8, 8, 2), 9, dtype=np.uint8), (0.25, 0, 0, 0, 0.25, 0), 2, 2)
    assert smaller.dtype == np.uint8 and (smaller == 9).all()
    assert placed(small, IDENTITY, 2, 2) is small


def test_images_with_a_file_of_their_own_are_read_from_it_unless_channels_are_named(scene, tmp_path):
    spec, arrays = scene()

    def change(content):
        for image in content["images"]:
            image |= {"file_name": image["assets"].pop(0)["file_name"], "channels": "red|green|blue"}

    edit(spec, change)
    source = open_data(spec)["all"]
    assert source.ids == ("0.png", "1.png") and read(source.images, 0).image.shape[0] == 3
    assert any("2 images with further channels in assets" in note for note in source.notes)
    both = open_data(f"{spec}?channels=nir|red")["all"]
    assert both.ids == source.ids and np.array_equal(both.images.read(0), arrays[0][:, :, [3, 0]])
    edit(spec, lambda content: [image.pop("channels") for image in content["images"]])
    with pytest.raises(UsageError, match="no image has the channel red"):
        open_data(f"{spec}?channels=nir|red")


def test_what_cannot_be_put_together_is_refused_by_name(scene):
    for change, kind, message in (
        (lambda m: m["images"][1].pop("assets"), DataError, "1 image without a file_name and without assets: id 2"),
        (lambda m: m["images"][1]["assets"].pop(), DataError, "different channels: image 1 has .*image 2 has red"),
        (lambda m: m["images"][1].update(assets="x"), DataError, "image 2: its assets are not a list of mappings"),
        (lambda m: m["images"][1]["assets"][0].pop("file_name"), DataError, "image 2: its assets are not a list"),
        (lambda m: [a.pop("channels") for i in m["images"] for a in i["assets"]], DataError, "name no channels"),
        (
            lambda m: m["images"][1]["assets"][0].update(file_name="no.png"),
            DataError,
            r"1 of 4 image files missing: no\.png",
        ),
        (lambda m: m["images"][1].update(name="scene-0"), DataError, "1 image more than once: scene-0"),
        (
            lambda m: m["images"][0]["assets"][1].update(warp_aux_to_img={"type": "affine", "scale": 0}),
            DataError,
            "warp_aux_to_img .* gives the asset no area",
        ),
        (
            lambda m: m["images"][0]["assets"][1].update(warp_aux_to_img={"type": "spline", "a": [1]}),
            DataError,
            "warp_aux_to_img .* is invalid|gives the asset no area",
        ),
    ):
        spec, _ = scene()
        edit(spec, change)
        for opened in (open_data, open_objects):
            with pytest.raises(kind, match=message):
                opened(spec)


def test_channels_that_there_are_not_are_refused(scene):
    spec, _ = scene()
    with pytest.raises(UsageError, match=r"no image has the channel swir(.|\n)*red\|green\|blue\|nir"):
        open_data(f"{spec}?channels=nir|swir")
    with pytest.raises(UsageError, match="a channel occurs twice"):
        open_data(f"{spec}?channels=nir|nir")
    edit(spec, lambda content: content["images"][1]["assets"].pop())
    with pytest.raises(DataError, match=r"image 2 has no channel nir; it has red\|green\|blue"):
        open_data(f"{spec}?channels=nir")
    assert len(open_data(f"{spec}?channels=red")["all"]) == 2


def test_a_file_with_other_bands_than_the_manifest_says_is_unreadable(scene, tmp_path):
    spec, _ = scene()
    np.save(tmp_path / "1.npy", np.zeros((8, 10, 2), dtype=np.uint8))
    (tmp_path / "0.png").write_bytes(b"\x89PNG nothing")
    source = open_data(spec)["all"]
    found = survey(source, np.arange(2), workers=0).unreadable
    assert len(found) == 2 and "2 channels in the file, the manifest names nir" in found[1][2]
    with pytest.raises(UnreadableImage):
        source.images.read(0)


def test_hashes_follow_contents_choice_and_place(scene, tmp_path):
    spec, _ = scene()
    source = open_data(spec)["all"]
    seen = {source.images_fingerprint(), open_data(f"{spec}?channels=nir|red")["all"].images_fingerprint()}
    edit(spec, lambda m: m["images"][0]["assets"][1].update(warp_aux_to_img={"type": "affine", "offset": [1, 0]}))
    seen.add(open_data(spec)["all"].images_fingerprint())
    np.save(tmp_path / "1.npy", np.ones((8, 10), dtype=np.uint16))
    source = open_data(spec)["all"]
    seen.add(source.images_fingerprint())
    assert len(seen) == 4
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    assert np.array_equal(copy.images.digests(), source.images.digests())
    last = source.select([1])
    assert last.images.path(0) == source.images.path(1) and np.array_equal(last.images.read(0), source.images.read(1))
    opened = open_data(spec)["all"]
    (tmp_path / "0.npy").unlink()
    digests = opened.images.digests()
    assert not digests[0].any() and digests[1].any()


def test_boxes_and_crops_of_such_images(scene):
    spec, arrays = scene()
    objects = open_objects(spec)["all"]
    assert objects.ids == ("scene-0", "scene-1") and objects.target.sizes.tolist() == [[8, 10]] * 2
    crops = open_data(f"{spec}?unit=annotation&min_size=1&margin=0&channels=nir|green")["all"]
    assert crops.attributes["image"] == ("scene-0", "scene-1")
    two = Preprocessing(resize=None, crop=None, mean=(0.5,) * 2, std=(0.2,) * 2)
    picture = next(batches(crops, np.arange(1), two, batch_size=1, workers=0)).images[0]
    assert np.allclose(np.asarray(picture) * 257, np.moveaxis(arrays[0][1:5, 2:7, [3, 1]], 2, 0), atol=0.01)


def test_a_manifest_written_of_them_gives_them_back(scene, tmp_path):
    spec, _ = scene()
    (tmp_path / "out").mkdir()
    for k, place in enumerate((spec, f"{spec}?channels=nir|blue")):
        before, out = open_data(place), tmp_path / "out" / f"{k}.kwcoco.json"
        assert write_kwcoco(before, out).extracted == 0
        after = open_data(str(out))
        assert after["all"].ids == before["all"].ids and after["all"].images.channels == before["all"].images.channels
        assert after["all"].fingerprint() == before["all"].fingerprint()
    boxes = open_objects(spec)
    write_kwcoco(boxes, tmp_path / "out" / "b.kwcoco.json")
    assert open_objects(str(tmp_path / "out" / "b.kwcoco.json"))["all"].fingerprint() == boxes["all"].fingerprint()
