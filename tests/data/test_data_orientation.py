"""Images that EXIF turns or that were resized after annotation: other sizes are refused, unknown turns are noted."""

import json

import numpy as np
import pytest
from PIL import Image
from sample_data import davis, hpatches, spair

from sslbench.backbones.build import build
from sslbench.data.checks.parts import check_parts, open_with_boxes
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.decode.reading import DEFAULT
from sslbench.data.images import Files
from sslbench.data.maps.types import size_and_turn, unknown_orientation
from sslbench.data.open import open_as, open_data, open_objects
from sslbench.errors import DataError
from sslbench.evaluation import Request, RunSettings, make_task, prepare
from sslbench.evaluation.record import Encoded, describe
from sslbench.targets.label_maps import Foreground, LabelMaps
from sslbench.targets.pairs import Homographies, Points
from sslbench.targets.pixel_values import Boundaries, Depth, Normals
from sslbench.targets.videos import Parts, Poses, Tracks
from sslbench_visbench.signal_maps import open_signals

TAG = 0x0112
NOTE = "turned by EXIF, and annotations are taken for those of the turned pixels, which nothing in them tells"


def photo(path, size, turn, seed=0):
    """A JPEG of height and width `size` as stored, with an orientation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[TAG] = turn
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path, exif=exif)


@pytest.mark.parametrize("turn", range(1, 9))
def test_images_are_noted_whose_turn_the_size_of_their_annotations_does_not_tell(turn, tmp_path):
    for name, size in (("square", (8, 8)), ("wide", (6, 9))):
        photo(tmp_path / f"{name}.jpg", size, turn)
        for sized in (True, False):
            note = unknown_orientation("photos", Files((f"{name}.jpg",), str(tmp_path)), sized=sized)
            tells = sized and name == "wide" and turn >= 5
            assert (note is None) == (turn == 1 or tells), (name, sized)
            assert note is None or (note.startswith(f"photos: 1 of 1 image is {NOTE}") and "exiftool" in note)


FILES = {
    "label maps": ("masks", lambda file, grid: Image.fromarray(grid).save(file.with_suffix(".png"))),
    "masks": ("masks", lambda file, grid: Image.fromarray(np.uint8(255) * grid).save(file.with_suffix(".png"))),
    "boundaries": (
        "boundaries",
        lambda file, grid: Image.fromarray(np.where(grid > 1, 255, 0).astype(np.uint8)).save(file.with_suffix(".png")),
    ),
    "depth": ("depth", lambda file, grid: np.save(file.with_suffix(".npy"), 1.0 + grid)),
    "normals": ("normals", lambda file, grid: np.save(file.with_suffix(".npy"), np.ones((*grid.shape, 3)))),
    "signals": ("depth", lambda file, grid: np.save(file.with_suffix(".npy"), 1.0 + grid)),
}
OPENED = {
    "label maps": lambda place: open_as(place, LabelMaps)["all"].target.maps.read_map(0),
    "masks": lambda place: open_as(place, Foreground)["all"].target.maps.read_map(0),
    "boundaries": lambda place: values(open_as(place, Boundaries)["all"]),
    "depth": lambda place: values(open_as(place, Depth)["all"]),
    "normals": lambda place: values(open_as(place, Normals)["all"]),
    "signals": lambda place: values(open_signals(f"{place}?maps=depth")["all"]),
}


def values(source):
    return source.target.pixels.read_values(0, size=(9, 6))


def with_maps(root, kind, turn, size=(6, 9), drawn=None):
    """Two images and their maps, by default drawn on the stored pixels."""
    folder, save = FILES[kind]
    (root / folder).mkdir(parents=True)
    grid = np.zeros(drawn or size, np.uint8)
    grid[:2], grid[2] = 1, 2 if kind == "boundaries" else 1
    for i in range(2):
        photo(root / "images" / f"{i}.jpg", size, turn, i)
        save(root / folder / str(i), grid)
    return str(root)


@pytest.mark.parametrize("kind", FILES)
def test_maps_of_the_stored_pixels_of_a_turned_image_are_refused(kind, tmp_path):
    place = with_maps(tmp_path, kind, turn=6)
    with pytest.raises(
        DataError, match=r"is 9 x 6 pixels, but its image 6 x 9: .* before its EXIF rotation(.|\n)*exiftool"
    ):
        OPENED[kind](place)


PROTOCOLS = {
    "label maps": ("segmentation", {"lr": (0.001,)}),
    "masks": ("saliency", {}),
    "boundaries": ("edges", {"lr": (0.001,)}),
    "depth": ("depth", {"lr": (0.001,)}),
    "normals": ("normals", {"lr": (0.001,)}),
    "signals": ("low-level", {"lr": (0.001,)}),
}
NET = build("resnet18w0.125")
UNITS = ("annotation", "tile&size=16")


def notes_of(protocol, place, **settings):
    """Notes of the record of a protocol on a place."""
    request = Request(weights="w.torch", data=str(place), tasks=(make_task(protocol, settings),))
    prepared = prepare(request, RunSettings(device="cpu", workers=0, test_fraction=0.5), backbone=NET)
    parts = ({"": part} for part in (prepared.data.train, prepared.data.test))
    return describe(prepared, NET, "", Encoded(*parts, (), 0.0, 0), "a command").notes


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize(("turn", "size"), [(3, (6, 9)), (6, (8, 8))])
def test_maps_that_do_not_tell_their_turn_are_noted_in_the_record(kind, turn, size, tmp_path, caplog):
    """Maps of photographs turned by 180 degrees have their size: an mIoU of 98.50 fell to 30.29 without a word."""
    place = with_maps(tmp_path, kind, turn, size)
    name, settings = PROTOCOLS[kind]
    notes = notes_of(name, f"{place}?maps=depth" if kind == "signals" else place, **settings)
    noted = [note for note in notes if NOTE in note]
    assert len(noted) == (1 if name == "saliency" else 2)
    assert [record.levelname for record in caplog.records if NOTE in record.getMessage()] == ["WARNING"] * len(noted)


@pytest.mark.parametrize("kind", ["label maps", "depth"])
def test_maps_of_the_turned_pixels_have_no_note(kind, tmp_path):
    name, settings = PROTOCOLS[kind]
    notes = notes_of(name, with_maps(tmp_path, kind, 6, (6, 9), (9, 6)), **settings)
    assert not any(NOTE in note for note in notes)


def test_masks_of_videos_and_points_of_turned_images_are_noted(tmp_path):
    davis.make(tmp_path / "davis")
    for file in (tmp_path / "davis").glob("JPEGImages/**/*.jpg"):
        photo(file, (12, 20), 3)
    (note,) = notes_of("tracking", tmp_path / "davis")
    assert "8 of 8 images are" in note
    hpatches.make(tmp_path / "hpatches")
    image = next((tmp_path / "hpatches").glob("*/1.*"))
    photo(image.with_suffix(".jpg"), Image.open(image).size[::-1], 6)
    image.unlink()
    no_size, note = notes_of("correspondence", tmp_path / "hpatches")
    assert NOTE in note and "say no size of images" in no_size


def test_masks_of_the_stored_pixels_of_a_turned_frame_are_refused(tmp_path):
    davis.make(tmp_path)
    photo(tmp_path / "JPEGImages/480p/cow/00000.jpg", (12, 20), 6)
    with pytest.raises(DataError, match=r"1 masks are not of the size.*before its EXIF rotation(.|\n)*exiftool"):
        open_as(str(tmp_path), Tracks, Parts, Poses)


@pytest.mark.parametrize(
    ("size", "turn", "says"), [((24, 40), 1, "annotation is 20 x 12 .* 40 x 24"), ((12, 20), 6, "EXIF")]
)
def test_points_of_images_of_another_size_are_refused(size, turn, says, tmp_path):
    """Images of SPair that were resized after annotation fell from a PCK of 81.25 to 6.25 without a word."""
    place = spair.make(tmp_path)
    photo(tmp_path / "JPEGImages/cat/b.jpg", size, turn)
    points = {
        name: spair.annotation(*both, trg_kps=[[4, 4], [5, 8]], src_kps=[[3, 4], [5, 8]])
        for name, both in spair.PAIRS.items()
    }
    for name, content in points.items():
        (tmp_path / "PairAnnotation/test" / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(
        DataError, match=rf"1 of 3 images have another size than their annotations: cat/b.jpg \(.*{says}"
    ):
        open_as(place, Points, Homographies)


def test_what_was_left_out_of_the_data_stands_in_the_record(tmp_path):
    place = with_maps(tmp_path, "depth", 1)
    photo(tmp_path / "images" / "without.jpg", (6, 9), 1)
    notes = notes_of("depth", place, lr=(0.001,))
    assert any("1 images without a depth file are left out" in note for note in notes)


@pytest.mark.parametrize("turn", [1, 3])
def test_crops_of_boxes_of_turned_images_are_noted_and_tiles_are_not(turn, tmp_path):
    images, boxes = [], []
    for i in range(8):
        photo(tmp_path / f"{i}.jpg", (20, 30), turn, i)
        images.append({"id": i, "file_name": f"{i}.jpg", "width": 30, "height": 20})
        boxes.append(
            {"id": i, "image_id": i, "category_id": 1 + i % 2, "bbox": [1, 2, 12, 10], "area": 120, "iscrowd": 0}
        )
    content = {"images": images, "annotations": boxes, "categories": [{"id": k, "name": f"class {k}"} for k in (1, 2)]}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    noted = [any(NOTE in note for note in notes_of("knn", f"{tmp_path}/boxes.json?unit={u}", k=(1,))) for u in UNITS]
    assert noted == [turn == 3, False]


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("turn", range(2, 9))
def test_turns_are_found_in_the_heads_of_files(suffix, turn, tmp_path, monkeypatch):
    """Whole files of a large data set would be read before the start."""
    file = tmp_path / f"a.{suffix}"
    photo(file, (6, 9), turn)
    monkeypatch.setattr(Files, "read", lambda *_: pytest.fail("a whole file was read"))
    turned = unknown_orientation("photos", Files([file]), sized=False)
    assert turned is not None and "1 of 1 image is" in turned
    assert size_and_turn(Files([file]), 0) == ((9, 6) if turn >= 5 else (6, 9), True)


@pytest.mark.parametrize(("turn", "size"), [(3, (6, 9)), (2, (6, 9)), (6, (6, 6))])
def test_maps_and_depth_with_an_orientation_of_their_own_are_refused(turn, size, tmp_path):
    exif = Image.Exif()
    exif[TAG] = turn
    for i in range(4):
        photo(tmp_path / "images" / f"{i}.jpg", size, turn)
        for kind in ("masks", "depth"):
            (tmp_path / kind).mkdir(exist_ok=True)
            Image.fromarray(np.full(size, i, np.uint8)).save(tmp_path / kind / f"{i}.png", exif=exif)
    for read in (
        lambda: open_as(f"{tmp_path}?images=images&maps=masks", LabelMaps),
        lambda: open_as(str(tmp_path), Depth)["all"].target.pixels.read_values(0),
    ):
        with pytest.raises((DataError, UnreadableImage), match=r"an EXIF orientation of its own.*exiftool"):
            read()


def test_boxes_whose_sizes_are_those_of_the_files_are_noted(tmp_path):
    for i in range(4):
        photo(tmp_path / f"{i}.jpg", (40, 60), 6)
    for sides in ("width,height,", ""):
        rows = [f"{i}.jpg,{'40,60,' if sides else ''}cat,5,5,25,25" for i in range(4)]
        (tmp_path / "b.csv").write_text("\n".join([f"filename,{sides}class,xmin,ymin,xmax,ymax", *rows]))
        part = open_objects(str(tmp_path / "b.csv"))["all"]
        assert part.sized == bool(sides)
        opened = open_with_boxes(str(tmp_path / "b.csv"), None, seed=0, test_fraction=0.5)
        found = check_parts(opened, copies=False, decode=0, workers=0, reading=DEFAULT).findings
        assert any(NOTE.partition(",")[0] in finding.message for finding in found) == (not sides)
    boxes = [{"id": i, "image_id": i, "category_id": 1, "bbox": [5, 5, 20, 20]} for i in range(4)]
    for size in ({"width": 40, "height": 60}, {}):
        images = [{"id": i, "file_name": f"{i}.jpg", **size} for i in range(4)]
        content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
        (tmp_path / "m.json").write_text(json.dumps(content))
        assert open_objects(str(tmp_path / "m.json"))["all"].sized == bool(size)
        crops = open_data(f"{tmp_path / 'm.json'}?unit=annotation")["all"]
        assert crops.sized == bool(size)
