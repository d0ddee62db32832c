"""What files say never chooses which code runs: every place where text becomes an import, and every kind of file."""

import ast
import contextlib
import functools
import io
import json
import sys
from pathlib import Path

import pytest

import sslbench
from sslbench import load_detector
from sslbench.backbones.build import build
from sslbench.backbones.load import load_backbone
from sslbench.cli.main import main
from sslbench.data.open import open_data
from sslbench.errors import SslbenchError
from sslbench.train import schedules
from sslbench.weights import save

ROOT = Path(sslbench.__file__).parent
# Calls by which text can become code, and where each of them stands. A new place is a decision: where does its text
# come from? What is read from a file goes through `names.from_file` or `names.refuse_location` first.
CALLS = {
    *("import_module", "__import__", "exec", "eval", "compile", "find_object", "find_module", "run_module", "run_path"),
    "resolve_name",
    *("instantiate", "get_class", "get_object", "get_method", "locate_object", "unsafe_load", "full_load"),
}
PLACES = {
    # the sinks
    "names.py": {"import_module", "find_object", "find_module"},
    # fixed names, of sslbench or of a library
    "__init__.py": {"import_module"},
    "evaluation/__init__.py": {"import_module"},
    "pretraining/__init__.py": {"import_module"},
    "targets/__init__.py": {"import_module"},
    "cli/main.py": {"import_module"},
    "backbones/build.py": {"import_module"},
    "data/remote/__init__.py": {"import_module"},
    "data/containers/hdf5.py": {"import_module"},
    "metrics/catalog.py": {"import_module"},  # of installed packages, by their entry points
    "detection/detectron2/library.py": {"import_module"},
    "evaluation/estimators.py": {"find_module"},
    # a backbone: the user's word; files go through build.check_recorded, recipes through recipes._mark_code
    "backbones/families/user.py": {"find_object"},
    # the same one, built already, for the digest of its code
    "pretraining/preparation.py": {"find_object"},
    # functions in the order of a view: the user's word; recipes go through recipes._mark_code
    "data/views/ops.py": {"find_object"},
    # schedules, of pretraining only: likewise
    "train/schedules.py": {"find_object"},
    # a function of batches: likewise
    "pretraining/networks.py": {"find_object"},
    # decoders: files' names are NamedByFile
    "data/decode/reading.py": {"find_object"},
    # a source: the user's word; catalogs, lists and benchmarks go through names.refuse_location
    "data/format.py": {"find_module"},
    # a method: the user's word; recipes go through recipes._mark_code
    "train/method.py": {"find_module"},
    # observers: a flag
    "cli/commands/pretrain/train.py": {"find_object"},
    # an optimizer: the user's word; recipes go through recipes._mark_code, benchmarks and presets through
    # names.without_code; and a fixed name
    "train/optimizers/optimizer.py": {"find_object", "find_module", "resolve_name"},
    # a place that records are sent to: a variable of the environment
    "results/sinks/__init__.py": {"find_module"},
    # a protocol: the user's word; benchmarks and presets go through names.without_code
    "evaluation/record.py": {"find_module"},
    "protocols/__init__.py": {"find_module"},
    # the linear probe
    "evaluation/label_errors.py": {"find_module"},
}
UNPICKLERS = {
    ("weights/reading/files.py", "pickle.load"),
    ("weights/reading/files.py", "torch.load"),
    ("train/checkpoints.py", "torch.load"),
    ("features/external_files.py", "torch.load"),  # embeddings
    ("distributed/parallel.py", "pickle.loads"),  # from the first process of the same run, by its process group
}


