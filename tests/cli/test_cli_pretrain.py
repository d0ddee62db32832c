"""`sslbench pretrain` as a user types it: what works, what is refused, and what can be seen."""

import json
import re
import shlex

import numpy as np
import pytest
import yaml
from helpers.coloured_pictures import write_pictures
from PIL import Image
from world import SIMCLR

from sslbench.cli import slurm
from sslbench.cli.commands.pretrain.train import duration

TINY, RUN = SIMCLR[2:-2], SIMCLR


def metrics(out):
    return [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_run_ends_in_weights_and_says_what_to_do_with_them(tmp_path, sslbench):
    code, out, err = sslbench(*RUN)
    assert code == 0, err
    weights, following = out.splitlines()
    folder = tmp_path / "runs" / "simclr-resnet18w0.125"
    assert (tmp_path / weights) == folder / "weights.torch"
    assert following == f"sslbench eval knn linear --weights {weights} --data sklearn:digits"
    assert "no --data: using the handwritten digits" in err and "epoch 2.00 of 2  update 6 of 6  loss " in err
    assert {p.name for p in folder.iterdir()} == {
        *("checkpoints", "config.yaml", "curve.png", "log.txt", "metrics.jsonl", "views.png", "weights.torch")
    }
    assert [record["step"] for record in metrics(folder)] == [1, 2, 3, 4, 5, 6]
    code, out, err = sslbench(
        *shlex.split(following)[1:2], "knn", *shlex.split(following)[4:], "--no-floors", "--limit", "40", "k=1"
    )
    assert code == 0, err
    assert "knn" in out


def test_the_following_command_names_columns_and_decoders(tmp_path, sslbench, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_reader.py").write_text("def read(path, file):\n    return None\n")
    (tmp_path / "t.csv").write_text("".join(["kind,at\n", *(f"{i % 2},{i}.png\n" for i in range(16))]))
    for i in range(16):
        Image.fromarray(np.full((16, 16, 3), 9 * i, np.uint8)).save(tmp_path / f"{i}.png")
    own = ["--data", "t.csv", "--image-col", "at", "--label-col", "kind", "decoder=[own_reader.read]"]
    code, out, err = sslbench(*RUN, *own, "--batch-size", "8", "epochs=1", "--out", "a")
    assert code == 0, err
    following = shlex.split(out.splitlines()[1])
    assert following[6:] == ["--data", "t.csv", *own[2:6], "--decoder", "own_reader.read"]
    code, out, err = sslbench("eval", "knn", *following[4:], "--no-floors", "k=1")
    assert code == 0, err


def test_the_folder_of_a_run_is_named_by_method_and_architecture(sslbench):
    words = [word if word != "resnet18w0.125" else "resnet18w0.125,zero_init_residual=true" for word in RUN]
    code, out, err = sslbench(*words, "--dry-run")
    assert code == 0, err
    assert re.search(r"runs/simclr-resnet18w0\.125(?![\w.,-])", out)


def test_the_same_command_again_has_nothing_left_to_do_and_a_longer_one_is_another_run(shared, tmp_path, sslbench):
    shared.copy("simclr", tmp_path)
    before = (tmp_path / "a" / "weights.torch").read_bytes()
    code, out, err = sslbench(*RUN, "--out", "a")
    assert code == 0 and "continuing" in err and out.startswith("a/weights.torch")
    assert (tmp_path / "a" / "weights.torch").read_bytes() == before
    assert [record["step"] for record in metrics(tmp_path / "a")] == [1, 2, 3, 4, 5, 6]
    code, out, err = sslbench(*RUN, "--out", "a", "method.temperature=0.3")
    assert (code, out) == (2, "") and "method.temperature" in err and "--out" in err
    code, out, err = sslbench(*RUN, "--out", "a", "--no-resume")
    assert (code, out) == (2, "") and "already contains a run" in err


def test_knn_on_held_out_data_while_training(tmp_path, sslbench):
    write_pictures(tmp_path / "photos" / "train", 4)
    write_pictures(tmp_path / "photos" / "test", 3, seed=1)
    code, _, err = sslbench(*RUN, "--out", "a", "--eval-data", "photos", "eval_every=1", "eval_k=3")
    assert code == 0, err
    scores = [record["knn_top1"] for record in metrics(tmp_path / "a") if "knn_top1" in record]
    assert len(scores) == 3 and all(10 < score <= 100 for score in scores)
    assert "epoch 1: kNN top1" in err and "epoch 2: kNN top1" in err


def test_dry_run_says_where_every_value_comes_from_and_writes_nothing(tmp_path, sslbench):
    code, out, err = sslbench(*RUN, "--dry-run", "method.temperature=0.2", "optimizer=adamw", "optimizer.lr=1e-3")
    assert code == 0, err
    rows = {tuple(line.split()[:2]): line.rpartition("[")[2].rstrip("]") for line in out.splitlines() if "[" in line}
    assert rows["temperature", "0.2"] == "key=value"
    assert rows["name", "simclr"] == "recipe simclr"
    assert rows["projector_norm", "false"] in ("recipe simclr", "default")
    assert rows["name", "adamw"] == "optimizer=adamw"
    assert rows["weight_decay", "0.05"] == "optimizer=adamw", "the recipe's decay was for another optimizer"
    assert rows["lr", "0.001"] == "key=value"
    assert rows["epochs", "2"] == "flag"
    assert rows["sync_bn", "true"] == "recipe simclr"
    assert rows["clip_norm", "null"] == "configs/pretrain.yaml"
    assert "48 images" in out and "6 (3 per epoch, 16 images each)" in out and "16 x 16, 16 x 16" in out
    assert list(tmp_path.iterdir()) == []


def test_a_users_own_recipe_and_groups_come_first(tmp_path, sslbench, monkeypatch):
    configs = tmp_path / "mine" / "configs"
    for folder in ("method", "optimizer"):
        (configs / folder).mkdir(parents=True)
    (configs / "method" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - simclr\n  - override /augment: digits\n  - override /optimizer: sgd\n"
        "method: {temperature: 0.7}\nepochs: 3\n"
    )
    (configs / "optimizer" / "sgd.yaml").write_text("name: sgd\nlr: 0.5\nmomentum: 0.25\n")
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path / "mine"))
    code, out, err = sslbench("pretrain", "mine", *TINY, "--dry-run")
    assert code == 0, err
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "temperature 0.7 [recipe mine]" in lines and "momentum 0.25 [optimizer=sgd]" in lines
    assert "lr 0.3 [recipe simclr]" in lines and "epochs 3 [recipe mine]" in lines
    code, out, err = sslbench("pretrain", "simclr", *TINY, "--dry-run", "optimizer=sgd", "optimizer.lr=1")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    decay = next(line for line in lines if line.startswith("weight_decay"))
    assert decay.endswith("[default]") and "1e-06" not in decay, "what the recipe says of its own optimizer is left out"
    code, out, _ = sslbench("list", "methods")
    assert "mine" in out.split()


