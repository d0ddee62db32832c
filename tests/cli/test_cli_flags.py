"""Flags: a command uses every flag that it takes, or refuses it with its name and exit code 2."""

import ast
import importlib
import inspect
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

from sslbench.cli import options
from sslbench.cli.early import route
from sslbench.cli.flags import names_of
from sslbench.cli.main import COMMANDS
from sslbench.evaluation.settings import RunSettings
from sslbench.pretraining.settings import PretrainSettings

# Case of a command -> the words, and its flags that have no effect there. Every other flag is used in that case.
CASES = {
    "check-data maps": (
        ("check-data", "maps", "--label-maps"),
        "test_data image_column label_column test_fraction seed boxes near_copies store near_threshold pairs",
    ),
    "check-data boxes": (("check-data", "boxes.json", "--boxes"), "image_column label_column"),
    "check-data with a test split": (("check-data", "photos"), "seed test_fraction"),
    "check-data without near copies": (("check-data", "photos", "--near-copies", "none"), "store near_threshold"),
    "cka of features": (
        ("cka", "x.npy", "x.npy"),
        "backbone backbone_b format format_b data test_data image_column label_column limit resize crop interpolation "
        "mean std device precision feature_dtype batch_size workers seed on_error decoder max_pixels start_method "
        "store trust_pickle",
    ),
    "cka of random weights": (("cka", "random", "random", "--backbone", "resnet18"), "format format_b"),
    "cka of a test split": (("cka", "a.pth", "b.pth", "--test-data", "photos"), "data"),
    "convert without a stem": (("convert", "a.pth", "b.pth", "--to", "timm"), "in_chans"),
    "data prepare without a name": (("data", "prepare"), "archives out no_verify"),
    "data to-kwcoco of boxes": (
        ("data", "to-kwcoco", "boxes.json", "o.kwcoco.json", "--boxes"),
        "image_column label_column attribute_columns value_columns",
    ),
    "diff of raw names": (("diff", "a.pth", "b.pth", "--raw"), "format_a format_b"),
    "extract of random weights": (
        ("extract", "--weights", "random", "--backbone", "resnet18"),
        "format allow_partial trust_pickle stem",
    ),
    "inspect of data": (("inspect", "photos"), "as_json trust_pickle"),
    "leaderboard without CSV": (("leaderboard", "."), "form"),
    "pretrain from scratch": (("pretrain", "simclr"), "init_format stem"),
    "pretrain without evaluation": (("pretrain", "simclr"), "eval_test_data"),
    "pretrain without TensorBoard": (("pretrain", "simclr"), "histograms"),
    "pretrain anew": (("pretrain", "simclr", "--no-resume"), "resume_from"),
}
VALUES = {"mean": "0.5", "std": "0.5", "decode": "all", "resize": "32", "crop": "32", "test_fraction": "0.5"}


def find(words):
    """The click command that words call."""
    command = importlib.import_module(f"sslbench.cli.commands.{words[0].replace('-', '_')}").command
    return command.commands[words[1]] if isinstance(command, click.Group) else command


def typed(parameter):
    """A flag as it is typed, with a value."""
    if parameter.is_flag:
        return [parameter.opts[0]]
    if isinstance(parameter.type, click.Choice):
        return [parameter.opts[0], parameter.type.choices[0]]
    return [parameter.opts[0], VALUES.get(parameter.name, "1")]


def test_a_flag_without_effect_is_refused(sslbench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.eye(4, dtype=np.float32))
    for part in ("train", "test"):
        (tmp_path / "photos" / part / "cat").mkdir(parents=True)
        for image in range(2):
            content = np.full((8, 8, 3), 40 * image, np.uint8)
            Image.fromarray(content).save(tmp_path / "photos" / part / "cat" / f"{image}.png")
    wrong = []
    for words, names in CASES.values():
        for name in names.split():
            parameter = next(p for p in find(words).params if p.name == name)
            code, _, err = sslbench(*words, *typed(parameter))
            if code != 2 or not any(flag in err for flag in (*parameter.opts, *parameter.secondary_opts)):
                wrong.append((words, name, code, err))
    assert wrong == []


def commands():
    for name in COMMANDS:
        command = importlib.import_module(f"sslbench.cli.commands.{name.replace('-', '_')}").command
        yield from command.commands.values() if isinstance(command, click.Group) else [command]


# Words of a command's modules -> declarations whose flags they hand on as a whole, to `Request` and to settings.
WHOLE = {
    "request_of(": (options.WeightsFlags, options.DataFlags),
    ".loading()": (options.WeightsFlags,),
    "checked_run(": (RunSettings,),
    "run.settings": (RunSettings,),
    "given.typed": (PretrainSettings,),
}


def unread(command):
    """Names of a command's parameters that its modules do not read, as a variable or as a field of its flags."""
    module = Path(inspect.getfile(inspect.unwrap(command.callback)))
    files = [*module.parent.glob("*.py")] if module.name == "__init__.py" else [module]
    if "import EvalOptions" in module.read_text(encoding="utf-8"):  # a sweep reads its flags as `eval` does
        files += (module.parent / "eval").glob("*.py")
    texts = [file.read_text(encoding="utf-8") for file in files]
    wholes = [each for words, declared in WHOLE.items() if any(words in text for text in texts) for each in declared]
    read = {name for declared in wholes for name in names_of(declared)}
    for text in (*texts, Path(options.__file__).read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                read.add(node.id)
            elif isinstance(node, ast.Attribute):
                read.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # keys of settings
                read.add(node.value)
    handed = {p.name for p in command.params if isinstance(p, click.Option) and p.expose_value}
    return handed - read


def test_every_flag_is_read():
    assert {command.name: names for command in commands() if (names := unread(command))} == {}


@pytest.mark.parametrize("words", ["eval knn --weights pixels", "check-data sklearn:digits", "pretrain simclr"])
def test_a_seed_that_no_generator_takes_is_refused(words, sslbench):
    for seed in ("-1", "4294967296"):
        code, _, err = sslbench(*words.split(), "--seed", seed)
        assert code == 2 and "--seed" in err


def test_a_setting_that_a_protocol_shares_with_the_run_is_the_protocols_alone():
    routed = route({"batch_size": 2, "seed": 3}, ["batch_size", "seed"], ["finetune", "knn"])
    assert routed.run == {"seed": 3} and routed.protocols == {"finetune": {"batch_size": 2}, "knn": {}}
    assert route({"batch_size": 2}, ["batch_size"], ["knn"]).run == {"batch_size": 2}
