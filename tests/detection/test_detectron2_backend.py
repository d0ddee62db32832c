"""`--backend detectron2`: what is said where it is missing, always; the command itself where it can be imported.

Detectron2 is on no package index: `PYTHONPATH=<checkout of detectron2>` with what it needs makes the rest of these run.
"""

import contextlib
import importlib.util
import json
import logging
from pathlib import Path

import pytest
import torch
from helpers.detectron2_samples import CPU, NET, REAL, recipe, squares, trained
from PIL import Image

from sslbench.backbones.build import build
from sslbench.cli.main import main
from sslbench.detection.batches import read
from sslbench.detection.detectron2 import backend, library
from sslbench.detection.detectron2.backend import check_load, load_weights
from sslbench.detection.detectron2.config import build_model, configured
from sslbench.detection.detectron2.library import INSTALL, own_log, probe
from sslbench.errors import UsageError, WeightsError


def sslbench(capsys, *words):
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    found = capsys.readouterr()
    return exit_.value.code, found.out, found.err


# Without Detectron2 ---------------------------------------------------------------------------------------------------


@pytest.fixture
def absent(monkeypatch):
    """As on a machine without it, also where these tests run with it."""
    find = library.find_spec
    monkeypatch.setattr(library, "find_spec", lambda name: None if name == "detectron2" else find(name))


def fake(monkeypatch, tmp_path, text):
    (tmp_path / "detectron2").mkdir()
    (tmp_path / "detectron2" / "__init__.py").write_text(text)
    origin = str(tmp_path / "detectron2" / "__init__.py")
    spec = importlib.util.spec_from_file_location("detectron2", origin)
    monkeypatch.setattr(library, "find_spec", lambda name: None if name in ("yacs", "iopath") else spec)


def test_the_command_says_how_it_is_installed_before_it_opens_data(absent, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ("eval", "detection", "--weights", "no.pth", "--backend", "detectron2", "--data", "nowhere.json")
    code, out, err = sslbench(capsys, *command, "--benchmark", "detection/small")
    assert code == 2 and not out and not list(tmp_path.iterdir())
    assert f"Install it with: {INSTALL}" in err and "--backend torchvision" in err and "nowhere" not in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('__version__ = "0.5"\n', r"Detectron2 0.5 in .* is too old: 0.6 or newer is needed\nInstall it with: pip"),
        ('__version__ = "0.6"\n', r"lacks required packages: iopath, yacs\nInstall it with: pip install iopath yacs"),
        ("", "of unknown version .* is too old"),
    ],
)
def test_an_old_or_incomplete_one_is_refused(monkeypatch, tmp_path, text, message):
    fake(monkeypatch, tmp_path, text)
    with pytest.raises(UsageError, match=message):
        library.require()


