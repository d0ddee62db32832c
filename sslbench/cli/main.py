"""The entry point: commands are imported when they are called, so that `--help` costs nothing."""

import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

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
    """Commands by name: `check-data` is `command` in sslbench/cli/check_data_command.py."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order in which help shows them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"sslbench.cli.{cmd_name.replace('-', '_')}_command")
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

        click.echo(f"sslbench {version('sslbench')}")
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
    """Runs one command; exit code 0 done, 2 wrong usage, 1 failed.

    A user's mistake ends in one message. Set SSLBENCH_TRACEBACK=1 to see the traceback as well.
    """
    try:
        words = list(sys.argv[1:] if arguments is None else arguments)
        typed = shlex.join(["sslbench", *words])
        outcome = cli.main(args=words, prog_name="sslbench", standalone_mode=False, obj=typed)
        code = outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.exceptions.Abort:
        code = _fail("interrupted", 130)
    except click.ClickException as error:
        where = f"\nSee: {error.ctx.command_path} --help" if isinstance(error, click.UsageError) and error.ctx else ""
        code = _fail(error.format_message() + where, error.exit_code)
    except SslbenchError as error:
        code = error.exit_code if error.told_by_first else _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = _fail("interrupted; what was extracted is kept, run the same command to continue", 130)
    except BrokenPipeError:
        # The reader (head, less) went away: not an error, but stdout must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if error.filename is None and error.strerror is None:
            raise
        code = _fail(f"{error.strerror}: {error.filename}" if error.filename else str(error), 1)
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        code = _fail("the device ran out of memory\nUse a smaller --batch-size, or --precision bf16.", 1)
    sys.exit(code)


def _fail(message: str, code: int) -> int:
    if os.environ.get("SSLBENCH_TRACEBACK"):
        import traceback

        traceback.print_exc()
    head, *rest = message.splitlines() or [""]
    click.echo(click.style("error: ", fg="red", bold=True) + head, err=True)
    for line in rest:
        click.echo("  " + line, err=True)
    return code
