"""Places that records are sent to: found by name, before anything is computed; a failure costs no record."""

import dataclasses
import json

import pytest

from sslbench.errors import UsageError
from sslbench.evaluation.settings import RunSettings
from sslbench.names import list_names, requests_from_file
from sslbench.results import MetricValue, records, sinks

OWN = """
sent = []

def send(record, file):
    sent.append((record, file))
    if len(sent) > 1:
        raise OSError("no answer")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    package = tmp_path / "own_sinks"
    package.mkdir()
    (package / "listed.py").write_text(OWN)
    (package / "empty.py").write_text("")
    (package / "lacking.py").write_text("NEEDS = 'no_such_library'\ndef send(record, file): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SSLBENCH_SINKS", "own_sinks.listed")


def test_a_record_is_sent_as_its_file_has_it_and_a_failure_leaves_the_file(own, result, tmp_path, caplog):
    with requests_from_file("requests.yaml"):  # not code that the file names
        RunSettings().check()
        file = records.write_without_scores(result, tmp_path).file
    from own_sinks.listed import sent

    assert sent == [(json.loads(file.read_text()), file)] and not caplog.messages
    assert records.write_without_scores(result, tmp_path).file == file and len(sent) == 2
    assert caplog.messages == [f"{file} was not sent to own_sinks.listed: OSError: no answer"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("wandbb", "there is no sink called 'wandbb'"),
        ("own_sinks.empty", "defines no sink"),
        (" ,own_sinks.lacking", "own_sinks.lacking needs no_such_library, which is not installed"),
    ],
)
def test_a_sink_that_cannot_work_is_refused_before_the_run(own, monkeypatch, names, message):
    monkeypatch.setenv("SSLBENCH_SINKS", names)
    with pytest.raises(UsageError, match=message):
        RunSettings().check()


@pytest.mark.parametrize("name", list_names("sink"))
def test_every_sink_of_the_package_is_found(monkeypatch, name):
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda needed: needed)
    monkeypatch.setenv("SSLBENCH_SINKS", name)
    assert list(sinks.requested()) == [name]


def test_wandb_has_one_run_per_record(result, tmp_path, monkeypatch, caplog):
    pytest.importorskip("wandb", reason="wandb is not installed (pip install wandb)")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SSLBENCH_SINKS", "wandb")
    records.write_without_scores(result, tmp_path / "results")
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 1 and "was not sent" not in caplog.text


def test_mlflow_has_one_run_per_record(result, tmp_path, monkeypatch, caplog):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed (pip install mlflow)")
    monkeypatch.setenv("SSLBENCH_SINKS", "mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    group = dataclasses.replace(result, metrics=result.metrics | {"worst_group(site).top1": MetricValue(value=1.0)})
    for value in (result, group):
        records.write_without_scores(value, tmp_path / "results")
    [run] = mlflow.search_runs(output_format="list")
    assert run.data.metrics == {"top1": 75.0, "worst_group_site_.top1": 1.0} and "was not sent" not in caplog.text
    assert run.data.tags["weights"] == "my net.torch"
    mlflow.set_tracking_uri(None)


def test_trackio_has_one_run_per_record_and_prints_nothing(result, tmp_path, monkeypatch, caplog, capsys):
    trackio = pytest.importorskip("trackio", reason="Trackio is not installed (pip install trackio)")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path)
    monkeypatch.setenv("SSLBENCH_SINKS", "trackio")
    for _ in range(2):
        records.write_without_scores(result, tmp_path / "results")
    [run] = trackio.Api().runs("sslbench")
    assert run.name.startswith("my-net.torch-") and "was not sent" not in caplog.text
    assert run.config["protocol"]["name"] == "knn" and "metrics" not in run.config
    assert capsys.readouterr().out == ""


def test_tensorboard_has_the_metrics_and_settings_of_every_record_once(result, tmp_path, monkeypatch, caplog):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed (pip install tensorboard)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data

    monkeypatch.setenv("SSLBENCH_SINKS", "tensorboard")
    for _ in range(2):
        file = records.write_without_scores(result, tmp_path).file
    assert "was not sent" not in caplog.text
    [events] = (tmp_path / "tensorboard" / "knn" / file.stem).iterdir()
    found = EventAccumulator(str(events)).Reload()
    assert [event.value for event in found.Scalars("top1")] == [75.0]
    row = parse_session_start_info_plugin_data(found.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    assert {"weights", "layer", "protocol", "test", "seed", *result.protocol.settings} == set(row.hparams)
    assert [each.id for each in records.read_tree(tmp_path)] == [result.id]
