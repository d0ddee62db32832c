"""What every protocol that trains heads for maps promises of their files: they predict what the record says."""

import csv

import numpy as np
import pytest
import torch
from helpers.kept_runs import EVALUATIONS, NET, write_data
from PIL import Image

from sslbench.data.open import open_as
from sslbench.evaluation import Request, RunSettings
from sslbench.evaluation.prediction import load_with_head, read_probe
from sslbench.names import list_names
from sslbench.protocols import find
from sslbench.results.outcome import metric_value
from sslbench.results.records import read_tree

DENSE = [name for name in list_names("protocol") if find(name).kind.restored]
BACKBONE = NET[NET.index("--backbone") + 1]


def as_output(path, classes):
    """The map in a file as the output (K, h, w) of a head that predicts it."""
    if path.suffix == ".npy":
        values = np.load(path)
        return torch.from_numpy(np.moveaxis(values.reshape(*values.shape[:2], -1), 2, 0).copy())
    labels = torch.from_numpy(np.asarray(Image.open(path)).astype(np.int64))
    return torch.nn.functional.one_hot(labels, classes).movedim(2, 0).float()


def test_heads_for_maps_are_found():
    assert {"segmentation", "depth", "normals", "edges"} <= set(DENSE)


@pytest.mark.parametrize("name", DENSE)
def test_the_maps_of_a_probe_have_the_scores_of_its_record(name, tmp_path, monkeypatch, sslbench):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    words = EVALUATIONS[name]
    data = words[words.index("--data") + 1]
    code, _, err = sslbench("eval", *words)
    assert code == 0, err
    [record] = read_tree(tmp_path / "results")
    probe = record.file.parent / record.weights_file
    assert probe.name == f"{record.file.stem}.probe.torch"
    network = [word for word in NET if word != "--no-floors"]
    code, _, err = sslbench(
        "predict", *network, "--data", data, "--probe", str(probe), "--csv", "out.csv", "--maps", "maps"
    )
    assert code == 0, err
    with (tmp_path / "out.csv").open(newline="") as file:
        maps = {row["id"]: tmp_path / "maps" / row["map"] for row in csv.DictReader(file) if row["split"] == "test"}
    request = Request("random", data, (), backbone=BACKBONE)
    task = load_with_head(request, RunSettings(device="cpu"), read_probe(probe)).scoring.task
    test = open_as(data, *find(name).kind.takes)["test"]
    assert list(maps) == list(test.ids)
    rows = []
    for index, path in enumerate(maps.values()):
        with Image.open(test.images.path(index)) as image:
            target = task.read(test, index, (image.height, image.width))
        rows.append(task.row(as_output(path, task.outputs), target))
    metrics, leading, _ = task.metrics(np.stack(rows), test, 0)
    assert leading == record.headline and len(metrics) == len(record.metrics)
    for metric, interval in metrics.items():
        wanted = record.metrics[metric].value
        assert metric_value(metric, interval, len(test)).value == pytest.approx(wanted, rel=1e-6, abs=1e-9), metric
