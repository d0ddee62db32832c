"""Every preset is complete, starts with one update, and runs on the architecture that it was published for."""

import dataclasses
import functools
import importlib
import logging
import shutil

import numpy as np
import pytest
from helpers.offenders import offenders
from helpers.targets import kinds_of
from PIL import Image
from sample_data import jhmdb, spair, vip

from sslbench.backbones.load import load_backbone
from sslbench.backbones.views import SIZES
from sslbench.config import build, resolve
from sslbench.errors import UsageError
from sslbench.evaluation import Request, RunSettings, evaluate, make_task, prepare
from sslbench.library.benchmarks import load_benchmark
from sslbench.library.presets import load_preset
from sslbench.names import list_names
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import find, settings_layers, state_shortened
from sslbench.protocols._parts.presets import full_settings
from sslbench.protocols._parts.texts import OnImagesAndTexts
from sslbench.targets import kinds
from sslbench.targets.pairs import Points

NAMES = sorted(list_names("preset"))


def is_complete_and_builds(name):
    preset = load_preset(name)
    assert preset.title and preset.version >= 1 and not preset.modified and len(preset.sha256) == 16
    assert any(char.isdigit() for char in preset.source) or ".py" in preset.source, "names no paper and no file"
    build(find(preset.protocol).settings, preset.settings, name)
    build(Preprocessing, preset.preprocessing, name)
    assert preset.family == preset.protocol or (preset.family, preset.protocol) == ("linear", "linear-online")


def test_every_preset_is_complete_and_its_settings_build():
    assert offenders(NAMES, is_complete_and_builds) == []


def declares_selection_on_test(name):
    protocol, content = full_settings(name)
    asked = "test" in (content.get("select"), content.get("select_on"))
    assert load_preset(name).selects_on_test == asked
    _, defaults = full_settings(protocol)
    assert "test" not in (defaults.get("select"), defaults.get("select_on"))


def test_what_is_selected_on_test_is_declared_and_no_default_does_it():
    assert offenders(NAMES, declares_selection_on_test) == []


def test_no_two_presets_of_a_protocol_are_the_same():
    contents = [full_settings(name) for name in NAMES]
    assert all(contents.count(one) == 1 for one in contents)


GEOMETRY = {"resize", "crop", "interpolation"}
SHORTER = {
    **{"steps": 1, "warmup_steps": 0, "updates": 2, "warmup_epochs": 0, "batch_size": 4, "draws": 2, "k": [2]},
    **{"width": 16, "size": 112, "crop": [112, 112], "window": [112, 112], "stride": [80, 80], "train_region": None},
    **{"scored": "all", "max_images": 4, "min_images": 2, "corrupt": ["brightness"], "severities": [1]},
    **{"components": 0, "longest_side": 64, "short": 64, "side": 64, "lr": [0.01, 0.1], "weight_decay": [0.001]},
}
"""Settings for 8 images in place of thousands."""
OWN = {"transferability/leep": {"classifier": "none"}}
"""Of an untrained network, whose file has no classifier."""
FEW = {"fractions": [0.5], "images": [4]}
"""Parts of train that 8 images allow."""
SMALLER_IMAGES = {"1024": 128, "[320, 320]": [64, 64], "[512, 512]": [64, 64]}
RUN = RunSettings(device="cpu", workers=0, batch_size=8, floors=False, overlaps=False)


@functools.cache
def untrained(architecture, *, narrow=True):
    """The architecture, by default with the same layers, patches and strides but few channels in each."""
    name, *options = architecture.split(",")
    if narrow:
        heads = [] if "swin" in name else ["num_heads=6"]  # of each stage in its own number there
        name, options = (f"{name}w0.125", options) if "resnet" in name else (name, ["embed_dim=48", *heads, *options])
    return load_backbone("random", backbone=",".join([name, *options]))


def backbone_of(preset):
    """The pools of VISSL are defined for its own widths."""
    return untrained(preset.published_for, narrow=not any(":vissl" in layer for layer in preset.layers))


PRESETS = {name: load_preset(name) for name in list_names("preset")}
PROTOCOLS = {name: find(preset.protocol) for name, preset in PRESETS.items()}
SORTED = sorted(PRESETS, key=lambda name: PRESETS[name].published_for)


