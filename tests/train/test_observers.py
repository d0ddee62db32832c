"""Who follows a run: what the files hold after it, after a resume, and what the user is warned of."""

import gzip
import importlib.util
import json
import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn

from sslbench.errors import UsageError
from sslbench.train import meter
from sslbench.train.meter import LogRecord, Spread
from sslbench.train.method import Batch
from sslbench.train.observers import RunInfo, json_lines, scalars
from sslbench.train.observers.always import Health, Views, requested
from sslbench.train.observers.json_lines import CurvePlot, JsonLines, curve
from sslbench.train.observers.profile import WARM_UP, Profile
from sslbench.train.observers.tensorboard import TensorBoard
from sslbench.train.observers.text_log import summary
from sslbench.train.observers.wandb import Wandb


def info(out, **changes):
    """Facts about a run of 40 updates."""
    values = {"method": nn.Linear(3, 2), "steps": 40, "per_epoch": 10, "start": 0, "images_per_update": 64, **changes}
    return RunInfo(out, **values)


def line(step, **changes):
    values = {
        "step": step,
        "epoch": step / 10,
        "loss": 5.0 / step,
        "lr": 0.1,
        "weight_decay": None,
        "images_per_second": 640.0,
        "waiting": 0.0,
        "gradient_norm": None,
        "spread": Spread(0.9, 30.0),
        "replaced": 0,
        "parts": {},
        "memory": None,
        **changes,
    }
    return LogRecord(**values)


def drive(observer, about, lines, records=()):
    observer.started(about)
    for each in lines:
        observer.line(each)
    for record in records:
        observer.evaluated(record)
    observer.finished()


def test_every_line_and_every_evaluation_stands_in_metrics_jsonl(tmp_path):
    path = tmp_path / "metrics.jsonl"
    scores = {"step": 10, "epoch": 1.0, "knn_top1": 91.5}
    drive(
        JsonLines(path),
        info(tmp_path),
        [line(5), line(10, parts={"accuracy": 0.5}, gradient_norm=2.0, gradient_norms={"head": 1.5})],
        [scores],
    )
    first, second, third = (json.loads(text) for text in path.read_text().splitlines())
    assert (first["step"], first["epoch"], first["loss"], first["lr"]) == (5, 0.5, 1.0, 0.1)
    assert first["embedding_std"] == 0.9 and "gradient_norm" not in first and "memory" not in first
    assert (second["accuracy"], second["gradient_norm"], second["gradient_norm/head"]) == (0.5, 2.0, 1.5)
    assert third == scores


def test_an_overflow_is_null_in_metrics_jsonl(tmp_path):
    path = tmp_path / "metrics.jsonl"
    drive(JsonLines(path), info(tmp_path), [line(5, gradient_norm=float("inf"), loss=float("nan"))])
    (text,) = path.read_text().splitlines()
    assert "Infinity" not in text and "NaN" not in text
    assert json.loads(text)["gradient_norm"] is None


def test_after_a_resume_no_update_stands_twice(tmp_path):
    path = tmp_path / "metrics.jsonl"
    drive(JsonLines(path), info(tmp_path), [line(5), line(10)], [{"step": 10, "epoch": 1.0, "knn_top1": 90.0}])
    with path.open("a") as file:  # killed between updates 15 and 20, in the middle of a line
        file.write(json.dumps(scalars(line(15, loss=9.0))) + "\n" + '{"step": 20, "lo')
    drive(JsonLines(path), info(tmp_path, start=10), [line(15), line(20)])
    records = json_lines.read(path)
    assert [(r["step"], "loss" in r) for r in records] == [(5, True), (10, True), (10, False), (15, True), (20, True)]
    assert records[3]["loss"] == pytest.approx(5 / 15)
    drive(JsonLines(path), info(tmp_path), [line(1)])
    assert [r["step"] for r in json_lines.read(path)] == [1], "a new run begins with an empty file"
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("steps", [[7], range(1, 60)])
def test_the_curve_is_drawn_from_one_point_on(tmp_path, steps):
    observers = [JsonLines(tmp_path / "metrics.jsonl"), CurvePlot()]
    for observer in observers:
        observer.started(info(tmp_path))
        for step in steps:
            observer.line(line(step))
            observer.evaluated({"step": step, "epoch": step / 10, "knn_top1": 50.0 + step / 2})
    for observer in observers:
        observer.finished()
    with Image.open(tmp_path / "curve.png") as image:
        assert image.size[0] > 500 and image.size[1] > 500
        assert len(image.convert("RGB").getcolors(1 << 24)) > 20, "something is drawn"


