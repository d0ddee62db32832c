"""Numbers per group and class, and costs, from the manifest to the record and the leaderboard."""

import csv
import dataclasses
import functools
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import sslbench
from sslbench.backbones.build import build
from sslbench.backbones.in_memory import from_module
from sslbench.data.open import open_data
from sslbench.errors import DataError, ResultError, UsageError
from sslbench.evaluation import RunSettings, costs
from sslbench.evaluation.costs import gflops, work_of
from sslbench.evaluation.groups import with_details
from sslbench.leaderboard import table
from sslbench.preprocessing import Preprocessing
from sslbench.results import records

RUN = RunSettings(device="cpu", workers=0, batch_size=8, floors=False)
SMALL = {"resize": [8, 8], "crop": None}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)

    def forward(self, x):
        return self.conv(x).flatten(1)


@functools.cache
def net():
    # One object: features of a module in memory are found again for that object only.
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def photos(tmp_path):
    """Bright and dark pictures; those of the site 'south' carry the wrong label in test."""
    rng = np.random.default_rng(0)
    rows, images = [], []
    for i in range(90):
        split, bright, site = ("train", "test")[i >= 50], i % 2, ("north", "south", "")[0 if i % 3 else 1 + (i == 60)]
        label = bright ^ (split == "test" and site == "south")
        Image.fromarray((rng.integers(0, 90, (8, 8, 3)) + 150 * bright).astype(np.uint8)).save(tmp_path / f"{i}.png")
        rows.append((f"{i}.png", ("dark", "bright")[label], split, site, i % 2))
        images.append({"id": i + 1, "file_name": f"{i}.png", "split": split, "site": site or None, "gain": i % 2})
    with (tmp_path / "all.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split", "site", "gain"), *rows])
    annotations = [
        {"id": i + 1, "image_id": i + 1, "category_id": 1 + (row[1] == "bright")} for i, row in enumerate(rows)
    ]
    categories = [{"id": 1, "name": "dark"}, {"id": 2, "name": "bright"}]
    manifest = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "all.kwcoco.json").write_text(json.dumps(manifest))
    return tmp_path


def evaluate(photos, name="all.csv", **request):
    settings = {"knn": {"k": 3}}
    request = {
        "protocols": ["knn"],
        "settings": settings,
        "out": photos / "r",
        "run": RUN,
        "preprocessing": SMALL,
    } | request
    return sslbench.evaluate(net(), photos / name, **request)


@pytest.mark.parametrize("name", ["all.csv", "all.kwcoco.json"])
def test_the_worst_group_is_found_and_is_a_metric_of_its_own(photos, name):
    (result,) = evaluate(photos, name, groups=("site", "gain"))
    assert [(g.name, g.metric.n, g.metric.value) for g in result.groups["site"]] == [
        ("south", 12, 0.0),
        ("(empty)", 1, 100.0),
        ("north", 27, 100.0),
    ]
    assert {g.name for g in result.groups["gain"]} == {"0", "1"}
    assert result.metrics["worst_group(site).top1"].value == 0
    assert "'south', has only 12 test samples" in " ".join(result.notes)
    board = table([records.read(result.file)], metric="worst_group(site).top1")
    assert not any("direction" in note or "not known" in note for note in board.notes)


def test_groups_and_costs_are_no_part_of_what_is_measured(photos):
    (plain,) = evaluate(photos)
    (grouped,) = evaluate(photos, groups=("site",))
    assert plain.id == grouped.id and plain.groups == {}
    assert plain.metrics["top1"] == grouped.metrics["top1"]


def test_the_record_holds_every_class_and_what_it_cost(photos):
    (cold,), (warm,) = evaluate(photos), evaluate(photos)
    assert cold.per_class_metrics["recall"] == cold.per_class and cold.per_class_metrics["n"] == {
        "bright": 18,
        "dark": 22,
    }
    assert cold.costs.parameters == 108 and cold.costs.gflops == pytest.approx(2 * 108 * 6 * 6 / 1e9)
    assert cold.costs.images_per_second > 0 and warm.costs.images_per_second is None
    assert set(cold.costs.stages) == {"extract", "knn"}
    assert all(stage.ram_mib > 10 and stage.gpu_mib is None for stage in cold.costs.stages.values())
    assert records.read(cold.file).costs == warm.costs, "the same measurement, made again"