def test_its_keys_and_its_name_belong_to_detection(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = sslbench(capsys, "eval", "detection", "--weights", "w.pth", "d2.SOLVER.BASE_LR=0.1")
    assert code == 2 and "d2.SOLVER.BASE_LR is a setting of Detectron2" in err and "Add --backend detectron2" in err
    code, _, err = sslbench(
        capsys, "eval", "knn", "--weights", "random", "--backbone", "resnet18", "--backend", "detectron2"
    )
    assert code == 2 and "Only detection has --backend" in err


# With it --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path, monkeypatch):
    """The current folder, with a manifest of ten pictures."""
    monkeypatch.chdir(tmp_path)
    source = squares(10)
    annotations = []
    for i, objects in enumerate(source.target.objects):
        Image.fromarray(read(source, i).permute(1, 2, 0).numpy()).save(f"{i}.png")
        for (x1, y1, x2, y2), label in zip(objects.boxes.tolist(), objects.classes.tolist(), strict=True):
            row = {"id": len(annotations) + 1, "image_id": i + 1, "category_id": label + 1}
            annotations.append({**row, "bbox": [x1, y1, x2 - x1, y2 - y1]})
    images = [{"id": i + 1, "file_name": f"{i}.png", "width": 56, "height": 48} for i in range(10)]
    kinds = [{"id": 1, "name": "wide"}, {"id": 2, "name": "tall"}]
    Path("squares.json").write_text(json.dumps({"images": images, "annotations": annotations, "categories": kinds}))
    return tmp_path


QUICK = (
    *("eval", "detection", "--weights", "random", "--backbone", NET, "--device", "cpu", "--data", "squares.json"),
    *("--benchmark", "detection/toy", "--limit-iters", "2", "min_sizes_train=64", "min_size_test=64", "batch_size=2"),
    *("pyramid_channels=8", "box_channels=8", "precise_bn=1", "rpn_samples=32", "roi_samples=16"),
    *("rpn_post_nms_train=20", "rpn_post_nms_test=10", "score_threshold=0"),
)
DETECTRON2 = ("--backend", "detectron2")


@REAL
def test_the_command_trains_scores_and_records(world, capsys):
    from sslbench.results.records import read_tree

    code, out, err = sslbench(capsys, *QUICK, *DETECTRON2, "d2.SOLVER.BASE_LR=0.002", "d2.SOLVER.STEPS=[1]")
    assert code == 0, err
    [result] = read_tree(Path("results"))
    count = sum("num_batches" not in name for name in build(NET).module.state_dict())
    assert f"Detectron2 loaded {count} of {count} backbone tensors, compared bit for bit" in err
    assert "d2.SOLVER.BASE_LR=0.002 replaces the recipe's 0.01" in err and "AP " in out
    settings = result.protocol.settings
    assert settings["backend"] == "detectron2" and settings["d2"] == {"SOLVER.BASE_LR": 0.002, "SOLVER.STEPS": [1]}
    assert result.versions["detectron2"] and result.benchmark.modified
    assert any("other random numbers" in note for note in result.notes)

    theirs = result.variants["Detectron2's COCOEvaluator, boxes"]
    for name in ("AP", "AP50", "AP75", "APs"):
        assert theirs[name] == pytest.approx(result.metrics[name].value, abs=1e-4), name
    stem = result.file.with_suffix("")
    cfg = library.load("config").get_cfg()
    cfg.merge_from_file(f"{stem}.detectron2.yaml")
    assert (cfg.SOLVER.MAX_ITER, cfg.SOLVER.BASE_LR, cfg.MODEL.ROI_HEADS.NUM_CLASSES) == (2, 0.002, 2)
    rows = json.loads(Path(f"{stem}.predictions.json").read_text())
    assert rows and {row["category_id"] for row in rows} <= {1, 2}
    assert Image.open(f"{stem}.png").size[0] > 400
    assert {path.name for path in world.iterdir()} == {"squares.json", "results", *(f"{i}.png" for i in range(10))}

    assert sslbench(capsys, *QUICK)[0] == 0
    backends = {r.protocol.settings["backend"] for r in read_tree(Path("results"))}
    assert backends == {"torchvision", "detectron2"}
    code, out, err = sslbench(capsys, "leaderboard", "results", "--csv", "b.csv")
    assert code == 0, err
    columns = Path("b.csv").read_text().splitlines()[0]
    assert "backend=detectron2" in columns and "backend=torchvision" in columns


@REAL
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("d2.SOLVER.BASE_LRR=1", "Did you mean 'SOLVER.BASE_LR'"),
        ("d2.SOLVER.BASE_LR=abc", "does not take this value, a str"),
        ("d2.MODEL.WEIGHTS=w.pth", "The weights are given with --weights"),
        ("d2.DATASETS.TRAIN=[a]", "The data are given with --data"),
        ("d2.SOLVER.AMP.ENABLED=true", "needs a GPU"),
        ("d2.MODEL.ROI_HEADS.NAME=Nope", "No object named 'Nope'"),
        ("batch_size=0", "batch_size=0"),
        ("optimizer=adamw", "only SGD"),
    ],
)
def test_what_does_not_go_is_refused_with_exit_code_2(world, capsys, word, message):
    code, out, err = sslbench(capsys, *[w for w in QUICK if w != "batch_size=2"], *DETECTRON2, word)
    assert code == 2 and not out and message in err and "Traceback" not in err


