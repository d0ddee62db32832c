"""Flags of commands: in groups, in short and long forms, and with messages at three levels."""

import importlib

import click
import pytest

from sslbench.cli.commands.eval import command as eval_command
from sslbench.cli.commands.eval.flags import EvalOptions
from sslbench.cli.help import GROUPS, GroupedCommand
from sslbench.cli.main import COMMANDS, cli, main

LOADED = {name: importlib.import_module(f"sslbench.cli.commands.{name.replace('-', '_')}").command for name in COMMANDS}
GROUPED = [name for name, command in LOADED.items() if isinstance(command, GroupedCommand)]
IN_GROUPS = [name for names in GROUPS.values() for name in names]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in arguments])
    return exit_.value.code, *capsys.readouterr()


def test_commands_with_many_flags_group_them():
    assert {"eval", "pretrain", "extract", "leaderboard"} <= set(GROUPED)
    assert len(IN_GROUPS) == len(set(IN_GROUPS))


@pytest.mark.parametrize("name", GROUPED)
def test_every_flag_is_in_a_group(name):
    command = LOADED[name]
    assert {p.name for p in command.params if isinstance(p, click.Option)} <= set(IN_GROUPS)
    with click.Context(command, info_name=name) as ctx:
        shown = command.get_help(ctx)
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert all(option.hidden or option.opts[0] in shown for option in options)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_100_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = run(capsys, name, "--help")
    assert max(map(len, out.splitlines())) <= 100
    assert cli.context_settings["max_content_width"] == 100


@pytest.mark.parametrize("name", ["eval", "pretrain"])
def test_short_flags(name):
    flags = {flag: p.name for p in LOADED[name].params for flag in p.opts}
    expected = {"-d": "data", "-b": "backbone", "-o": "out", "-q": "quiet", "-v": "verbose"}
    assert expected.items() <= flags.items()


def test_places_may_be_typed_as_settings_and_weights_may_be_several():
    ctx = eval_command.make_context("eval", ["knn", "data=s3://a/{0..9}.tar", "-w", "a", "b", "knn.k=7"])
    chosen, names, values = EvalOptions.of(ctx)
    assert (chosen.data.data, chosen.weights, names, values) == ("s3://a/{0..9}.tar", ("a", "b"), ["knn"], {"knn.k": 7})
    assert EvalOptions.of(eval_command.make_context("eval", ["weights=w.torch"]))[0].weights == ("w.torch",)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["data=a", "-d", "b"], "data= and --data are the same flag"),
        (["data=a", "data=b"], "the key 'data' is given twice"),
        (["--knn.k", "7"], "there is no flag --knn.k\n  A setting is written as knn.k=VALUE."),
        (["k=3", "out=x", "--features", "x.npy", "--labels", "y.npy", "data=d"], "--data does not go with --features"),
    ],
)
def test_a_clash_is_refused(typed, message, capsys):
    code, _, err = run(capsys, "eval", "knn", *typed)
    assert code == 2 and message in err


def test_quiet_prints_results_and_verbose_more(capsys, tmp_path):
    words = ["eval", "knn", "-w", "pixels", "--store", tmp_path / "s", "--limit", 60, "--no-floors"]
    printed = {}
    for level in ("-q", None, "-v"):
        code, out, err = run(capsys, *words, "-o", tmp_path / str(level), *([level] if level else []))
        assert code == 0
        assert "knn" in out
        printed[level] = err
    assert all(line.startswith("warning: ") for line in printed["-q"].splitlines())
    assert "no --data: using" in printed[None]
    assert "no --data: using" not in printed["-q"]
    assert len(printed["-v"]) > len(printed[None])


def test_quiet_and_verbose_exclude_each_other(capsys):
    code, _, err = run(capsys, "eval", "knn", "-w", "pixels", "-q", "-v")
    assert code == 2
    assert "--quiet and --verbose exclude each other" in err