def test_what_is_no_column_is_refused_before_any_image_is_decoded(photos, monkeypatch):
    monkeypatch.setattr("sslbench.evaluation.encode.extract_part", None)
    with pytest.raises(UsageError, match="Did you mean 'site'"):
        evaluate(photos, groups=("sight",))
    with pytest.raises(UsageError, match="Did you mean 'site'"):
        evaluate(photos, "all.kwcoco.json", groups=("sight",))
    with pytest.raises(DataError, match="40 different values among 40 samples"):
        evaluate(photos, groups=("path",))
    with pytest.raises(UsageError, match="neither a table nor a manifest"):
        open_data("sklearn:digits", attribute_columns=("site",))


def test_only_the_columns_asked_for_are_kept_and_equal_cells_share_a_text(photos):
    assert open_data(str(photos / "all.csv"))["test"].attributes == {}
    column = open_data(str(photos / "all.csv"), attribute_columns=("site",))["test"].attributes["site"]
    assert len({id(text) for text in column}) == len(set(column)) == 3
    chosen = open_data(str(photos / "all.csv"), attribute_columns=("gain", "path"))["train"]
    gains = zip(chosen.ids, chosen.attributes["gain"], strict=True)
    assert all(int(name.removesuffix(".png")) % 2 == int(gain) for name, gain in gains)