def shortened(name):
    """Settings in place of those of a preset: what it does not use stays unused, lists stay lists."""
    content = full_settings(name)[1]
    shorter = {key: FEW[key] for key in FEW if key in PRESETS[name].settings}
    for key, value in SHORTER.items():
        used = key in content and (content[key] not in (None, 0, 1) or key == "updates")
        if used and (value is None or isinstance(value, list) == isinstance(content[key], list | tuple)):
            shorter[key] = value
    if isinstance(content.get("crop"), int) and content["crop"]:
        shorter["crop"] = shorter["size"]
    if content.get("head", "linear") in ("dpt", "fpn", "upernet"):  # of 256 or 512 channels
        shorter["width"] = 16
    if "window" not in shorter:
        shorter.pop("stride", None)
    return shorter | OWN.get(name, {})


def kind_of_labels(name):
    return kinds_of(PROTOCOLS[name])[0]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The features of presets that take the same ones, computed once."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of pictures that are wider than high, so that a squash and a crop differ; places.csv: a city each."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    lines = ["image,split,lat,lon"]
    for split, n in (("train", 4), ("val", 2)):
        for c, name in enumerate(("dark", "bright")):
            (folder / split / name).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 90, (30, 40, 3)) + 150 * c
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / name / f"{i}.png")
                lines.append(f"{split}/{name}/{i}.png,{split},{(48.9, -33.9)[c]},{(2.3, 151.2)[c]}")
    (folder / "places.csv").write_text("\n".join(lines) + "\n")
    return folder


def trains(name):
    kind = PROTOCOLS[name].kind
    return not kind.needs_images or kind.trains


PLAIN = [name for name in SORTED if trains(name)]
ON_OBJECTS = [name for name in SORTED if not trains(name) and kinds()[kind_of_labels(name)].of_pixels]
TRAIN_NOTHING = [name for name in SORTED if name not in (*PLAIN, *ON_OBJECTS)]
"""Presets of protocols that train nothing, on pairs and videos."""


@pytest.mark.parametrize("name", ON_OBJECTS)
def test_a_preset_on_objects_runs_on_the_architecture_that_it_was_published_for(name, store, tmp_path):
    preset = PRESETS[name]
    assert not preset.preprocessing
    task = make_task(preset.protocol, shortened(name), preset=preset)
    kind = kind_of_labels(name)
    data = "textures:anomalies" if kind == "anomalies" else "kwcoco:shapes8-128"
    request = Request("random", data, tasks=(task,), backbone=preset.published_for, layers=preset.layers)
    prepared = prepare(request, RUN, backbone=backbone_of(preset))
    (result,) = evaluate(prepared, store=store, out=tmp_path / "out", command="")
    layers = preset.layers or (("last",) if kind == "anomalies" else ("blocks.11@key", "blocks.11@attention"))
    assert result.layer in layers and result.data.test.n == {"anomalies": 48}.get(kind, 8)


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    """Images whose left half is class 0 and dark, with their label maps."""
    folder, rng = tmp_path_factory.mktemp("maps"), np.random.default_rng(0)
    label = np.repeat([[0] * 20 + [1] * 20], 30, axis=0).astype(np.uint8)
    for split, n in (("train", 12), ("val", 3)):
        for kind in ("images", "masks"):
            (folder / kind / split).mkdir(parents=True)
        for i in range(n):
            pixels = rng.integers(0, 90, (30, 40, 3)) + 150 * label[..., None]
            Image.fromarray(pixels.astype(np.uint8)).save(folder / "images" / split / f"{i}.png")
            Image.fromarray(label).save(folder / "masks" / split / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def values(maps):
    """The same images with depth and normals."""
    for split, n in (("train", 12), ("val", 3)):
        for kind, value in (("depth", np.full((30, 40), 2.5)), ("normals", np.full((30, 40, 3), [0.0, 0.6, -0.8]))):
            (maps / kind / split).mkdir(parents=True)
            for i in range(n):
                np.save(maps / kind / split / f"{i}.npy", value.astype(np.float32))
    return maps


VIDEO = "kwcoco:vidshapes1-frames3-64"


@pytest.mark.parametrize("name", TRAIN_NOTHING)
def test_a_preset_of_a_protocol_that_trains_nothing_runs_on_its_architecture(name, store, tmp_path):
    preset = PRESETS[name]
    data = {"crw_vip": vip.make, "crw_jhmdb": jhmdb.make}.get(name.rpartition("/")[2], lambda _: VIDEO)(
        tmp_path / "data"
    )
    if Points in PROTOCOLS[name].kind.takes:
        data = "homography:" + str(tmp_path / "photos") if "homography" in name else spair.make(tmp_path / "spair")
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)).save(tmp_path / "photos/a.png")
    task = make_task(preset.protocol, shortened(name), preset=preset)
    request = Request(weights="random", data=data, tasks=(task,), layers=preset.layers)
    prepared = prepare(request, RUN, backbone=backbone_of(preset))
    (result,) = evaluate(prepared, store=store, out=tmp_path / "results", command="test")
    assert result.preset.name == name and result.metrics[result.headline].value is not None


