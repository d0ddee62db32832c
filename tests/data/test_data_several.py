"""Several sources at once: joined or mixed, each sample with its own pixels and label, each batch with its origins."""

import dataclasses
import json
import pickle

import numpy as np
import pytest
import torch
from helpers import containers

from sslbench.data.decode.handlers import picture_decoder
from sslbench.data.export import Extractor
from sslbench.data.images import Arrays, Files
from sslbench.data.joined import JoinedImages, join, located
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.loading import loader
from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.location import absolute
from sslbench.data.open import open_data
from sslbench.data.sharded import Sharded
from sslbench.data.source import Source
from sslbench.data.splits import match_classes, train_test
from sslbench.data.views import Augment, View
from sslbench.errors import DataError, UsageError
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers
from sslbench.train.method import Batch

VIEWS = Augment((View(1, 8, scale=(0.2, 0.9)),))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder, a table and shards with images of their own, in the current folder."""
    for name in ("photos", "table", "shards"):
        (tmp_path / name).mkdir()
    samples = containers.pictures(30)
    names = list(samples)
    parts = [{name: samples[name] for name in names[i::3]} for i in range(3)]
    containers.write_folder(tmp_path / "photos", parts[0])
    containers.write_csv(tmp_path / "table", parts[1])
    containers.write_shards(tmp_path / "shards", parts[2])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, text, name="all.yaml"):
    (folder / name).write_text(text)
    return str(folder / name)


def arrays(name, labels, seed=0, **further):
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 12, 12, 3), dtype=np.uint8)
    ids = tuple(f"{i:03d}" for i in range(len(labels)))
    return Source(name, ids, labels, Arrays(pixels, name), **further)


def two(n_a=12, n_b=30, **further):
    sources = {"b": arrays("b", Unlabelled(n_b), 1), "a": arrays("a", Unlabelled(n_a))}
    return join(sources, "both.yaml", **further)


ALL = "sources:\n  tab: {data: table/t.csv}\n  photos: photos\n  tar: {data: 'shards/*.tar'}\n"


def test_every_sample_is_there_once_with_the_pixels_label_and_name_it_has_alone(here):
    whole = open_data(write(here, ALL))["all"]
    alone = {"photos": open_data("photos")["all"], "tab": open_data("table/t.csv")["all"]}
    alone["tar"] = open_data("shards/*.tar")["all"]
    assert sorted(whole.ids) == list(whole.ids) and len(whole) == 30 == len(set(whole.ids))
    position = {sample: i for i, sample in enumerate(whole.ids)}
    for name, source in alone.items():
        for i, sample in enumerate(source.ids):
            at = position[f"{name}/{sample}"]
            one = loader.read(whole.images, at, picture_decoder(None, whole.images)).image
            assert torch.equal(one, loader.read(source.images, i).image)
            assert whole.target.text(at) == source.target.text(i)
            assert whole.images.path(at).endswith(source.images.path(i))
            assert whole.attributes["origin"][at] == name
            assert whole.images.digests()[at].tobytes() == source.images.digests()[i].tobytes()
    assert any("10 images of photos, 10 images of tab, 10 images of tar" in note for note in whole.notes)


def test_what_is_read_does_not_depend_on_the_order_in_the_file_nor_on_the_way_it_is_written(here):
    spec = write(here, ALL)
    backwards = write(here, "sources:\n" + "".join(f"{line}\n" for line in ALL.splitlines()[:0:-1]), "back.yml")
    text = "several:photos=photos,tab=table/t.csv,tar=shards/*.tar"
    whole, other, typed = (open_data(each)["all"] for each in (spec, backwards, text))
    assert whole.fingerprint() == other.fingerprint() == typed.fingerprint()
    assert (
        whole.fingerprint()
        != open_data("several:photos=photos,other=table/t.csv,tar=shards/*.tar")["all"].fingerprint()
    )


def test_parts_may_be_taken_in_any_order_and_processes_get_only_what_they_need(here):
    images = open_data(write(here, ALL))["all"].images
    for chosen in ([3, 14, 29], [29, 0, 14, 0], [], [5], list(range(30))):
        part = images.select(np.array(chosen, dtype=np.int64))
        assert [part.path(i) for i in range(len(part))] == [images.path(i) for i in chosen]
        assert np.array_equal(part.digests(), images.digests()[chosen])
        assert sum(map(len, part.parts)) == len(set(chosen))
        again = part.select(np.arange(len(chosen))[::-1])
        assert [again.path(i) for i in range(len(again))] == [images.path(i) for i in chosen[::-1]]
        copy = pickle.loads(pickle.dumps(part))  # noqa: S301 - our own bytes
        assert [bytes(copy.read(i)) for i in range(len(copy))] == [bytes(images.read(i)) for i in chosen]


@pytest.mark.parametrize(("names", "first"), [(("a", "a-b", "a2"), "a-b"), (("B", "a", "a.b"), "B")])
def test_ids_ascend_whatever_the_sources_are_called(names, first):
    whole = join({name: arrays(name, Unlabelled(3), i) for i, name in enumerate(names)}, "x")
    assert list(whole.ids) == sorted(whole.ids)
    assert whole.attributes["origin"][0] == first
    for i, sample in enumerate(whole.ids):
        assert sample.startswith(whole.attributes["origin"][i] + "/")
        assert whole.images.path(i) == f"{whole.attributes['origin'][i]}[{int(sample[-3:])}]"


def test_splits_are_joined_by_their_names(here):
    for name, samples in (("p", containers.pictures(12)), ("q", containers.pictures(6))):
        names = list(samples)
        split = {f"{part}/{n}": samples[n] for n in names for part in ("train", "test" if name == "p" else "val")}
        containers.write_folder(here / name, split)
    splits = open_data(write(here, "sources: {p: p, q: q}"))
    assert {split: len(source) for split, source in splits.items()} == {"train": 18, "val": 6, "test": 12}
    assert splits["train"].name.endswith("all.yaml (train)")
    assert set(splits["test"].attributes["origin"]) == {"p"}
    taken = open_data(write(here, "sources: {p: {data: p, split: train}, photos: {data: photos, split: train}}"))
    assert {split: len(source) for split, source in taken.items()} == {"train": 22}
    with pytest.raises(UsageError, match=r"q: there is no split 'test'\n.*train, val"):
        open_data(write(here, "sources: {p: p, q: {data: q, split: test}}"))
    with pytest.raises(UsageError, match=r"p has splits \(train, test\), and photos has none\n.*split: train"):
        open_data(write(here, "sources: {p: p, photos: photos}"))


def test_classes_are_matched_by_name():
    first = arrays("a", single_labels(["cat", "dog"], classes=("dog", "cat")))
    second = arrays("b", single_labels(["cat", "eel", "eel"]), 1)
    whole = join({"b": second, "a": first}, "x")
    assert whole.target.classes == ("dog", "cat", "eel")
    assert [whole.target.text(i) for i in range(5)] == ["cat", "dog", "cat", "eel", "eel"]
    assert "a has 2 of all 3 classes" in whole.notes


def test_a_class_that_a_source_does_not_list_is_ignored_for_its_samples_and_not_absent():
    multi = arrays("a", multi_labels([["cat"], ["cat", "dog"]], [["dog"], []]))
    single = arrays("b", single_labels(["eel", "cat"]), 1)
    whole = join({"a": multi, "b": single}, "x")
    assert (whole.target.name, whole.target.classes) == ("multi", ("cat", "dog", "eel"))
    assert whole.target.values.tolist() == [[1, -1, -1], [1, 1, -1], [0, -1, 1], [1, -1, 0]]


def test_a_source_without_labels_leaves_none_and_it_is_said():
    whole = join({"a": arrays("a", single_labels(["x", "y"])), "b": arrays("b", Unlabelled(3), 1)}, "x")
    assert isinstance(whole.target, Unlabelled) and len(whole.target) == 5
    assert "b without labels, so the labels of a are not used" in whole.notes
    with pytest.raises(DataError, match="joined sources have labels only if each has"):
        match_classes(whole, whole)


def test_numbers_to_predict_are_matched_by_name_and_nothing_else_stands_beside_them(here):
    def numbers(classes, values):
        return arrays("n", Numbers(classes, np.array(values, dtype=float)))

    whole = join({"a": numbers(("x", "y"), [[1, 2]]), "b": numbers(("y", "x"), [[3, 4]])}, "w")
    assert whole.target.classes == ("x", "y") and whole.target.values.tolist() == [[1, 2], [4, 3]]
    for other in (numbers(("x",), [[1]]), arrays("c", single_labels(["x"])), arrays("c", Unlabelled(1))):
        with pytest.raises(DataError, match="different things to predict"):
            join({"a": numbers(("x", "y"), [[1, 2]]), "b": other}, "w")
        with pytest.raises(DataError, match="different things to predict"):
            join({"a": other, "b": numbers(("x", "y"), [[1, 2]])}, "w")


def test_attributes_are_kept_where_there_are_any_and_groups_are_those_of_one_source():
    video = arrays("a", single_labels(["x"] * 4), attributes={"video": ("1", "1", "2", "")}, grouped_by="video")
    site = arrays("b", single_labels(["x"] * 2), 1, attributes={"video": ("1", "1"), "site": ("s", "t")})
    whole = join({"a": video, "b": site}, "w")
    assert whole.attributes["video"] == ("1", "1", "2", "", "1", "1")
    assert whole.attributes["site"] == ("", "", "", "", "s", "t")
    assert whole.attributes[whole.grouped_by] == ("a/1", "a/1", "a/2", "", "", "")
    other = dataclasses.replace(site, grouped_by="video")
    whole = join({"a": video, "b": other}, "w")
    assert whole.attributes[whole.grouped_by][-2:] == ("b/1", "b/1")


def test_scores_can_be_broken_down_by_origin_and_by_columns_that_all_have(here):
    (here / "table" / "t.csv").write_text(
        "path,label,site\n" + "".join(f"{f.relative_to(here / 'table')},x,s\n" for f in (here / "table").rglob("*.png"))
    )
    spec = write(here, "sources: {tab: table/t.csv, again: table/t.csv}")
    found = train_test(spec, attribute_columns=("origin", "site"), seed=0)
    assert set(found.test.attributes["origin"]) == {"tab", "again"}
    assert set(found.test.attributes["site"]) == {"s"}
    with pytest.raises(UsageError, match=r"photos: 'photos.*has no column 'site'"):
        open_data("several:photos=photos,tab=table/t.csv", attribute_columns=("site",))


def test_columns_are_named_per_source_and_else_for_all(here):
    rows = [f.relative_to(here).as_posix() for f in (here / "photos").rglob("*.png")]
    (here / "one.csv").write_text("kind,file,label\n" + "".join(f"x,{r},no\n" for r in rows))
    (here / "two.csv").write_text("what,file,label\n" + "".join(f"y,{r},no\n" for r in rows))
    spec = write(here, "sources: {one: one.csv, two: {data: two.csv, label_column: what}}")
    assert set(open_data(spec)["all"].target.classes) == {"no", "y"}
    assert set(open_data(spec, label_column="kind")["all"].target.classes) == {"x", "y"}


class Inverted(Arrays):
    """Images whose source decodes them itself."""

    def read(self, index):
        return super().read(index).tobytes()

    @property
    def handlers(self):
        return (_inverted,)


def _inverted(path, file):
    return 255 - np.frombuffer(file.read(), np.uint8).reshape(12, 12, 3) if path.startswith("a[") else None


def test_an_image_is_decoded_as_its_own_source_does_it():
    plain = arrays("a", Unlabelled(3))
    inverted = dataclasses.replace(plain, images=Inverted(plain.images.array, "a"))
    whole = join({"a": inverted, "b": plain}, "w")
    decoder = picture_decoder(None, whole.images)
    assert isinstance(whole.images, JoinedImages)
    for i in range(3):
        first, second = (loader.read(whole.images, row, decoder).image for row in (i, i + 3))
        assert torch.equal(first, 255 - second)


ERRORS = [
    ("sources: {a: photos, a: table/t.csv}", "the key 'a' occurs twice"),
    ("sources: {a/b: photos}", "'a/b' cannot be the name of a source"),
    ("sources: {a: {data: photos, wieght: 2}}", r"unknown key 'wieght'\n.*'weight'"),
    ("sources: {a: {data: photos, weight: 0}}", "the weight 0 should be a number above 0"),
    ("sources: {a: {data: photos, weight: -1}}", "the weight -1 should be a number above 0"),
    ("sources: {a: {data: photos, weight: .nan}}", "the weight nan should be a number above 0"),
    ("sources: {a: {data: photos, weight: .inf}}", "the weight inf should be a number above 0"),
    ("sources: {a: {data: photos, weight: much}}", "weight: should be a number or null, not 'much'"),
    ("sources: {a: {weight: 1}}", "the key 'data' is missing"),
    ("sources: {a: 3}", "should be a data location, or a mapping with the key 'data'"),
    ("sources: {a: ''}", "the data location is empty"),
    ("sources: {}", "lists no sources"),
    ("sources: [photos]", "sources: should be"),
    ("sources: {a: photos}\nseed: 1", "unknown key 'seed'"),
    ("source: {a: photos}", r"lists no sources: .*the key 'sources', not 'source'"),
    ("batch_size: 3", r"lists no sources: .*the key 'sources'"),
    ("- photos", "should hold a mapping"),
    ("sources: {a: all.yaml}", "all.yaml lists several sources itself"),
    ("sources: {a: 'several:b=photos'}", "lists several sources itself"),
    ("sources: {a: 'https://example.org/all.yaml'}", "lists several sources itself"),
    ("sources: {a: photo}", r"a: .*photo' does not exist.*\n.*'photos'"),
    ("sources: {a: [1", "is not valid YAML"),
]


def test_a_file_that_is_wrong_is_refused_with_the_place(here):
    for text, message in ERRORS:
        with pytest.raises(UsageError, match=message) as error:
            open_data(write(here, text))
        assert "all.yaml" in str(error.value)


def test_a_string_that_is_wrong_is_refused(here):
    for spec, message in (
        ("several:", "should be NAME=LOCATION"),
        ("several:photos", "should be NAME=LOCATION"),
        ("several:a=photos,b=", "should be NAME=LOCATION"),
        ("several:a=photos,a=table/t.csv", "two sources are called 'a'"),
        ("several:a/b=photos", "'a/b' cannot be the name of a source"),
        ("several:a=photos,b/c=table/t.csv", "'b/c' cannot be the name of a source"),
        ("several:a@0=photos", "the weight 0 should be"),
        ("several:a@x=photos", "weight: should be a number or null, not 'x'"),
        ("several:a=several:b=photos", "lists several sources itself"),
        ("several:a=photos,b=tabel/t.csv", r"b: 'tabel/t.csv' does not exist.*\n.*'table'"),
    ):
        with pytest.raises(UsageError, match=message):
            open_data(spec)


def test_locations_keep_their_commas_braces_and_options(here):
    first = sorted(path.name for path in (here / "shards").glob("*.tar"))
    braces = "shards/{" + ",".join(name.removesuffix(".tar") for name in first) + "}.tar"
    coco = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "x"}]}
    for i, file in enumerate(sorted((here / "photos").rglob("*.png")), 1):
        coco["images"].append({"id": i, "file_name": file.relative_to(here).as_posix(), "width": 6, "height": 5})
        coco["annotations"].append({"id": i, "image_id": i, "category_id": 1, "bbox": [0, 0, 4, 4]})
    (here / "c.json").write_text(json.dumps(coco))
    found = open_data(f"several:c@2=c.json?unit=annotation&min_size=1,t={braces},d=sklearn:digits")["all"]
    counts = {name: found.attributes["origin"].count(name) for name in "ctd"}
    assert counts == {"c": 10, "t": 10, "d": 1797}
    assert found.weights == {"c": 2.0, "d": 1.0, "t": 1.0}


def test_paths_are_relative_to_the_file_and_names_of_the_catalog_are_found(here, monkeypatch):
    spec = write(here, "sources: {a: photos/, b: named, c: 'sklearn:digits'}")
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("SSLBENCH_PATH", str(here))
    (here / "sslbench-data.yaml").write_text(
        "named: table/t.csv\nboth: several:x=photos,y=table/t.csv\nfile: all.yaml\n"
    )
    text = absolute("several:a@2=photos/,b=table/t.csv?x=1,c=sklearn:digits")
    assert text == f"several:a@2={here}/photos/,b={here}/table/t.csv?x=1,c=sklearn:digits"
    monkeypatch.chdir(elsewhere)
    whole = open_data(spec)["all"]
    assert len(whole) == 20 + 1797
    assert open_data("file")["all"].fingerprint() == whole.fingerprint()
    assert len(open_data("both")["all"]) == 20
    with pytest.raises(UsageError, match="both lists several sources itself"):
        open_data("several:a=both")
    with pytest.raises(UsageError, match="takes no options"):
        open_data("both?unit=annotation")


def test_every_image_has_its_file_where_a_manifest_is_written(here):
    files = open_data("several:a=photos,b=table/t.csv")["all"]
    extractor = Extractor(None, start=here)
    extractor.check("x", "all", files.images)
    assert extractor.file(files, "all", 0).startswith("photos/") and extractor.file(files, "all", 19).startswith(
        "table/"
    )
    mixed = open_data(write(here, ALL))["all"]
    with pytest.raises(UsageError, match="not single files"):
        extractor.check("x", "all", mixed.images)
    assert isinstance(located(mixed.images, 0)[0], Files)


@pytest.mark.parametrize("world", [1, 3])
def test_batches_come_by_weight_on_any_number_of_processes(world):
    source = two(12, 30, weights={"a": 2.0})
    assert source.weights == {"a": 2.0, "b": 1.0}
    origins, indices = [], []
    for rank in range(world):
        (batch,) = TrainingData(source, VIEWS, batch_size=42 // world, rank=rank, world=world).batches(0, 1)
        assert batch.origins == tuple(source.attributes["origin"][i] for i in batch.indices.tolist())
        origins += batch.origins
        indices += batch.indices.tolist()
    assert origins.count("a") == 28
    assert np.unique(indices, return_counts=True)[1].max() <= -(-28 // 12)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mixture_that_is_continued_within_an_epoch_goes_on_as_if_nothing_had_been(workers):
    source = two(12, 30, weights={"a": 3.0})
    whole = list(TrainingData(source, VIEWS, batch_size=6).batches(0, 16))
    rest = list(TrainingData(source, VIEWS, batch_size=6, workers=workers).batches(10, 16))
    for one, other in zip(whole[10:], rest, strict=True):
        assert torch.equal(one.views[0], other.views[0]) and one.origins == other.origins
    repeated = [view.numpy().tobytes() for batch in whole[:7] for view in batch.views[0]]
    assert len(set(repeated)) > 35  # an image that comes again has other views


def test_a_batch_gives_the_images_of_each_source():
    source = join(
        {"coco": arrays("a", single_labels(["x"] * 8)), "o365": arrays("b", single_labels(["y"] * 8), 1)}, "w"
    )
    (batch,) = TrainingData(source, VIEWS, batch_size=16).batches(0, 1)
    parts = batch.by_origin()
    assert list(parts) == ["coco", "o365"] and parts["coco"].origins == ("coco",) * 8
    for name, part in parts.items():
        rows = [row for row, origin in enumerate(batch.origins) if origin == name]
        assert torch.equal(part.views[0], batch.views[0][rows]) and torch.equal(part.indices, batch.indices[rows])
        assert torch.equal(part.labels, batch.labels[rows]) and part.replaced == 0
    method = Batch(tuple(view.float() for view in batch.views), batch.labels, batch.indices, batch.origins).by_origin()
    assert torch.equal(method["o365"].views[0], parts["o365"].views[0].float())
    assert torch.equal(method["o365"].labels, parts["o365"].labels) and method["o365"].origins == ("o365",) * 8
    (single,) = TrainingData(arrays("a", Unlabelled(8)), VIEWS, batch_size=8).batches(0, 1)
    assert single.origins == () and single.by_origin() == {}


def test_which_sampler_is_meant(caplog):
    weighted, plain = two(weights={"a": 2.0, "b": 1.0}), two()
    shares = {}
    for name, source, sampler in (
        ("auto, weights", weighted, "auto"),
        ("auto", plain, "auto"),
        ("weighted", plain, "weighted"),
        ("shuffled", weighted, "shuffled"),
    ):
        (batch,) = TrainingData(source, VIEWS, batch_size=42, sampler=sampler).batches(0, 1)
        shares[name] = batch.origins.count("a")
    assert shares == {"auto, weights": 28, "auto": 12, "weighted": 21, "shuffled": 12}
    assert "sampler=shuffled ignores its weights" in caplog.text
    with pytest.raises(UsageError, match="sampler=weighted mixes several sources, but a is a single one"):
        TrainingData(arrays("a", Unlabelled(8)), VIEWS, batch_size=8, sampler="weighted")
    without = two(2, 30, weights={"a": 1.0}).select(range(2, 32))
    with pytest.raises(UsageError, match="there is no image of a in"):
        TrainingData(without, VIEWS, batch_size=4)


def test_shards_of_several_sources_are_told_apart_and_files_are_in_none(here):
    mixed = open_data(write(here, ALL))["all"]
    assert isinstance(mixed.images, Sharded)
    shards, origins = mixed.images.shards(), np.array(mixed.attributes["origin"])
    tar = open_data("shards/*.tar")["all"].images
    own = np.unique(tar.shards())
    assert len(own) > 1
    assert len(mixed.images.fetched()) == len(tar.fetched()) + 2 and not mixed.images.fetched().any()
    for name, n in (("photos", 1), ("tab", 1), ("tar", len(own))):
        assert len(np.unique(shards[origins == name])) == n
    assert len(np.unique(shards)) == len(own) + 2
    part = mixed.select(np.arange(0, 30, 4))
    assert np.array_equal(part.images.shards(), shards[::4])
    shown = [batch.indices for batch in TrainingData(mixed, VIEWS, batch_size=15, sampler="shards").batches(0, 2)]
    assert sorted(torch.cat(shown).tolist()) == list(range(30))
    files = open_data("several:a=photos,b=table/t.csv")["all"]
    assert not isinstance(files.images, Sharded)
    with pytest.raises(UsageError, match="sampler=shards needs images in shards"):
        TrainingData(files, VIEWS, batch_size=4, sampler="shards")


def test_an_image_that_stands_in_for_a_broken_one_counts_for_its_own_source(here):
    source = open_data(write(here, "sources: {a: {data: photos, weight: 1}, b: {data: table/t.csv}}"))["all"]
    broken = sorted((here / "photos").rglob("*.png"))
    for file in broken[:5]:
        file.write_bytes(b"no picture")
    (batch,) = TrainingData(source, VIEWS, batch_size=15).batches(0, 1)
    assert batch.origins == tuple(source.attributes["origin"][i] for i in batch.indices.tolist())
    parts = batch.by_origin()
    assert batch.replaced > 0 and sum(part.replaced for part in parts.values()) == batch.replaced
    assert sum(len(part.indices) for part in parts.values()) == 15