def test_a_column_to_group_by_is_no_class(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("path,cat,dog,night\na.png,1,0,1\n")
    source = open_data(str(tmp_path / "t.csv"), attribute_columns=("night",))["all"]
    assert source.target.classes == ("cat", "dog") and source.attributes == {"night": ("1",)}


def test_groups_of_a_mean_over_draws_are_means_over_the_draws(photos):
    settings = {"low-shot": {"k": 2, "draws": 2}}
    (result,) = evaluate(photos, protocols=["low-shot"], settings=settings, groups=("site",))
    assert result.metrics["worst_group(site).top1"].n == 12
    scores = records.read_scores(result.file)
    right = np.eye(len(scores.classes), dtype=np.float32)[scores.labels]
    site = {"site": tuple(np.where(np.arange(len(scores.ids)) % 2, "a", "b").tolist())}
    result = dataclasses.replace(result, groups={}, notes=(), per_class_metrics={})
    for draws, value in (((right, right), 100), ((right, 1 - right), 50), ((1 - right, right), 50)):
        found = with_details(result, dataclasses.replace(scores, scores=draws[0], draws=draws), site)
        assert [group.metric.value for group in found.groups["site"]] == pytest.approx([value, value])
        assert list(found.per_class_metrics["recall"].values()) == pytest.approx([value] * len(scores.classes))
    alone = with_details(result, dataclasses.replace(scores, draws=()), site)
    assert (
        not alone.groups
        and not alone.per_class_metrics
        and "scores of the first draw alone are kept (site)" in " ".join(alone.notes)
    )


def test_peak_memory_is_that_of_the_stage():
    """In a process of its own: in one that has freed much, a new block may lie in memory that it still holds."""
    code = (
        "import numpy, torch\n"
        "from sslbench.evaluation.costs import measured\n"
        "with measured(torch.device('cpu')) as large:\n    block = numpy.ones(40_000_000)\n    del block\n"
        "with measured(torch.device('cpu')) as small:\n    pass\n"
        "print(large.stage.ram_mib - small.stage.ram_mib)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 200 or not costs._RESET.exists()


def test_attention_of_torch_is_work_as_that_of_linear_layers():
    vit = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 3, "hidden_dim": 48, "mlp_dim": 96}
    network = torchvision.models.VisionTransformer(**vit, num_classes=5).eval()
    tokens, width, hidden = 17, 48, 96
    linear = 2 * tokens * (width * 4 * width + 2 * width * hidden) + 16 * width * 3 * 64 + width * 5
    attention = 2 * 2 * tokens * tokens * width
    work = work_of(from_module("vit", network, Preprocessing()), [(32, 32)])
    assert work.gflops == pytest.approx(2 * (linear + attention) / 1e9)
    assert work.activations == 2 * tokens * (4 * width + hidden + width) + 16 * width + 5


def test_activations_are_the_outputs_of_convolutions_and_linear_layers():
    backbone = build("resnet18", seed=0)
    # By hand: stem 64 x 112^2; 4 convolutions of 64 x 56^2; of each later stage 4, and the shortcut of its first block.
    by_hand = 64 * 112**2 + 4 * 64 * 56**2 + sum(5 * 64 * 2**i * (56 // 2**i) ** 2 for i in (1, 2, 3))
    work = work_of(backbone, [(224, 224)])
    assert work.activations == by_hand == 2_483_712
    assert work.gflops == pytest.approx(2 * 1.814, abs=0.02)  # as torchvision lists it, with its classifier
    twice = work_of(backbone, [(224, 224), (224, 224)])
    assert (twice.activations, twice.gflops) == (2 * work.activations, 2 * work.gflops)


def test_counting_operations_leaves_a_network_as_it_was():
    class Moving(Net):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.norm.train()(self.conv(x)).flatten(1)

    from sslbench.backbones.in_memory import from_module
    from sslbench.preprocessing import Preprocessing

    module = Moving().eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert gflops(from_module("moving", module, Preprocessing(resize=(8, 8), crop=None))) > 0
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_network_that_looks_at_values_is_not_counted(caplog):
    class Looking(Net):
        def forward(self, x):
            return super().forward(x) if float(x.sum()) > 0 else super().forward(-x)

    from sslbench.backbones.in_memory import from_module
    from sslbench.preprocessing import Preprocessing

    caplog.set_level("INFO", logger="sslbench")
    assert gflops(from_module("looking", Looking(), Preprocessing(resize=(8, 8), crop=None))) is None
    assert "not be counted" in caplog.text


def test_groups_of_the_data_are_in_the_record_its_scores_and_its_identity(photos):
    settings = {"knn": {"k": [1, 3]}}
    (plain,) = evaluate(photos, settings=settings)
    (grouped,) = evaluate(photos, "all.csv?group=site", settings=settings)
    assert (plain.data.train.groups, plain.data.test.groups) == (None, None)
    assert (grouped.data.train.groups, grouped.data.test.groups) == (2, 3)
    assert grouped.id != plain.id and grouped.metrics["top1"].value == plain.metrics["top1"].value
    widths = [r.metrics["top1"].high - r.metrics["top1"].low for r in (plain, grouped)]
    assert widths[1] > 1.5 * widths[0]
    assert any("50 train samples of 2 groups and 40 test samples of 3 groups" in note for note in grouped.notes)
    kept = records.read_scores(grouped.file).groups
    test = open_data(f"{photos}/all.csv?group=site")["test"]
    names = test.attributes["site"]
    assert len(set(kept)) == 3 and all(
        (kept[i] == kept[j]) == (names[i] == names[j]) for i in range(40) for j in (0, 1)
    )
    with pytest.raises(ResultError, match="test data"):
        sslbench.compare(plain, grouped)
    assert records.read_scores(plain.file).groups is None


def test_a_train_part_of_one_group_says_that_nothing_could_be_held_out(photos):
    text = (photos / "all.csv").read_text().replace("north", "one").replace("south", "one")
    (photos / "one.csv").write_text(text)
    (result,) = evaluate(photos, "one.csv?group=site", settings={"knn": {"k": [1, 3]}})
    assert any("All training samples belong to one group" in note for note in result.notes)


def test_a_transposed_convolution_is_work_per_pixel_of_its_input():
    network = nn.Sequential(
        nn.Conv2d(3, 8, 4, stride=4), torch.nn.ConvTranspose2d(8, 12, 3, stride=2, output_padding=1, groups=2)
    ).eval()
    work = work_of(from_module("up", network, Preprocessing()), [(32, 32)])
    with FlopCounterMode(display=False) as counter:
        height, width = network(torch.zeros(1, 3, 32, 32)).shape[2:]
    assert work.gflops == pytest.approx(counter.get_total_flops() / 1e9)
    assert work.activations == 8 * 8 * 8 + 12 * height * width