@REAL
def test_a_key_that_only_training_reads_is_refused_too(tmp_path):
    with pytest.raises(UsageError, match=r"SAMPLER_TRAIN=Nope .*Unknown training sampler"):
        trained(tmp_path, given={"DATALOADER.SAMPLER_TRAIN": "Nope"})


@REAL
@pytest.mark.parametrize("name", [NET, "resnet50w0.125 c4"])
def test_weights_that_do_not_arrive_are_refused(name):
    net, _, c4 = name.partition(" ")
    changes = {"architecture": "c4", "anchor_sizes": ((8.0, 16.0),), "extra_norm": True} if c4 else {}
    backbone = build(net)
    with own_log(None):
        configuration = configured(backbone, recipe(**changes), 2, {}, device=CPU)
        model = build_model(configuration)
        assert load_weights(model, backbone).startswith("Detectron2 loaded 265 of 265")
    canonical = {n: t for n, t in backbone.module.state_dict().items() if "num_batches" not in n}
    broken = {**canonical, "layer4.2.conv3.weight": canonical["layer4.2.conv3.weight"] + 1e-7}
    place = "roi_heads.res5.2" if c4 else "backbone.bottom_up.res5.2"
    with pytest.raises(
        WeightsError, match=f"Detectron2 loaded 264 of the 265 backbone tensors; missing: '{place}.conv3.weight'"
    ):
        check_load(model, broken)


@REAL
def test_another_network_than_the_backbone_is_refused():
    given = {"MODEL.RESNETS.DEPTH": 101}
    with pytest.raises(WeightsError, match="backbone tensors; missing: "):
        # Detectron2 itself only warns and trains what was not filled from random weights.
        backend.check_configuration(
            build("resnet_bottleneck_3-4-23-3w0.125"), recipe(), {"MODEL.RESNETS.DEPTH": 50}, device=CPU, processes=1
        )
    assert backend.check_configuration(
        build("resnet_bottleneck_3-4-23-3w0.125"), recipe(), given, device=CPU, processes=1
    )


@REAL
def test_sync_means_what_a_processor_can(caplog):
    with caplog.at_level(logging.INFO, logger="sslbench"):
        alone = configured(build(NET), recipe(norm="sync"), 2, {}, device=CPU).cfg
        two = configured(build(NET), recipe(norm="sync"), 2, {}, device=CPU, processes=2).cfg
    gpu = configured(build(NET), recipe(norm="sync"), 2, {}, device=torch.device("cuda:0")).cfg
    assert [cfg.MODEL.RESNETS.NORM for cfg in (alone, two, gpu)] == ["BN", "naiveSyncBN", "SyncBN"]
    assert "norm=sync needs GPUs; on the CPU Detectron2's BN is used" in caplog.text and gpu.MODEL.DEVICE == "cuda:0"


@REAL
def test_what_it_logs_goes_to_its_own_file_and_loggers_are_put_back(tmp_path, capsys):
    logger = logging.getLogger("detectron2")
    before = logger.handlers, logger.level, logger.propagate
    with contextlib.suppress(RuntimeError), own_log(tmp_path / "own.log"):
        logger.error("a message of Detectron2's")
        raise RuntimeError
    assert (logger.handlers, logger.level, logger.propagate) == before
    assert "a message of Detectron2's" in (tmp_path / "own.log").read_text()
    assert "message" not in "".join(capsys.readouterr())


@REAL
def test_the_probe_finds_it():
    found = probe()
    assert found.problem is None and found.folder.name == "detectron2"