def fixes_all_of_the_geometry(name):
    preset = PRESETS[name]
    fixed = set(preset.preprocessing) - {"squash", "resized_side", "scales"}
    wanted = GEOMETRY if PROTOCOLS[name].kind.view.sized else GEOMETRY - {"resize", "crop"}
    assert fixed == wanted, "the backbone's own values would fill the gap, whatever they are"


def test_a_preset_fixes_all_of_the_geometry():
    assert offenders(PLAIN, fixes_all_of_the_geometry) == []


@pytest.fixture(scope="module")
def texts(photos, tmp_path_factory):
    """The photos as two classes of ImageNet, and embeddings of all texts of them that a preset makes."""
    folder = tmp_path_factory.mktemp("texts")
    words = {"dark": ("n01440764", "tench"), "bright": ("n01443537", "goldfish")}
    for split in ("train", "val"):
        for name, (synset, _) in words.items():
            shutil.copytree(photos / split / name, folder / "photos" / split / synset)
    templates = {
        "{}",
        "a photo of {}",
        *(each for name in NAMES for each in full_settings(name)[1].get("templates", ())),
    }
    texts = sorted({template.replace("{}", each) for template in templates for both in words.values() for each in both})
    features = np.random.default_rng(0).normal(size=(len(texts), 48))
    np.savez(folder / "texts.npz", features=features, names=np.array(texts))
    return folder


@pytest.mark.parametrize("name", PLAIN)
def test_a_preset_runs_on_the_architecture_that_it_was_published_for(
    name, photos, maps, values, texts, store, tmp_path
):
    preset = PRESETS[name]
    preprocessing = dict(preset.preprocessing)
    # Large images on small patches or three scales take minutes.
    if "resize" in preprocessing:
        preprocessing["resize"] = SMALLER_IMAGES.get(str(preprocessing["resize"]), preprocessing["resize"])
    kind = kind_of_labels(name)
    own = {"value": photos / "places.csv", "map": maps, "depth": values, "normals": values}
    of_texts = isinstance(PROTOCOLS[name].kind, OnImagesAndTexts)
    if of_texts:
        own |= {"single": texts / "photos", "texts": f"texts:{texts / 'photos'}"}
    named = {"text_features": str(texts / "texts.npz")} if of_texts else {}
    task = make_task(preset.protocol, shortened(name) | named, preset=preset)
    request = Request(
        weights="random",
        data=str(own.get(kind) or task.kind.default[0] or photos),
        limit=24 if task.kind.default[0] and kind not in own else None,
        value_columns=("lat", "lon") if kind == "value" else (),
        tasks=(task,),
        backbone=preset.published_for,
        layers=preset.layers,
        preprocessing=preprocessing,
    )
    loaded = backbone_of(preset)
    prepared = prepare(request, RUN, backbone=loaded)
    results = evaluate(prepared, store=store, out=tmp_path / "out", command="")
    assert len(results) >= max(1, len(preset.layers))
    wanted = loaded.preprocessing.values() | preprocessing
    if not task.kind.view.sized:
        wanted = {key: value for key, value in wanted.items() if key not in SIZES}
    for result in results:
        used = {
            key: value for key, value in result.preprocessing.items() if key not in ("origin", "space", "trained_side")
        }
        assert result.preprocessing["space"] == loaded.preprocessing.space
        assert as_lists(used) == as_lists(wanted)
    if name == "low_shot/vissl_places":
        assert {result.headline for result in results} == {"mAP"}, "VISSL reports the mean one-vs-rest AP"


