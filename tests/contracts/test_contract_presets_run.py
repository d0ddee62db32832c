"""Every preset runs on the architecture that it was published for, with the published preprocessing.

The weights are random and the images few; of the settings only what needs more images or updates is shortened.
"""

import functools

import numpy as np
import pytest
from PIL import Image
from sample_data import spair

from sslbench.backbones.load import load_backbone
from sslbench.evaluation import Request, RunSettings, evaluate, make_task, prepare
from sslbench.library.presets import load_preset
from sslbench.names import list_names

GEOMETRY = {"resize", "crop", "interpolation"}
SHORTER = {
    "finetune": {"updates": 1, "batch_size": 2, "warmup_epochs": 0},
    "geolocation": {"max_images": 8, "min_images": 4},
    "knn": {"k": [3]},
    "linear": {},
    "linear-online": {"updates": 2, "batch_size": 4, "warmup_epochs": 0},
    "low-shot": {"k": [2], "draws": 2},
    "lsr": {"k": [2]},
    "robustness": {"corrupt": ["brightness"], "severities": [1]},
    "svm": {},
    "retrieval": {"components": 0},
}
"""Protocol -> settings for 16 images in place of thousands."""
FEW = {"fractions": [0.5], "images": [8]}
"""Parts of train that 16 images allow."""
SMALLER_IMAGES = {"1024": 128, "[320, 320]": [64, 64]}
RUN = RunSettings(device="cpu", workers=0, batch_size=8, floors=False, overlaps=False)


@functools.lru_cache(maxsize=1)  # presets of one architecture stand together in SORTED
def untrained(architecture):
    return load_backbone("random", backbone=architecture)


SORTED = sorted(list_names("preset"), key=lambda name: load_preset(name).published_for)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of pictures that are wider than high, so that a squash and a crop differ; places.csv: a city each."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    lines = ["image,split,lat,lon"]
    for split, n in (("train", 8), ("val", 2)):
        for c, name in enumerate(("dark", "bright")):
            (folder / split / name).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 90, (30, 40, 3)) + 150 * c
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / name / f"{i}.png")
                lines.append(f"{split}/{name}/{i}.png,{split},{(48.9, -33.9)[c]},{(2.3, 151.2)[c]}")
    (folder / "places.csv").write_text("\n".join(lines) + "\n")
    return folder


OWN_SIZES = [name for name in SORTED if load_preset(name).protocol in ("correspondence", "tracking")]
"""Presets of protocols whose settings say the sizes of images."""


@pytest.mark.parametrize("name", OWN_SIZES)
def test_a_preset_of_a_protocol_that_trains_nothing_runs_on_its_architecture(name, tmp_path):
    preset = load_preset(name)
    smaller = {"size": 112} if preset.protocol == "correspondence" else {"short": 64}
    data = "kwcoco:vidshapes1-frames3-64"
    if preset.protocol == "correspondence":
        data = "homography:" + str(tmp_path / "photos") if "homography" in name else spair.make(tmp_path / "spair")
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)).save(tmp_path / "photos/a.png")
    task = make_task(preset.protocol, smaller, preset=preset)
    request = Request(weights="random", data=data, tasks=(task,), layers=preset.layers)
    prepared = prepare(request, RUN, backbone=untrained(preset.published_for))
    (result,) = evaluate(prepared, store=tmp_path / "store", out=tmp_path / "results", command="test")
    assert result.preset.name == name and result.metrics[result.headline].value is not None


@pytest.mark.parametrize("name", [name for name in list_names("preset") if name not in OWN_SIZES])
def test_a_preset_fixes_all_of_the_geometry(name):
    fixed = set(load_preset(name).preprocessing) - {"squash", "resized_side", "scales"}
    assert fixed == GEOMETRY, "the backbone's own values would fill the gap, whatever they are"


@pytest.mark.parametrize("name", [name for name in SORTED if name not in OWN_SIZES])
def test_a_preset_runs_on_the_architecture_that_it_was_published_for(name, photos, tmp_path):
    preset = load_preset(name)
    shorter = SHORTER[preset.protocol] | {key: FEW[key] for key in FEW if key in preset.settings}
    small = {"k", "draws", "updates", "batch_size", "warmup_epochs", "components", "corrupt", "severities"}
    assert set(shorter) <= {*small, *FEW, "max_images", "min_images"}
    preprocessing = dict(preset.preprocessing)
    # Large images on small patches or three scales take minutes.
    preprocessing["resize"] = SMALLER_IMAGES.get(str(preprocessing["resize"]), preprocessing["resize"])
    task = make_task(preset.protocol, shorter, preset=preset)
    request = Request(
        weights="random",
        data=str(photos / "places.csv" if preset.protocol == "geolocation" else photos),
        value_columns=("lat", "lon") if preset.protocol == "geolocation" else (),
        tasks=(task,),
        backbone=preset.published_for,
        layers=preset.layers,
        preprocessing=preprocessing,
    )
    loaded = untrained(preset.published_for)
    prepared = prepare(request, RUN, backbone=loaded)
    results = evaluate(prepared, store=tmp_path / "store", out=tmp_path / "out", command="")
    assert len(results) >= max(1, len(preset.layers))
    wanted = loaded.preprocessing.values() | preprocessing
    for result in results:
        used = {key: value for key, value in result.preprocessing.items() if key not in ("origin", "space")}
        assert result.preprocessing["space"] == loaded.preprocessing.space
        assert as_lists(used) == as_lists(wanted)
    if name == "low_shot/vissl_places":
        assert {result.headline for result in results} == {"mAP"}, "VISSL reports the mean one-vs-rest AP"


def as_lists(values):
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