@functools.cache
def called(path):
    """(name, node) of every call in a module."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return [(c.func.id if isinstance(c.func, ast.Name) else getattr(c.func, "attr", ""), c) for c in calls]


def test_every_place_where_text_becomes_code_is_known():
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        for name, node in called(path):
            is_method = isinstance(node.func, ast.Attribute) and name in (
                "eval",
                "compile",
            )  # module.eval(), re.compile
            if name in CALLS and not is_method:
                found.setdefault(path.relative_to(ROOT).as_posix(), set()).add(name)
    found["names.py"].add("find_object")
    found["names.py"].add("find_module")
    assert found == PLACES


def test_every_place_where_a_pickle_is_loaded_is_known():
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        for name, node in called(path):
            if name in ("load", "loads") and isinstance(node.func, ast.Attribute):
                full = ast.unparse(node.func)
                if full in ("pickle.load", "pickle.loads", "torch.load", "torch.jit.load", "joblib.load", "dill.load"):
                    found.add((path.relative_to(ROOT).as_posix(), full))
            for keyword in node.keywords:
                assert keyword.arg != "allow_pickle" or ast.unparse(keyword.value) == "False", path
            in_features = path.relative_to(ROOT).parts[0] == "features"
            if in_features and ast.unparse(node.func) == "torch.load":
                assert "weights_only=True" in ast.unparse(node), path
    assert found == UNPICKLERS


@pytest.fixture
def bomb(tmp_path, monkeypatch):
    """A module in the current folder that leaves a mark when it is imported, and can be all that is asked for."""
    (tmp_path / "bomb").mkdir()
    (tmp_path / "bomb" / "__init__.py").write_text("")
    (tmp_path / "bomb" / "code.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(tmp_path / 'ran')!r}).write_text('x')\n"
        "from sslbench.backbones.build import build\n"
        "from sslbench.data.formats.sklearn import open as _open\n"
        "from sslbench.protocols.geometry import *\n"
        "from sslbench.protocols.geometry import PROTOCOL, Settings, run\n"
        "def net(): return build('resnet18w0.25').module\n"
        "def decode(path, file): return None\n"
        "def open(rest, **columns): return _open('sklearn:digits')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    monkeypatch.setenv("SSLBENCH_CONFIG", str(tmp_path / "own"))
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "ran"
    for name in ("bomb", "bomb.code"):
        sys.modules.pop(name, None)


def tiny(path, *, backbone="resnet18w0.25", metadata=None):
    return save.save(path, build("resnet18w0.25").module.state_dict(), backbone=backbone, metadata=metadata or {})


def command(*args):
    """Exit code and everything that the command printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main(list(map(str, args)))
    return ended.value.code, said.getvalue()


def refused(bomb, *args, flag):
    code, said = command(*args)
    assert not bomb.exists(), "it ran"
    assert code in (1, 2), said
    assert "bomb.code" in said and "code named in a file is not run" in said and flag in said, said


def runs(bomb, *args):
    code, said = command(*args)
    assert code == 0, said
    assert bomb.exists()


EVAL = ("eval", "knn", "--data", "sklearn:digits", "--limit", "20", "--no-floors", "--device", "cpu")


def test_a_weights_file_does_not_choose_its_network(bomb, tmp_path):
    tiny(tmp_path / "w.torch", backbone="bomb.code:net")
    refused(bomb, "inspect", "w.torch", flag="--backbone bomb.code:net")
    refused(bomb, *EVAL, "--weights", "w.torch", flag="--backbone bomb.code:net")
    refused(bomb, "eval", "detection", "--weights", "w.torch", flag="--backbone bomb.code:net")
    runs(bomb, "inspect", "w.torch", "--backbone", "bomb.code:net")


@pytest.mark.parametrize(
    "options", ["checkpoint_path=x.pth", "pretrained=True", "pretrained_cfg=x", "features_only=True", "norm_layer=evil"]
)
def test_a_weights_file_sets_no_option_of_timm_but_sizes(tmp_path, options):
    tiny(tmp_path / "w.torch", backbone=f"timm:resnet18,{options}")
    with pytest.raises(SslbenchError, match=f"{options} is not taken from a file") as caught:
        load_backbone(str(tmp_path / "w.torch"))
    assert f"--backbone timm:resnet18,{options}" in str(caught.value)


def test_a_weights_file_does_not_choose_a_decoder(bomb, tmp_path):
    tiny(
        tmp_path / "w.torch",
        metadata={"preprocessing": json.dumps({"crop": [32, 32], "decoder": ["bomb.code.decode"]})},
    )
    refused(bomb, *EVAL, "--weights", "w.torch", "--out", "r", flag="--decoder bomb.code.decode")
    refused(bomb, "extract", "--weights", "w.torch", "--data", "sklearn:digits", "--limit", "5", flag="--decoder")
    runs(bomb, *EVAL, "--weights", "w.torch", "--out", "r", "--decoder", "bomb.code.decode")


@pytest.mark.parametrize("about", [{"backbone": "bomb.code:net"}, {"preprocessing": {"decoder": ["bomb.code.decode"]}}])
def test_a_detector_file_chooses_neither(bomb, tmp_path, about):
    whole = {
        "recipe": {},
        "classes": ["a"],
        "backbone": "resnet18w0.25",
        "preprocessing": {},
        "weights": "",
        "data": "",
    }
    whole |= {"benchmark": "", "measurement": "", **about}
    path = tiny(tmp_path / "w.torch", metadata={"detector": json.dumps(whole)})
    import torch

    content = torch.load(path, weights_only=True)
    torch.save({**content, "detector": {"x": torch.ones(1)}}, path)
    command("inspect", "w.torch")
    with pytest.raises(SslbenchError):
        load_detector(path)
    assert not bomb.exists()