def as_lists(values):
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


LENGTHS = ("epochs", "updates", "steps", "iterations", "max_epochs")


def lengths_of(protocol):
    """Return the settings that say how long a protocol trains."""
    fields = dataclasses.fields(find(protocol).settings)
    wholes = {field.metadata["part_of"] for field in fields}
    return [
        f.name
        for f in fields
        if f.name in LENGTHS and not f.metadata["part_of"] and (wholes - {""} or f.name != "iterations")
    ]


def settings_of(protocol, overrides, benchmark=None, preset=None):
    settings, origins = resolve(find(protocol).settings, settings_layers(protocol, benchmark, preset, overrides))
    if (check := find(protocol).check_settings) is not None:
        check(settings)
    return settings, origins


def starts_short(protocol, **named):
    needs = {f.name: f.metadata.get("needs", "") for f in dataclasses.fields(find(protocol).settings)}
    for name in lengths_of(protocol):
        other, _, wanted = needs[name].partition("=")
        for length in (1, 2, 3):
            settings, _ = settings_of(protocol, {name: length} | ({other: wanted} if wanted else {}), **named)
            if name == "updates":
                for passes in (0.001, 1, 50):
                    factor = settings.rate_schedule(passes)
                    assert all(0 <= factor(i / 10) <= 1 for i in range(11))


def test_every_protocol_starts_with_one_update_or_epoch():
    assert {p for p in list_names("protocol") if lengths_of(p)} >= {"finetune", "depth", "detection", "relative-pose"}
    assert offenders(list_names("protocol"), starts_short) == []


def test_every_preset_and_benchmark_starts_with_one_update_or_epoch():
    def of_preset(name):
        preset = load_preset(name)
        starts_short(preset.protocol, preset=preset)

    def of_benchmark(name):
        benchmark = load_benchmark(name)
        starts_short(benchmark.protocol, benchmark=benchmark)

    assert offenders(list_names("preset"), of_preset) == []
    assert offenders(list_names("benchmark"), of_benchmark) == []


@pytest.mark.parametrize("protocol", [p for p in list_names("protocol") if lengths_of(p)])
def test_what_was_shortened_is_said_and_what_the_user_typed_stays_or_is_refused(protocol, caplog):
    parts = {f.name: f for f in dataclasses.fields(find(protocol).settings) if f.metadata["part_of"]}
    numbers = {name: field.default for name, field in parts.items() if isinstance(field.default, int | float)}
    for name, default in numbers.items():
        whole = parts[name].metadata["part_of"]
        try:
            assert getattr(settings_of(protocol, {whole: 2, name: 5})[0], name) == 5
        except UsageError as error:
            assert name in error.message
        if not default:
            continue
        settings, origins = settings_of(protocol, {whole: 2})
        with caplog.at_level(logging.INFO, "sslbench"):
            state_shortened(protocol, settings, origins)
        assert f"{name}={getattr(settings, name)}" in caplog.text and "in proportion" in caplog.text


@pytest.mark.parametrize("protocol", ["finetune", "linear_online"])
def test_with_a_number_of_updates_parts_keep_their_share_of_the_epochs(protocol):
    recipe = importlib.import_module(f"sslbench.protocols.{protocol}.settings")
    published = recipe.Settings(epochs=20, warmup_epochs=5, schedule="constant")
    alone = dataclasses.replace(published, updates=8).rate_schedule(0.01)
    assert [alone(i / 8) for i in range(4)] == pytest.approx([0, 0.5, 1, 1])
    drop = {"name": "multistep", "values": [1.0, 0.1], "milestones": [10]}
    later = dataclasses.replace(published, updates=8, warmup_epochs=0.0, schedule=drop).rate_schedule(400.0)
    assert [later(i / 8) for i in (3, 4)] == [1.0, 0.1]