def test_a_curve_of_nothing_is_refused_and_a_run_with_nothing_left_draws_none(tmp_path):
    with pytest.raises(ValueError, match="no values to plot"):
        curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png")
    for observer in (JsonLines(tmp_path / "metrics.jsonl"), CurvePlot()):
        drive(observer, info(tmp_path, start=40), [])
    assert not (tmp_path / "curve.png").exists()


class Watched(nn.Module):
    """Takes batches as a method does."""

    def forward(self, batch, step):
        return None


def test_the_views_of_the_first_batch_are_drawn_as_they_were_before_normalisation(tmp_path):
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    about = info(tmp_path, method=Watched())
    views = Views(tmp_path / "views.png", mean=mean, std=std)
    views.started(about)
    colour = torch.tensor([200, 100, 50])
    plain = ((colour / 255 - torch.tensor(mean)) / torch.tensor(std)).view(1, 3, 1, 1).expand(12, 3, 96, 96)
    about.method(Batch((plain, plain), None, torch.arange(12)), None)
    with Image.open(tmp_path / "views.png") as image:
        painted = {colour: n for n, colour in image.convert("RGB").getcolors(1 << 24)}
    assert painted[200, 100, 50] == 8 * 2 * 96 * 96
    (tmp_path / "views.png").unlink()
    about.method(Batch((plain,), None, torch.arange(12)), None)
    continued = Views(tmp_path / "views.png", mean=mean, std=std)
    continued.started(info(tmp_path, start=5, method=about.method))
    about.method(Batch((plain,), None, torch.arange(12)), None)
    assert not (tmp_path / "views.png").exists(), "only the first batch, and only of a new run"


def warnings(caplog, lines, about):
    with caplog.at_level(logging.WARNING, logger="sslbench"):
        drive(Health(), about, lines)
    return [record.getMessage() for record in caplog.records]


def test_collapse_is_told_once_and_not_in_the_first_moments(tmp_path, caplog):
    flat = {"spread": Spread(0.01, 1.1)}
    assert warnings(caplog, [line(1, epoch=0.05, **flat)], info(tmp_path)) == []
    told = warnings(caplog, [line(5, **flat), line(10, **flat), line(15)], info(tmp_path))
    assert len(told) == 1
    assert "update 5" in told[0] and "nearly the same" in told[0] and "optimizer.lr" in told[0]


def test_waiting_for_images_is_told_once_when_it_lasts(tmp_path, caplog):
    slow = {"waiting": 0.4}
    lines = [line(1, **slow), line(2, **slow), line(3), line(4, **slow)]
    assert warnings(caplog, lines, info(tmp_path)) == [], "the first batches always have to be waited for"
    told = warnings(caplog, [line(step, **slow) for step in range(1, 9)], info(tmp_path))
    assert len(told) == 1 and "40%" in told[0] and "--workers" in told[0]


def test_replaced_images_are_told_as_a_rate_per_epoch(tmp_path, caplog):
    lines = [line(5, replaced=2), line(10, replaced=1), line(15), line(20), line(25, replaced=8)]
    told = warnings(caplog, lines, info(tmp_path))
    assert [text.split(" were")[0] for text in told] == [
        "3 of the last 640 images (0.47%)",
        "8 of the last 320 images (2.50%)",
    ]


def run_updates(number):
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(number):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