def yaml(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


WEIGHTS = ("--weights", "pixels:8", "--no-floors", "--limit", "20", "--out", "r")


@pytest.mark.parametrize("kind", ["benchmark", "preset"])
def test_a_benchmark_or_preset_does_not_choose_its_protocol(bomb, tmp_path, kind):
    text = "title: x\nversion: 1\nprotocol: bomb.code\n" + ("source: x\n" if kind == "preset" else "")
    file = yaml(tmp_path / "mine.yaml", text)
    asked = ("eval", f"--{kind}", file, *WEIGHTS, "--data", "sklearn:digits")
    refused(bomb, *asked, flag="sslbench eval bomb.code")
    refused(bomb, *asked, "--dry-run", flag="sslbench eval bomb.code")
    runs(bomb, "eval", "bomb.code", *asked[1:])


def test_a_suite_does_not_choose_a_protocol(bomb, tmp_path):
    yaml(
        tmp_path / "benchmarks" / "knn" / "evil.yaml",
        "title: x\nversion: 1\nprotocol: bomb.code\ndata: sklearn:digits\n",
    )
    yaml(tmp_path / "benchmarks" / "suites" / "evil.yaml", "title: x\nbenchmarks: [knn/evil]\n")
    refused(bomb, "eval", "--suite", "evil", *WEIGHTS, flag="sslbench eval bomb.code")


@pytest.mark.parametrize("kind", ["benchmark", "preset"])
def test_a_benchmark_or_preset_does_not_choose_a_decoder(bomb, tmp_path, kind):
    text = "title: x\nversion: 1\nprotocol: knn\npreprocessing: {decoder: bomb.code.decode}\n"
    file = yaml(tmp_path / "mine.yaml", text + ("source: x\n" if kind == "preset" else ""))
    asked = ("eval", f"--{kind}", file, *WEIGHTS, "--data", "sklearn:digits")
    refused(bomb, *asked, flag="--decoder bomb.code.decode")
    runs(bomb, *asked, "--decoder", "bomb.code.decode")


@pytest.mark.parametrize("protocol", ["finetune", "linear-online", "depth"])
def test_a_benchmark_does_not_choose_an_optimizer(bomb, tmp_path, protocol):
    text = f"title: x\nversion: 1\nprotocol: {protocol}\nsettings: {{optimizer: bomb.code}}\n"
    asked = ("eval", "--benchmark", yaml(tmp_path / "mine.yaml", text), *WEIGHTS[:2], "--data", "sklearn:digits")
    refused(bomb, *asked, flag="optimizer=bomb.code")


def test_a_benchmark_does_not_choose_a_source(bomb, tmp_path):
    file = yaml(tmp_path / "mine.yaml", "title: x\nversion: 1\nprotocol: knn\ndata: 'bomb.code:rest'\n")
    refused(bomb, "eval", "--benchmark", file, *WEIGHTS, flag="--data bomb.code:rest")
    file.write_text("title: x\nversion: 1\nprotocol: detection\ndata: 'bomb.code:rest'\n")
    refused(bomb, "eval", "detection", "--benchmark", file, *WEIGHTS[:2], flag="--data bomb.code:rest")
    file.write_text("title: x\nversion: 1\nprotocol: knn\ndata: 'bomb.code:rest'\n")
    runs(bomb, "eval", "--benchmark", file, *WEIGHTS, "--data", "bomb.code:rest")


@pytest.mark.parametrize(
    "entry", ["'bomb.code:rest'", "'several:a=sklearn:digits,b=bomb.code:rest'", "{data: 'bomb.code:r'}"]
)
def test_a_catalog_beside_the_data_does_not_choose_a_source(bomb, tmp_path, entry):
    yaml(tmp_path / "sslbench-data.yaml", f"photos: {entry}\n")
    refused(bomb, "eval", "knn", *WEIGHTS, "--data", "photos", flag="--data ")
    refused(bomb, "check-data", "photos", flag="--data ")
    refused(bomb, "inspect", "photos", flag="--data ")


def test_the_users_own_catalog_holds_their_words(bomb, tmp_path):
    yaml(tmp_path / "own" / "data.yaml", "photos: 'bomb.code:rest'\n")
    assert "all" in open_data("photos") or open_data("photos")
    assert bomb.exists()


def test_a_list_of_sources_does_not_choose_one(bomb, tmp_path):
    yaml(tmp_path / "all.yaml", "sources:\n  a: sklearn:digits\n  b: 'bomb.code:rest'\n")
    refused(bomb, "eval", "knn", *WEIGHTS, "--data", "all.yaml", flag="--data bomb.code:rest")


def recipe(**changes):
    from sslbench.library.recipes import compose_pretraining

    values = compose_pretraining("rotnet", {}, {}).values
    values["batch_size"] = 4
    for key, value in changes.items():
        values[key] = {**values["method"], "name": value} if key == "method" else value
    return values


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"method": "bomb.code"}, "method.name=bomb.code"),
        ({"backbone": "bomb.code:net"}, "--backbone bomb.code:net"),
        ({"decoder": ["bomb.code.decode"]}, "decoder=[bomb.code.decode]"),
        ({"batch_transform": "bomb.code:net"}, "batch_transform=bomb.code:net"),
        (
            {"groups": {"head": {"schedule": {"lr": {"name": "bomb.code:net"}}}}},
            "groups.head.schedule.lr.name=bomb.code:net",
        ),
    ],
)
def test_the_configuration_of_an_earlier_run_chooses_no_code(bomb, tmp_path, changes, flag):
    import yaml as library

    yaml(tmp_path / "config.yaml", library.safe_dump(recipe(**changes)))
    common = ("pretrain", "config.yaml", "--data", "sklearn:digits", "--limit", "8", "--out", "run")
    refused(bomb, *common, "--device", "cpu", flag=flag)
    refused(bomb, *common, "--dry-run", flag=flag)


