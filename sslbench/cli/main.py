"""The entry point: commands are imported when they are called, so that `--help` costs nothing."""

import importlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from sslbench.cli.echo import echo
from sslbench.errors import SslbenchError
from sslbench.names import did_you_mean

COMMANDS = {
    "pretrain": "Train a backbone without labels: simclr, moco_v2, swav, dino, ...",
    "eval": "Score a backbone: knn, linear, svm on frozen features; detection.",
    "extract": "Write a backbone's features of a data set to disk.",
    "inspect": "Say what a file or folder is: weights, data, features.",
    "convert": "Write weights with the key names of another format.",
    "diff": "Say which tensors of two weights files differ, and by how much.",
    "cka": "Compare the layers of two networks by linear CKA on the same images.",
    "diff-preset": "Say in which settings two published ways to run a protocol differ.",
    "check-data": "Find what is wrong with a data set before it costs a day.",
    "data": "Give data locations names (add, list, show, remove); write manifests (to-kwcoco).",
    "leaderboard": "Make one table (terminal, CSV, Markdown, HTML) of result records.",
    "compare": "Say whether the difference between two results is real.",
    "list": "List the names that can be used: methods, protocols, benchmarks, formats, ...",
    "show": "Print a recipe, a benchmark, a protocol's settings or a weight format.",
    "demo": "Pretrain a small ResNet on bundled digits and evaluate it, offline, in two minutes.",
}


class LazyGroup(click.Group):
    """Commands by name: `check-data` is `command` in sslbench/cli/commands/check_data/__init__.py."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order in which help shows them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"sslbench.cli.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A mistyped command gets the nearest name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command '{args[0]}'. {did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line each, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        echo(f"sslbench {version('sslbench')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print it.")
def cli() -> None:
    """Make and benchmark pretrained image representations: numbers that others believe.

    \b
    sslbench pretrain simclr --data photos/ --backbone resnet50
    sslbench eval knn linear svm --weights w.torch --data photos/
    sslbench leaderboard results/ --csv board.csv
    """  # noqa: D301


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command; exit code 0 done, 2 wrong usage, 1 failed.

    A user's mistake ends in one message. Set SSLBENCH_TRACEBACK=1 to see the traceback as well.
    """
    _open_streams()
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()  # what is left at exit would be lost silently on a full disk, and noisily on a closed pipe
    except KeyboardInterrupt:
        code = _fail("interrupted", 130)
    except BrokenPipeError:
        code = _without_reader()
    except OSError as error:
        if error.filename is None and error.strerror is None:
            raise
        code = _fail(f"{error.strerror}: {error.filename}" if error.filename else str(error), 1)
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        code = _fail("the device ran out of memory\nUse a smaller --batch-size, or --precision bf16.", 1)
    sys.exit(code)


def _run(words: list[str]) -> int:
    """Return the exit code of a command; mistakes of the user are told."""
    stdout = sys.stdout
    try:
        outcome = cli.main(
            args=words, prog_name="sslbench", standalone_mode=False, obj=shlex.join(["sslbench", *words])
        )
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.Abort as error:  # made by click of Ctrl-C, and of EOFError as of input that ended
        if isinstance(error.__cause__, EOFError):
            return _fail(f"a file ends before it should: {error.__cause__}", 1)
        return _fail(": ".join(["interrupted", *map(str, getattr(error.__cause__, "args", ()))]), 130)
    except click.ClickException as error:
        where = f"\nSee: {error.ctx.command_path} --help" if isinstance(error, click.UsageError) and error.ctx else ""
        return _fail(error.format_message() + where, error.exit_code)
    except SslbenchError as error:
        return error.exit_code if error.told_by_first else _fail(str(error), error.exit_code)
    except SystemExit as error:
        if sys.stdout is stdout:
            raise SystemExit(error.code) from None
        return _without_reader()  # click puts a wrapper around a closed pipe, and ends so


def _without_reader() -> int:
    """Return 0: that the reader of stdout (head, less) went away is no error. Nothing more is written to it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _open_streams() -> None:
    """Make printing work on any terminal: ASCII ones get escapes, closed ones lose what is printed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # 2>&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - until the end
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(message: str, code: int) -> int:
    if os.environ.get("SSLBENCH_TRACEBACK"):
        import traceback

        traceback.print_exc()
    head, *rest = message.splitlines() or [""]
    echo(head, err=True, before=click.style("error: ", fg="red", bold=True))
    for line in rest:
        echo("  " + line, err=True)
    return code