def test_a_method_of_the_users_own_needs_no_recipe(tmp_path, sslbench, monkeypatch):
    (tmp_path / "my_ssl_of_the_tests.py").write_text(
        "import dataclasses\nfrom sslbench.config import setting\nfrom sslbench.methods import simclr\n"
        "@dataclasses.dataclass(frozen=True)\nclass Config(simclr.Config):\n    extra: int = setting(1, 'unused')\n"
        "class Method(simclr.Method):\n    config_type = Config\n"
    )
    (tmp_path / "my_ssl_of_the_tests_pkg").mkdir()
    (tmp_path / "my_ssl_of_the_tests_pkg" / "__init__.py").write_text("")
    (tmp_path / "my_ssl_of_the_tests.py").rename(tmp_path / "my_ssl_of_the_tests_pkg" / "method.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = sslbench("pretrain", "my_ssl_of_the_tests_pkg.method", *TINY, "--epochs", "0.4", "method.extra=2")
    assert code == 0, err
    assert out.startswith("runs/my_ssl_of_the_tests_pkg.method-resnet18w0.125/weights.torch")


OWN_OBSERVER = """
from pathlib import Path
from sslbench.train.observers import Observer

class Mine(Observer):
    def line(self, line):
        with open("seen.txt", "a") as file:
            file.write(f"{line.step}\\n")

class Needs(Observer):
    def __init__(self, what):
        pass

class Other:
    pass
"""


def test_an_observer_of_the_users_own_sees_every_line(tmp_path, sslbench, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_observer.py").write_text(OWN_OBSERVER)
    code, _, err = sslbench(*RUN, "--observer", "own_observer:Mine")
    assert code == 0, err
    assert (tmp_path / "seen.txt").read_text().split() == ["1", "2", "3", "4", "5", "6"]
    for name, message in (("Other", "is no subclass of"), ("Needs", "without arguments"), ("Minee", "Did you mean")):
        code, _, err = sslbench(*RUN, "--out", "other", "--observer", f"own_observer:{name}")
        assert code == 2 and message in err, err
    assert not (tmp_path / "other").exists()


def test_the_settings_of_an_earlier_run_are_a_recipe_too(shared, tmp_path, sslbench):
    config = shared("simclr") / "a" / "config.yaml"
    code, out, err = sslbench("pretrain", config, "--out", "b")
    assert code == 0, err
    assert f"limit: 48 (from {config})" in err and f"data: sklearn:digits (from {config})" in err
    assert out.startswith("b/weights.torch")
    assert [r["loss"] for r in metrics(config.parent)] == [r["loss"] for r in metrics(tmp_path / "b")]


def test_an_earlier_run_is_repeated_on_its_own_data_unless_others_are_given(shared, tmp_path, sslbench):
    config = (shared("simclr") / "a" / "config.yaml").read_text()
    (tmp_path / "c.yaml").write_text(config.replace("data: sklearn:digits", "data: gone/"))
    code, _, err = sslbench("pretrain", "c.yaml", "--out", "b")
    assert code in (1, 2) and "gone" in err and not (tmp_path / "b").exists()
    code, _, err = sslbench("pretrain", "c.yaml", "--data", "sklearn:digits", "--out", "b", "--dry-run")
    assert code == 0 and "gone" not in err
    (tmp_path / "d.yaml").write_text(config.replace("data: sklearn:digits", "dato: photos"))
    code, _, err = sslbench("pretrain", "d.yaml", "--out", "b")
    assert code == 2 and "unknown key 'run.dato'\n  Did you mean 'data'" in err


MISTAKES = [
    (["pretrain"], "METHOD is missing"),
    (["pretrain", "simcrl"], "there is no method called 'simcrl'\n  Did you mean 'simclr'"),
    (["pretrain", "moco"], "Did you mean 'moco_v"),
    (["pretrain", "simclr", "moco_v2"], "give one method, not simclr and moco_v2"),
    (["pretrain", "method=simclr", "simclr"], "give the method as the first word"),
    (["pretrain", "no_such_package_here.method", *TINY], "there is no Python module 'no_such_package_here"),
    (["pretrain", "simclr", "--epoch", "3"], "No such option '--epoch'"),
    (["pretrain", "simclr", "epoch=3"], "unknown key 'epoch'\n  Did you mean 'epochs'"),
    (["pretrain", "simclr", "epochs=many"], "epochs: should be a number, not 'many'"),
    (["pretrain", "simclr", "optimizer.lrr=3"], "optimizer: unknown key 'lrr'\n  Did you mean 'lr'"),
    (["pretrain", "simclr", "epochs.lr=3"], "epochs holds a single value"),
    (["pretrain", "simclr", "schedule.warm_epochs=3"], "Did you mean 'warmup_epochs'"),
    (["pretrain", "simclr", *TINY, "method.temprature=3"], "Did you mean 'temperature'"),
    (["pretrain", "simclr", "augment=smal"], "there is no augment called 'smal'\n  Did you mean 'small'"),
    (["pretrain", "simclr", "augment={size: 3}"], "augment takes a name"),
    (["pretrain", "simclr", "launcher=slum"], "Did you mean 'slurm'"),
    (["pretrain", "simclr", "--launcher", "slurm", "launcher.node=2"], "Did you mean 'nodes'"),
    (["pretrain", "simclr", "--launcher", "slurm", "epoch=3"], "unknown key 'epoch'"),
    (
        ["pretrain", "simclr", "optimizer=adamw"],
        "is for the optimizer larc, not adamw\n  Give a learning rate too: optimizer=adamw",
    ),
    (["pretrain", "simclr", "optimizer.name=sgd"], "is for the optimizer larc, not sgd"),
    (["pretrain", "simclr", "optimizer.name=adam"], "no optimizer called 'adam'\n  Did you mean 'adamw'"),
    (["pretrain", "simclr", "precision=fp8"], "'fp8' is not possible"),
    (["pretrain", "simclr", *TINY, "--precision", "bf16"], "on maps of one cell, which this network has"),
    (["pretrain", "simclr", *TINY[:2], "batch_size=64", *TINY[3:]], "48 images"),
    (["pretrain", "simclr", *TINY, "--data", "nowhere/"], "nowhere"),
    (["pretrain", "simclr", *TINY, "--data", "empty"], "empty"),
    (["pretrain", "simclr", *TINY, "--data", "single"], "single"),
    (["pretrain", "simclr", *TINY, "--backbone", "resnet19"], "resnet19"),
    (["pretrain", "simclr", *TINY, "--backbone", "pixels"], "no trainable parameters"),
    (["pretrain", "mae", *TINY[:3], *TINY[4:]], "vision transformer"),
    (["pretrain", "simclr", *TINY, "--init", "no-such-file.pth"], "no-such-file.pth"),
    (["pretrain", "simclr", *TINY, "--init", "nonsense.pth"], "nonsense.pth"),
    (["pretrain", "simclr", *TINY, "--eval-data", "nowhere/"], "nowhere"),
    (
        ["pretrain", "simclr", *(word for word in TINY if "warmup" not in word), "schedule.warmup_epochs=500"],
        "does not fit into 100 epochs",
    ),
    (["pretrain", "simclr", *TINY, "save_every=now"], "'now' is not an interval"),
    (["pretrain", "simclr", *TINY, "--epochs", "0"], "0.0 is not in the range x>0"),
    (["pretrain", "simclr", *TINY, "--histograms"], "Add --tensorboard"),
    (["pretrain", "simclr", *TINY, "--histograms-every", "5"], "Add --tensorboard"),
    (["pretrain", "simclr", *TINY, "+seed=3"], "A key has no sign before it"),
    (["pretrain", "simclr", *TINY, "--device", "warp"], "there is no device called 'warp'"),
    (["pretrain", "simclr", *TINY, "--resume-from", "x.ckpt", "--no-resume"], "exclude each other"),
    (["pretrain", "simclr", *TINY, "--resume-from", "x.ckpt"], "there is no checkpoint x.ckpt"),
    (["pretrain", "moco_v2", *TINY[:3], *TINY[4:], "method.queue=100"], "queue"),
]


def test_a_mistake_is_one_message_and_leaves_nothing_behind(tmp_path, sslbench):
    (tmp_path / "empty").mkdir()
    (tmp_path / "single" / "a").mkdir(parents=True)
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / "single" / "a" / "1.png")
    (tmp_path / "nonsense.pth").write_bytes(b"no weights")
    wrong = []
    for arguments, message in MISTAKES:
        code, out, err = sslbench(*arguments)
        head = err.split("error: ")
        if code not in (1, 2) or out or len(head) != 2 or message not in head[1] or "Traceback" in err:
            wrong.append((arguments, code, out, err))
    assert wrong == []
    assert {p.name for p in tmp_path.iterdir()} == {"empty", "single", "nonsense.pth"}, "something was left behind"


def test_a_recipe_that_is_not_global_is_told_so(tmp_path, sslbench, monkeypatch):
    (tmp_path / "configs" / "method").mkdir(parents=True)
    (tmp_path / "configs" / "method" / "mine.yaml").write_text("method: {name: simclr}\n")
    (tmp_path / "configs" / "method" / "nameless.yaml").write_text("# @package _global_\nepochs: 3\n")
    (tmp_path / "configs" / "method" / "odd.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /augmnt: a\n"
    )
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    for name, message in (("mine", "@package _global_"), ("nameless", "method: {name:"), ("odd", "augmnt")):
        code, out, err = sslbench("pretrain", name)
        assert (code, out) == (2, "") and message in err, err


def test_help_lists_methods_and_help_of_one_its_settings_and_recipe(sslbench):
    _, out, _ = sslbench("pretrain", "--help")
    assert "moco_v2" in out and "--eval-data" in out
    _, out, _ = sslbench("pretrain", "moco_v1", "--help")
    assert "queue=65536" in out and "temperature=0.07" in out, "the recipe's value, not the module's"
    assert "The recipe moco_v1" in out and "override /augment: moco_v1" in out


def test_python_trains_by_the_same_recipe(tmp_path):
    import sslbench

    settings = {
        **{"augment": "digits", "augment.size": 16, "batch_size": 16, "method.projector": [32, 16], "log_every": 1},
        **{"schedule.warmup_epochs": 0, "backbone": "resnet18w0.125", "workers": 0, "device": "cpu", "epochs": 1},
    }
    outcome = sslbench.pretrain("simclr", "sklearn:digits", tmp_path / "a", settings=settings, limit=48)
    assert outcome.weights == tmp_path / "a" / "weights.torch" and outcome.weights.is_file()
    assert [record["step"] for record in metrics(tmp_path / "a")] == [1, 2, 3]


# ---- launcher


def test_a_job_asks_for_one_process_per_gpu():
    settings = slurm.Slurm(nodes=2, gpus_per_node=4, hours=0.5, partition="a100", extra={"reservation": "mine"})
    values = slurm.parameters(settings)
    assert (values["nodes"], values["tasks_per_node"], values["gpus_per_node"], values["timeout_min"]) == (2, 4, 4, 30)
    assert values["slurm_partition"] == "a100" and values["slurm_additional_parameters"] == {
        "requeue": True,
        "reservation": "mine",
    }
    assert "mem_gb" not in values, "what is not asked for is the cluster's default"
    assert slurm.parameters(slurm.Slurm(gpus_per_node=0))["tasks_per_node"] == 1


def test_without_submitit_the_command_that_installs_it_is_named(sslbench, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = sslbench(*RUN, "--launcher", "slurm")
    assert (code, out) == (2, "") and "pip install submitit" in err
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_shows_the_request_of_the_job(sslbench):
    code, out, _ = sslbench(*RUN, "--dry-run", "--launcher", "slurm", "launcher.gpus_per_node=1")
    request = yaml.safe_load(out.partition("job 1 of 1:")[2])
    assert code == 0 and (request["method"], request["version"]) == ("simclr", 1)
    assert not request.keys() & {"launcher", "dry_run"} and "launcher" not in str(request["settings"])


def test_the_batch_must_divide_into_the_processes_of_the_job(sslbench, tmp_path):
    code, out, err = sslbench(*RUN, "--launcher", "slurm", "launcher.nodes=3", "launcher.gpus_per_node=4")
    assert (code, out) == (2, "") and "batch_size 16 does not divide into 12 processes" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(42, "0:42"), (727, "12:07"), (11100, "3:05:00"), (183600, "2d 03:00"), (59.6, "1:00")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize("key", ["tf32", "cudnn_benchmark"])
def test_a_setting_for_gpus_is_refused_on_a_cpu(key, tmp_path, sslbench):
    code, _, err = sslbench(*RUN, f"{key}=true", "--dry-run")
    assert code == 2 and f"{key} has no effect on the device cpu" in err
    assert not (tmp_path / "runs").exists()
