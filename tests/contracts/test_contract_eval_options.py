"""Every option of `eval` changes the plan of every protocol, or is refused with its name."""

import copy
import functools

import click
import pytest

from sslbench import paths
from sslbench.cli import early, slurm
from sslbench.cli.commands.eval import command
from sslbench.cli.commands.eval.check import check
from sslbench.cli.commands.eval.flags import EvalOptions
from sslbench.cli.commands.eval.work import make_plan
from sslbench.errors import UsageError
from sslbench.library.recipes import compose
from sslbench.names import list_names
from sslbench.protocols import OnFeatures, find

PROTOCOLS = list_names("protocol")
ON_FEATURES = [name for name in PROTOCOLS if isinstance(find(name).kind, OnFeatures)]
OPTIONS = [
    parameter for parameter in command.params if isinstance(parameter, click.Option) and parameter.expose_value
]  # --quiet and --verbose change messages only: test_contract_flags.py
VALUES = {
    "benchmarks": "mine.yaml",
    "presets": "preset.yaml",
    "suite": "mine",
    "data": "other",
    "decoder": "fast",
    "device": "cpu",
    "feature_dtype": "float16",
    "format": "timm",
    "max_memory": "7GB",
    "interpolation": "bicubic",
    "noise": "0.2",
    "max_pixels": "777",
    "mean": "0.1,0.2,0.3",
    "on_error": "skip",
    "precision": "bf16",
    "resize": "32",
    "scales": "1,0.5",
    "crop": "32",
    "start_method": "spawn",
    "std": "0.1,0.2,0.3",
    "stem": "sum",
    "program": "detectron2",
    "test_classes": "subset",
    "launcher": "slurm",
}
NETWORK = ("--weights", "some.pth", "--backbone", "resnet18w0.25")
EMBEDDINGS = ("--features", "x.npy", "--labels", "y.csv")


@functools.cache
def composed_once(config, choices):
    """The same files, put together by Hydra for every plan, would take nine tenths of the time."""
    return compose(config, dict(choices))


@pytest.fixture(autouse=True)
def quick_compose(monkeypatch):
    def own_copy(config, choices):
        return copy.deepcopy(composed_once(config, tuple(choices.items())))

    monkeypatch.setattr(early, "compose", own_copy)
    for refusal in ("refuse_mistyped", "refuse_other_files", "refuse_missing_files"):  # the files need not exist
        monkeypatch.setattr(early, refusal, lambda *_, **__: None)
    # Nothing is written between the plans of one test.
    monkeypatch.setattr(paths, "paths_below", functools.cache(paths.paths_below))


def plan(typed_words):
    """What would be done, nothing opened: the last step before data and weights are."""
    ctx = command.make_context("eval", [str(word) for word in typed_words])
    with ctx:
        chosen, names, values = EvalOptions.of(ctx)
        launcher, values = slurm.take_launcher(values, chosen.launcher)
        return make_plan(chosen, names, values, check(ctx, chosen, names, values)), launcher, chosen.dry_run


def typed(option):
    if option.is_flag:
        return [option.opts[0]]
    usual = "7" if isinstance(option.type, click.types.IntParamType) else "something"
    return [option.opts[0], VALUES.get(option.name, usual)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with a benchmark, a preset and a suite for a protocol."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    monkeypatch.setattr("sslbench.detection.detectron2.library.require", lambda: None)

    def write(protocol):
        base = "extends: detection/_cpu\n" if protocol == "detection" else ""
        text = f"title: t\nprotocol: {protocol}\nversion: 9\ndata: sklearn:digits\n"
        (tmp_path / "mine.yaml").write_text(text + base)
        (tmp_path / "preset.yaml").write_text(f"title: t\nprotocol: {protocol}\nsource: s\n")
        (tmp_path / "benchmarks" / "suites").mkdir(parents=True)
        (tmp_path / "benchmarks" / "own.yaml").write_text(text + base)
        (tmp_path / "benchmarks" / "suites" / "mine.yaml").write_text("title: t\nbenchmarks: [own]\n")

    return write


def assert_used_or_refused(before, usual, option):
    """The plan of the words `before` and of an option differs from the `usual` one of `before`, or is refused."""
    extra = typed(option)
    if option.name == "weights" and "--weights" in before:
        before = [word for word in before if word not in NETWORK[:2]]
        assert plan([*before, "--weights", "other.pth"]) != plan([*before, *NETWORK[:2]])
        return
    if option.name == "data" and "detection" in before:
        extra += ["--benchmark", "detection/toy"]
    try:
        changed = plan([*before, *extra])
    except UsageError as error:
        assert error.exit_code == 2
        assert "does not go with" in error.message and option.opts[0] in str(error), error
        return
    assert changed != usual, f"{option.opts[0]} changes nothing and is not refused"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_option_is_used_or_refused(protocol, folder):
    folder(protocol)
    before = (protocol, *NETWORK)
    usual = plan(before)
    for option in OPTIONS:
        assert_used_or_refused(before, usual, option)


@pytest.mark.parametrize("labels", [True, False])
def test_every_option_beside_embeddings_is_used_or_refused(labels, folder):
    folder("geometry")
    before = ("geometry", *EMBEDDINGS) if labels else ("geometry", *EMBEDDINGS[:2])
    usual = plan(before)
    for option in OPTIONS:
        if labels or option.name != "labels":
            assert_used_or_refused(before, usual, option)


@pytest.mark.parametrize("protocol", ON_FEATURES)
def test_protocols_on_features_take_embeddings(protocol):
    (request,) = plan((protocol, *EMBEDDINGS))[0].requests
    assert [task.protocol for task in request.tasks] == [protocol]


def test_an_option_that_one_of_several_protocols_uses_is_not_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert plan(("knn", "linear", *NETWORK, "--max-memory", "7GB")) != plan(("knn", "linear", *NETWORK))
    with pytest.raises(UsageError, match="--max-memory does not go with linear lsr"):
        plan(("linear", "lsr", *NETWORK, "--max-memory", "7GB"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("flag", [["--format", "vissl"], ["--allow-partial"], ["--trust-pickle"]])
def test_options_of_a_weights_file_are_refused_without_one(protocol, flag):
    with pytest.raises(UsageError, match=f"{flag[0]} does not go with --weights random"):
        plan((protocol, "--weights", "random", "--backbone", "resnet18", *flag))