def test_a_profile_has_a_table_and_a_trace_of_the_updates_after_the_warm_up(tmp_path, caplog):
    profile = Profile(3, tmp_path / "out" / "profile.json.gz")
    with caplog.at_level(logging.INFO, logger="sslbench"):
        profile.started(info(tmp_path))
        run_updates(WARM_UP + 10)
        profile.finished()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("profile of 3 updates:") and "aten::addmm" in told and "profile.json.gz" in told
    with gzip.open(tmp_path / "out" / "profile.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event.get("name") == "aten::addmm" for event in events) == 3


def test_one_update_is_the_least_to_profile(tmp_path):
    assert Profile(1, tmp_path / "profile.json").updates == 1
    with pytest.raises(UsageError, match="--profile 0: at least one update"):
        Profile(0, tmp_path / "profile.json")


def test_a_run_too_short_for_its_profile_says_so(tmp_path, caplog):
    profile = Profile(10, tmp_path / "profile.json")
    profile.started(info(tmp_path, steps=8))
    run_updates(WARM_UP + 2)
    profile.finished()
    run_updates(5)  # another run in the same process is not counted
    assert "only 8 updates are left" in caplog.text
    assert (tmp_path / "profile.json").is_file()


@pytest.mark.parametrize(
    ("make", "package"), [(lambda p: TensorBoard(p), "tensorboard"), (lambda p: Wandb("x"), "wandb")]
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, make, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"pip install {package}"):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("histograms", [False, True])
def test_settings_name_the_observers_and_their_histograms(tmp_path, monkeypatch, histograms):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    named = SimpleNamespace(tensorboard=True, wandb="mine", histograms=histograms)
    found = requested(named, tmp_path, {"epochs": 4})
    assert [type(one) for one in found] == [TensorBoard, Wandb]
    assert all(one.histograms.wanted == histograms for one in found)
    assert (found[1].project, found[1].settings) == ("mine", {"epochs": 4})


def test_tensorboard_has_the_scalars_of_vissl_and_histograms_once_an_epoch(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (pip install tensorboard)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    about = info(tmp_path)
    about.method(torch.ones(1, 3)).sum().backward()
    lines = [line(5), line(10, weight_decay=0.1, gradient_norms={"backbone": 2.0}), line(15)]
    drive(TensorBoard(tmp_path / "tb", histograms=True), about, lines, [{"step": 10, "epoch": 1.0, "knn_top1": 90.0}])
    events = EventAccumulator(str(tmp_path / "tb"), size_guidance={"histograms": 0})
    events.Reload()
    tags = events.Tags()
    assert {
        *("Training/Loss", "Training/Learning_rate", "Training/Weight_decay", "Training/Batch_size_per_gpu"),
        *("Speed/Batch_processing_time_ms", "Speed/img_per_sec_per_gpu", "Speed/ETA_hours", "Evaluation/knn_top1"),
    } <= set(tags["scalars"])
    assert [event.step for event in events.Scalars("Training/Loss")] == [5, 10, 15]
    assert [event.value for event in events.Scalars("Training/Gradient_norm/backbone")] == [2.0]
    assert events.Scalars("Speed/Batch_processing_time_ms")[0].value == pytest.approx(100)
    assert events.Scalars("Speed/ETA_hours")[0].value == pytest.approx(35 * 0.1 / 3600)
    assert set(tags["histograms"]) == {
        f"{kind}/{name}" for kind in ("Parameters", "Gradients") for name in ("weight", "bias")
    }
    assert [event.step for event in events.Histograms("Gradients/weight")] == [5, 15]


def test_wandb_works_offline_and_a_resumed_run_goes_on_in_the_same_one(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed (pip install wandb)")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    drive(
        Wandb("tests", settings={"epochs": 4}), info(tmp_path), [line(5)], [{"step": 5, "epoch": 0.5, "knn_top1": 1.0}]
    )
    identity = (tmp_path / "wandb-run-id").read_text()
    drive(Wandb("tests"), info(tmp_path, start=5), [line(10)])
    assert (tmp_path / "wandb-run-id").read_text() == identity
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) >= 1


def test_wandb_takes_histograms_every_few_updates(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed (pip install wandb)")
    about, logged = info(tmp_path), []
    about.method(torch.ones(1, 3)).sum().backward()
    session = SimpleNamespace(log=logged.append, define_metric=lambda *_, **__: None, finish=lambda: None)
    monkeypatch.setattr(wandb, "init", lambda **_: session)
    drive(Wandb("tests", histograms=True, every=4), about, [line(step) for step in range(2, 9, 2)])
    drawn = [[key for key, value in record.items() if isinstance(value, wandb.Histogram)] for record in logged]
    names = {f"{kind}/{name}" for kind in ("Parameters", "Gradients") for name in ("weight", "bias")}
    assert [{*each} for each in drawn] == [names, set(), names, set()]
    assert sum(logged[0]["Parameters/weight"].histogram) == about.method.weight.numel()
    assert logged[0]["step"] == 2


def test_histograms_may_come_more_often(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed (pip install tensorboard)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    drive(TensorBoard(tmp_path, histograms=True, every=4), info(tmp_path), [line(step) for step in range(2, 13, 2)])
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0})
    events.Reload()
    assert [event.step for event in events.Histograms("Parameters/weight")] == [2, 6, 10]


def test_the_load_of_a_gpu_is_told_where_it_is_known(monkeypatch):
    assert meter.gpu_load(torch.device("cpu")) is None and "gpu_utilisation" not in scalars(line(1))
    if not torch.cuda.is_available():
        assert meter.gpu_load(torch.device("cuda")) is None
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 97)
    monkeypatch.setattr(torch.cuda, "temperature", lambda device: 61)
    told = line(1, gpu=meter.gpu_load(torch.device("cuda")))
    assert (scalars(told)["gpu_utilisation"], scalars(told)["gpu_temperature"]) == (97, 61)
    assert summary(told).endswith("640 images/s  GPU 97 %  61 °C") and "GPU" not in summary(line(1))