def test_a_recipe_of_the_search_path_chooses_no_code(bomb, tmp_path):
    text = "# @package _global_\ndefaults:\n  - override /augment: rotnet\nmethod: {name: bomb.code}\n"
    yaml(tmp_path / "configs" / "method" / "evil.yaml", text)
    refused(bomb, "pretrain", "evil", "--data", "sklearn:digits", "--dry-run", flag="method.name=bomb.code")


def test_the_configuration_of_an_earlier_run_chooses_neither_schedules_nor_augmentations(bomb, tmp_path):
    import yaml as library

    order = ["jitter", "grayscale", "blur", "solarize"]
    inner = {"name": "v2.RandomApply", "transforms": ["bomb.code:decode"]}
    for order_, name in ((["bomb.code:decode", *order], "decode"), ([*order, inner], "decode")):
        views = [{"size": 32, "order": order_}]
        yaml(tmp_path / "config.yaml", library.safe_dump(recipe(augment={"views": views})))
        common = ("pretrain", "config.yaml", "--data", "sklearn:digits", "--limit", "8", "--out", "run")
        refused(bomb, *common, "--device", "cpu", flag=f"augment.code=[bomb.code:{name}]")
    composite = {"name": "composite", "lengths": [1.0], "parts": [{"name": "bomb.code:net"}]}
    for spec, flag in (({"name": "bomb.code:net"}, "schedule.lr.name=bomb.code:net"), (composite, "schedule.lr=")):
        yaml(tmp_path / "config.yaml", library.safe_dump(recipe(schedule={"lr": spec})))
        refused(bomb, *common, "--device", "cpu", flag=flag)


def test_a_preset_chooses_no_schedule(bomb, tmp_path):
    schedule = "{name: 'bomb.code:net'}"
    file = yaml(
        tmp_path / "mine.yaml", f"title: x\nversion: 1\nprotocol: finetune\nsettings: {{schedule: {schedule}}}\n"
    )
    random = ("--weights", "random", "--backbone", "resnet18w0.25", "--data", "sklearn:digits")
    code, said = command("eval", "--benchmark", file, *WEIGHTS[2:], *random)
    assert not bomb.exists() and code == 2 and "bomb.code:net" in said, said
    with pytest.raises(SslbenchError, match=r"there is no schedule 'bomb\.code:net'"):
        schedules.build({"name": "bomb.code:net"}, where="finetune")
    assert not bomb.exists()


def test_the_settings_of_a_machine_choose_no_decoder(bomb, tmp_path):
    yaml(tmp_path / "configs" / "machine" / "auto.yaml", "# @package _global_\ndecoder: [bomb.code.decode]\n")
    refused(bomb, "eval", "knn", *WEIGHTS, "--data", "sklearn:digits", flag="--decoder bomb.code.decode")


def test_hydra_imports_nothing_that_a_configuration_names(bomb, tmp_path):
    base = (ROOT.parent / "configs" / "pretrain.yaml").read_text()
    yaml(tmp_path / "configs" / "pretrain.yaml", base + "\nhydra:\n  searchpath: ['pkg://bomb.code']\n")
    command("pretrain", "rotnet", "--data", "sklearn:digits", "--dry-run")
    assert not bomb.exists()


def test_a_converter_names_no_code(bomb, tmp_path):
    text = 'title: x\nsource: x\nrules:\n  - ["a", "b", "bomb.code.decode"]\n'
    yaml(tmp_path / "model_converters" / "evil.yaml", text)
    tiny(tmp_path / "w.torch")
    code, said = command("inspect", "w.torch", "--format", "evil")
    assert not bomb.exists() and code == 2 and "unknown operation" in said
