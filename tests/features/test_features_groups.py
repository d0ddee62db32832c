"""Features of images of any channels and sizes, and groups of samples."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from PIL import Image

from sslbench.backbones.build import build
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.pools import most_regions, region_maxima
from sslbench.cli.main import main
from sslbench.data.decode.transforms import normalise
from sslbench.data.images import Files
from sslbench.data.labels import single_labels
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.errors import BackboneError, DataError, UsageError
from sslbench.evaluation import RunSettings, evaluate_features, make_task
from sslbench.evaluation.preparation import with_preprocessing
from sslbench.features import store
from sslbench.features.array import ExtractSettings, Features
from sslbench.features.external import FeaturePair, read_train_test
from sslbench.features.extract import extract, store_key
from sslbench.identity import FeatureKey
from sslbench.preprocessing import Preprocessing
from sslbench.results.records import read_tree
from sslbench.targets.classes import Classes
from sslbench.targets.none import Unlabelled

RUN = RunSettings(device="cpu", workers=0, floors=False)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Forty bright and dark pictures from two sites, in a CSV; rows are not in the order of the ids."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    rows = []
    for i in rng.permutation(40).tolist():
        pixels = (rng.integers(0, 90, (8, 8, 3)) + 150 * (i % 2)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i:02d}.png")
        rows.append((f"{i:02d}.png", ("dark", "bright")[i % 2], ("north", "south", "")[(i // 2) % 3], i))
    with (tmp_path / "all.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "site", "number"), *rows])
    return {name: site for name, _, site, _ in rows}


def command(*words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def extracted(*words):
    arguments = ["extract", "--weights", "pixels:4", "--data", "all.csv", "--store", "store", *words]
    assert command(*arguments, "--device", "cpu", "--workers", "0") == 0


def index():
    (file,) = Path("store").glob("*/index.csv")
    with file.open(newline="") as handle:
        return file, list(csv.DictReader(handle))


def test_extract_writes_the_columns_and_eval_scores_by_them(table, capsys):
    extracted("--groups", "site")
    file, rows = index()
    assert {row["id"]: row["site"] for row in rows} == table
    arguments = ["eval", "knn", "k=3", "--features", str(next(file.parent.glob("*.npy"))), "--labels", str(file)]
    assert command(*arguments, "--groups", "site", "--out", "r") == 0
    (result,) = read_tree("r")
    found = {group.name: group.metric.n for group in result.groups["site"]}
    assert set(found) == {"north", "south", "(empty)"}
    assert sum(found.values()) == result.data.test.n_used == 8
    assert "north" in capsys.readouterr().out


def test_columns_are_added_to_features_that_are_there(table, capsys):
    extracted()
    file, before = index()
    assert "site" not in before[0]
    stamp = next(file.parent.glob("*.npy")).stat().st_mtime_ns
    extracted("--groups", "site")
    _, after = index()
    assert [{**row, "site": table[row["id"]]} for row in before] == after
    extracted()
    assert index()[1] == after, "columns that are there stay"
    written = file.stat()
    extracted()
    again = file.stat()
    same = (again.st_ino, again.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert same, "an index of the same data is not written again"
    assert next(file.parent.glob("*.npy")).stat().st_mtime_ns == stamp


def test_a_test_set_of_its_own_is_a_part_of_that_name(table, capsys):
    extracted("--test-data", "all.csv")
    parts = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert parts == ["all", "test"]


def test_images_that_were_left_out_have_no_line(table):
    Path("07.png").write_bytes(b"")
    extracted("--groups", "site", "--on-error", "skip")
    _, rows = index()
    assert len(rows) == 39 and {row["id"]: row["site"] for row in rows} == {
        k: v for k, v in table.items() if k != "07.png"
    }


def test_a_column_that_is_not_there_is_named_with_the_remedy(table, capsys):
    extracted()
    file, _ = index()
    arguments = ["eval", "knn", "--features", str(next(file.parent.glob("*.npy"))), "--out", "r"]
    assert command(*arguments, "--labels", str(file), "--groups", "site") == 2
    text = capsys.readouterr().err
    assert "has no column 'site'" in text and "sslbench extract --groups site" in text
    assert command(*arguments, "--groups", "site") == 2
    assert "needs --labels" in capsys.readouterr().err


def made(tmp_path, groups, n=20):
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    lines = [(f"{(i * 7) % n:03d}", "ab"[i % 2], groups[i]) for i in range(n)]
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label", "site"), *lines])
    return read_train_test(
        *(tmp_path / "x.npy", tmp_path / "x.csv", None, None),
        label_column=None,
        test_fraction=0.5,
        seed=0,
        attribute_columns=("site",),
    ), {name: site for name, _, site in lines}


def test_groups_follow_the_ids_and_not_the_lines(tmp_path):
    pair, sites = made(tmp_path, [str(i % 3) for i in range(20)])
    for part in (pair.train, pair.test, pair.whole):
        assert part.attributes["site"] == tuple(sites[name] for name in part.ids)
    assert pair.test.select(np.array([2, 0])).attributes["site"] == tuple(sites[pair.test.ids[i]] for i in (2, 0))


def test_columns_that_divide_into_nothing_are_refused(tmp_path):
    pair, _ = made(tmp_path, [str(i) for i in range(20)])
    with pytest.raises(DataError, match=r"x\.npy: the column 'site' has 10 different values among 10 samples"):
        evaluate_features(pair, [make_task("knn", {"k": (1,)})], RUN, out=tmp_path / "r", command="test")
    assert not (tmp_path / "r").exists()


def test_a_table_without_the_column_is_refused_by_extract(table):
    with pytest.raises(UsageError, match="no column 'sitte'"):
        open_data("all.csv", attribute_columns=("sitte",))


def test_features_without_columns_are_as_before():
    features = Features(np.zeros((2, 3)), single_labels(["a", "b"]), ("x", "y"))
    assert features.attributes == {} and features.select(np.array([1])).attributes == {}


def test_chosen_rows_are_drawn_in_the_order_of_all():
    features = Features(np.zeros((4, 3)), single_labels(list("abab")), tuple("wxyz"), rank=np.array([2, 0, 3, 1]))
    assert [features.ids[row] for row in features.order] == list("xzwy")
    chosen = features.select(np.array([0, 2, 3]))
    assert [chosen.ids[row] for row in chosen.order] == list("zwy")


def test_rows_of_a_table_of_labels_belong_together_where_a_column_says_so(tmp_path):
    made(tmp_path, [str(i // 4) for i in range(20)])
    given = {"label_column": None, "test_fraction": 0.4, "seed": 0}
    plain = read_train_test(tmp_path / "x.npy", tmp_path / "x.csv", None, None, **given)
    pair = read_train_test(tmp_path / "x.npy", tmp_path / "x.csv?group=site", None, None, **given)
    assert plain.train.groups is None and "by site" in pair.how
    sites = {name: site for name, _, site in list(csv.reader((tmp_path / "x.csv").open()))[1:]}
    own = [{sites[name] for name in part.ids} for part in (pair.train, pair.test)]
    assert own[0] and own[1] and not own[0] & own[1]
    for part in (pair.train, pair.test):
        for i, j in ((0, 1), (0, len(part) - 1), (2, 3)):
            assert (part.groups[i] == part.groups[j]) == (sites[part.ids[i]] == sites[part.ids[j]])
    (result,) = evaluate_features(pair, [make_task("knn", {"k": (1,)})], RUN, out=tmp_path / "r", command="test")
    assert (result.data.train.groups, result.data.test.groups) == (len(own[0]), len(own[1]))
    for option, words in (
        ("?group=place", "no column 'place'"),
        ("?groups=site", r"The options are \?group=COLUMN"),
    ):
        with pytest.raises(UsageError, match=words):
            read_train_test(tmp_path / "x.npy", tmp_path / f"x.csv{option}", None, None, **given)


@pytest.mark.parametrize(("value", "said"), [(0.0, "same features, all zeros"), (0.5, "same features, so")])
def test_features_without_differences_are_said(tmp_path, value, said, caplog):
    x = np.full((12, 3), value, np.float32)
    labels = single_labels(["a", "b"] * 6)
    train, test = (Features(x, labels, tuple(f"{part}{i}" for i in range(12))) for part in ("r", "s"))
    pair = FeaturePair(train, test, how="", name="x", data="x", known_by="ids")
    (result,) = evaluate_features(pair, [make_task("knn", {"k": (1,)})], RUN, out=tmp_path / "r", command="test")
    (note,) = (note for note in result.notes if "same features" in note)
    assert said in note and "train and of test" in note and note in caplog.text


SIZES = [(40, 64), (64, 40), (64, 64), (40, 64), (64, 40)]
OWN = Preprocessing(resize=None, crop=None)


@pytest.fixture(scope="module")
def backbone():
    torch.set_num_threads(1)
    return dataclasses.replace(build("resnet_basic_1-1-1-1w0.25"), preprocessing=OWN)


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    files = []
    for i, size in enumerate(SIZES):
        files.append(tmp_path / f"{i}.png")
        Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(files[-1])
    labels = Classes(("a",), np.zeros(len(files), np.int64))
    return Source("pictures", tuple(f.name for f in files), labels, Files(tuple(files)))


def run(backbone, source, root, *layers, batch_size=3):
    settings = ExtractSettings(torch.device("cpu"), batch_size=batch_size, workers=0)
    return extract(backbone, source, resolve_layers(backbone, layers), settings, root=root, split="all").features


def slow(backbone, source, layer, scales=(1.0,)):
    """Features of one image after the other, each scale by itself."""
    rows = []
    for i in range(len(source)):
        pixels = np.array(Image.open(source.images.path(i)))
        image = normalise(torch.from_numpy(pixels).permute(2, 0, 1)[None], backbone.preprocessing)
        with torch.no_grad():
            found = []
            for scale in scales:
                size = [int(side * scale) for side in image.shape[2:]]
                seen = F.interpolate(image, size=size, mode="bilinear") if scale != 1 else image
                found.append(forward_layers(backbone.module, seen, resolve_layers(backbone, [layer]))[layer])
        rows.append(torch.stack(found).mean(0).numpy()[0])
    return np.stack(rows)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_images_of_any_aspect_ratio_are_encoded_whole(backbone, source, tmp_path, batch_size):
    layers = ("res4:gem(4)", "res5:rmac(2)", "res5:max")
    found = run(backbone, source, tmp_path / "store", *layers, batch_size=batch_size)
    for layer in layers:
        np.testing.assert_allclose(found[layer].x, slow(backbone, source, layer), rtol=1e-3, atol=1e-4)


def test_features_of_several_scales_are_averaged(backbone, source, tmp_path):
    several, _ = with_preprocessing(backbone, {"scales": [1, 0.5]})
    found = run(several, source, tmp_path / "store", "res5:gem(3)")["res5:gem(3)"].x
    wanted = slow(backbone, source, "res5:gem(3)", (1.0, 0.5))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    # Another key of the store than one scale.
    assert np.abs(run(backbone, source, tmp_path / "store", "res5:gem(3)")["res5:gem(3)"].x - wanted).max() > 1e-2


def test_a_scale_that_leaves_no_pixel_is_one_message(backbone, source, tmp_path):
    several, _ = with_preprocessing(backbone, {"scales": [1, 0.02]})
    with pytest.raises(BackboneError, match=r"images of 64 x 40 pixels have no pixel left at the scale 0.02"):
        run(several, source, tmp_path / "store", "res5:gem(3)")


def test_joined_layers_follow_each_other(backbone, source, tmp_path):
    found = run(backbone, source, tmp_path / "store", "concat(res4:gem,res5:max)", "res4:gem", "res5:max")
    joined = found.pop("concat(res4:gem(3),res5:max)").x
    np.testing.assert_allclose(joined, np.hstack([each.x for each in found.values()]), rtol=1e-6)


def test_regions_are_padded_with_zeros_to_the_most_that_there_are(backbone, source, tmp_path):
    features = run(backbone, source, tmp_path / "store", "res4:regions(2)")["res4:regions(2)"]
    assert features.regions == most_regions(2) == 23
    regions = features.x.reshape(len(source), 23, -1)
    image = normalise(torch.from_numpy(np.array(Image.open(source.images.path(0)))).permute(2, 0, 1)[None], OWN)
    with torch.no_grad():
        maps = forward_layers(backbone.module, image, resolve_layers(backbone, ["res4:flatten"]))["res4:flatten"]
    height, width = (-(-side // 16) for side in SIZES[0])
    wanted = region_maxima(maps.reshape(1, -1, height, width), 2)[0].numpy()
    np.testing.assert_allclose(regions[0, : len(wanted)], wanted, rtol=1e-3, atol=1e-4)
    assert (regions[0, len(wanted) :] == 0).all()


def test_vectors_of_different_lengths_are_one_message(backbone, source, tmp_path):
    with pytest.raises(BackboneError, match=r"images of 40 x 64 pixels \(.*1.png\).*for the first image|64 x 64"):
        run(backbone, source, tmp_path / "store", "res4:flatten")
    several, _ = with_preprocessing(backbone, {"scales": [1, 0.5]})
    with pytest.raises(BackboneError, match="different lengths at the scales"):
        run(several, source, tmp_path / "store", "res4:flatten")
    with pytest.raises(UsageError, match="other regions at every scale"):
        run(several, source, tmp_path / "store", "res4:regions")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scales": []}, "different numbers from 0 to 8"),
        ({"scales": [1, 1]}, "different numbers from 0 to 8"),
        ({"scales": [0]}, "different numbers from 0 to 8"),
        ({"resized_side": "longer", "crop": None, "resize": None}, "needs a resize to one number"),
        ({"resized_side": "longer", "resize": 64, "crop": (64, 64)}, None),
    ],
)
def test_scales_and_sides_without_a_meaning_are_refused(backbone, values, message):
    if message is None:
        with_preprocessing(backbone, values)
        return
    with pytest.raises(UsageError, match=message):
        with_preprocessing(backbone, values)


@pytest.mark.parametrize("text", ["concat(res4,res4)", "concat(res4:regions,res5)", "concat(concat(res4,res5),res2)"])
def test_layers_that_cannot_be_joined_are_refused(backbone, text):
    with pytest.raises(UsageError, match="different single layers"):
        resolve_layers(backbone, [text])


CPU = ExtractSettings(torch.device("cpu"), batch_size=3, workers=0)
COUNT = 7


def backbone_for(channels, **values):
    torch.set_num_threads(1)
    made = build(f"resnet_basic_1-1-1-1w0.25,in_chans={channels}")
    mean, std = np.linspace(0.1, 0.4, channels).tolist(), np.linspace(0.2, 0.3, channels).tolist()
    return with_preprocessing(made, {"resize": None, "crop": [32, 32], "mean": mean, "std": std, **values})[0]


def arrays(root, channels, dtype, suffix, count=COUNT):
    rng = np.random.default_rng(0)
    written = rng.integers(0, np.iinfo(dtype).max, (count, 32, 32, channels), endpoint=True).astype(dtype)
    for i, array in enumerate(written):
        folder = root / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        if suffix == ".npy":
            np.save(folder / f"{i}.npy", array)
        elif suffix == ".png":
            Image.fromarray(array[..., 0] if channels == 1 else array).save(folder / f"{i}.png")
        else:
            pytest.importorskip("tifffile").imwrite(folder / f"{i}.tif", array, photometric="minisblack")
    (source,) = open_data(str(root)).values()
    return source, np.concatenate([written[0::2], written[1::2]])  # in the order of the ids: a/0, a/2, ..., b/1


def encode(backbone, source, root, settings=CPU):
    return extract(backbone, source, resolve_layers(backbone, ("res5avg",)), settings, root=root, split="all")


@pytest.mark.parametrize(
    ("channels", "dtype", "suffix"),
    [
        (4, np.uint8, ".png"),
        (4, np.uint8, ".npy"),
        (4, np.uint16, ".tif"),
        (13, np.uint16, ".npy"),
        (13, np.uint16, ".tif"),
        (2, np.uint8, ".tif"),
        (3, np.uint16, ".npy"),
        (1, np.uint8, ".png"),
        (1, np.uint16, ".npy"),
    ],
)
def test_features_are_those_of_the_network_on_the_values_in_the_files(channels, dtype, suffix, tmp_path):
    backbone = backbone_for(channels)
    source, written = arrays(tmp_path / "data", channels, dtype, suffix)
    found = encode(backbone, source, tmp_path / "store").features["res5avg"]
    shape = (1, channels, 1, 1)
    mean, std = (torch.tensor(v).view(shape) for v in (backbone.preprocessing.mean, backbone.preprocessing.std))
    exact = torch.from_numpy(written.astype(np.float64) / np.iinfo(dtype).max).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        expected = backbone.module((exact - mean) / std).flatten(1).numpy()
    np.testing.assert_allclose(found.x, expected, atol=1e-4)


def test_pictures_of_8_and_of_16_bits_may_be_mixed(tmp_path):
    backbone = backbone_for(4)
    arrays(tmp_path / "data", 4, np.uint16, ".tif", count=3)
    np.save(tmp_path / "x.npy", np.zeros((32, 32, 4), np.uint8))
    Image.fromarray(np.full((32, 32, 4), 255, np.uint8)).save(tmp_path / "data" / "b" / "9.png")
    (source,) = open_data(str(tmp_path / "data")).values()
    assert encode(backbone, source, tmp_path / "store").features["res5avg"].x.shape == (4, 128)


@pytest.mark.parametrize(("has", "takes", "workers"), [(13, 3, 0), (13, 4, 0), (3, 13, 0), (4, 1, 0), (13, 3, 1)])
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_data_of_other_channels_are_refused_with_a_network_that_takes_them(has, takes, on_error, workers, tmp_path):
    source, _ = arrays(tmp_path / "data", has, np.uint8, ".npy")
    settings = dataclasses.replace(CPU, on_error=on_error, workers=workers)
    with pytest.raises(UsageError) as caught:
        encode(backbone_for(takes), source, tmp_path / "store", settings)
    takes = 3 if takes == 1 else takes
    assert f"a/0.npy has {has} channels, and resnet_basic_1-1-1-1w0.25" in str(caught.value)
    assert f"--backbone resnet_basic_1-1-1-1w0.25,in_chans={has}" in str(caught.value)


def test_one_image_of_other_channels_counts_as_unreadable(tmp_path):
    source, _ = arrays(tmp_path / "data", 4, np.uint8, ".npy")
    np.save(tmp_path / "data" / "a" / "0.npy", np.zeros((32, 32, 3), np.uint8))
    backbone = backbone_for(4)
    with pytest.raises(DataError, match=r"1 of 7 images.*\n.*a/0\.npy: 3 channels, the backbone takes 4"):
        encode(backbone, source, tmp_path / "store")
    found = encode(backbone, source, tmp_path / "store", dataclasses.replace(CPU, on_error="skip"))
    assert [row["id"] for row in found.unreadable] == ["a/0.npy"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": [0.5]}, r"do not fit resnet_basic_1-1-1-1w0\.25, which takes 3 channels"),
        ({"std": [0.1] * 4}, r"do not fit resnet_basic_1-1-1-1w0\.25, which takes 3 channels"),
        ({"std": [0.1, 0.1, 0.0]}, "std should be finite numbers above 0"),
    ],
)
def test_mean_and_std_have_one_value_per_channel(change, message):
    with pytest.raises(UsageError, match=message):
        with_preprocessing(build("resnet_basic_1-1-1-1w0.25"), change)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_every_channel_is_resized_by_itself_and_stays_in_range(interpolation, dtype, tmp_path):
    from sslbench.data.decode.picture import Wanted, from_array
    from sslbench.data.decode.transforms import resize_and_crop

    rng = np.random.default_rng(0)
    array = (rng.integers(0, 2, (40, 50, 5)) * np.iinfo(dtype).max).astype(dtype)
    preprocessing = Preprocessing(resize=24, crop=(20, 20), interpolation=interpolation)
    whole = resize_and_crop(from_array(array, "", Wanted(5, deep=True)).image, preprocessing)
    assert whole.shape == (5, 20, 20) and whole.min() >= 0 and whole.max() <= 255
    for channel in range(5):
        plane = np.repeat(array[..., channel : channel + 1], 3, axis=2)
        alone = resize_and_crop(from_array(plane, "", Wanted(3, deep=True)).image, preprocessing)
        torch.testing.assert_close(alone[1].float(), whole[channel].float(), atol=1e-3, rtol=0)


class TestKeys:
    def test_stores_of_this_encoding_are_found_again(self):
        """The digest changes with `identity.ENCODING` only; the defaults of decoding are no part of it."""
        values = Preprocessing(squash=(9, 9)).values()
        key = FeatureKey("w", {"name": "resnet50"}, "i", values, "fp32", "float32")
        assert key.digest() == "c66b68d1dbe1d7f7"
        assert set(Preprocessing().record()) == {
            "resize",
            "crop",
            "interpolation",
            "mean",
            "std",
            "squash",
            "space",
            "origin",
        }

    @pytest.mark.parametrize("change", [{"decoder": ["fast"]}, {"max_pixels": 10**6}])
    def test_what_changes_pixels_changes_the_key(self, change, tmp_path):
        backbone = build("resnet_basic_1-1-1-1w0.25")
        source, _ = arrays(tmp_path / "data", 3, np.uint8, ".png")
        changed, origins = with_preprocessing(backbone, change)
        assert store_key(changed, source, CPU).digest() != store_key(backbone, source, CPU).digest()
        ((name, value),) = change.items()
        assert origins[name] == "asked for"
        shown = changed.preprocessing.record()[name]
        assert list(shown) == value if isinstance(value, list) else shown == value

    def test_a_sources_own_handlers_change_the_key(self, tmp_path):
        source, _ = arrays(tmp_path / "data", 3, np.uint8, ".png")
        before = store_key(build("resnet_basic_1-1-1-1w0.25"), source, CPU).digest()
        object.__setattr__(source.images, "handlers", (print,))
        assert store_key(build("resnet_basic_1-1-1-1w0.25"), source, CPU).digest() != before

    def test_the_limit_decides_which_images_are_there(self, tmp_path):
        source, _ = arrays(tmp_path / "data", 3, np.uint8, ".png")
        Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(tmp_path / "data" / "a" / "9.png")
        (source,) = open_data(str(tmp_path / "data")).values()
        backbone = backbone_for(3, max_pixels=2000)
        with pytest.raises(DataError, match="64 x 64 pixels, more than the limit of 2,000"):
            encode(backbone, source, tmp_path / "store")
        assert len(encode(backbone_for(3), source, tmp_path / "store").features["res5avg"].x) == COUNT + 1


def test_the_index_is_written_line_by_line_and_keeps_earlier_columns_of_any_samples(tmp_path):
    files, sites = Files(("a.png", "c.png", "d.png")), {"site": ("1", "2", "3")}
    source = Source("s", tuple("acd"), Unlabelled(3), files, attributes=sites)
    entry, digests = store.StoreEntry(tmp_path), np.arange(48, dtype=np.uint8).reshape(3, 16)
    (tmp_path / "index.csv").write_text("row,id,camera,site\n0,a,x,old\n1,b,y,old\n2,d,z,old\n")
    store._write_index(entry, source, "test", {"c"}, digests, {})
    rows = entry.index_rows()
    found = [tuple(row[name] for name in ("row", "id", "camera", "site")) for row in rows]
    assert found == [("0", "a", "x", "1"), ("1", "d", "z", "3")]
    assert rows[1]["digest"] == bytes(range(32, 48)).hex() and rows[1]["path"] == "d.png"
    (tmp_path / "index.csv").write_text("row,id,camera\n0,a,x\n1")  # cut off by a full disk
    store._write_index(entry, source, "test", {"c"}, digests, {})
    assert [(row["id"], row["camera"]) for row in entry.index_rows()] == [("a", "x"), ("d", "")]
