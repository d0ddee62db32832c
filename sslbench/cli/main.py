"""Entry point of the command line. Commands are imported when they are called, so `--help` is fast."""

import contextlib
import importlib
import importlib.metadata
import io
import os
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from sslbench.cli.echo import echo, echo_text
from sslbench.distributed.messages import show_once, shown_elsewhere
from sslbench.errors import SslbenchError
from sslbench.names import did_you_mean
from sslbench.paths import FULL, not_written
from sslbench.text import without_secrets

# Written here so that --help and the nearest name of a mistyped command need no import of any command.
COMMANDS = {
    "pretrain": "Train a backbone without labels: simclr, moco_v2, dino, ...",
    "eval": "Score a backbone: knn, linear, svm, ...; finetune; detection.",
    "score": "Score detections made elsewhere, in COCO's result format.",
    "run": "Run written requests: of a file, a job or a record.",
    "sweep": "Score weights by several settings and seeds; one leaderboard.",
    "extract": "Write a backbone's features of a data set to disk.",
    "cluster": "Write k-means clusters of features as labels to train on.",
    "predict": "Write classes and probabilities, by a file with a classifier.",
    "export": "Write a network as ONNX or torch.export.",
    "inspect": "Describe a file or folder: weights, data, features.",
    "convert": "Write weights under the key names of another format.",
    "diff": "Compare the tensors of two weights files.",
    "cka": "Compare the layers of two networks by linear CKA.",
    "diff-preset": "Compare the settings of two presets, or a record and a preset.",
    "check-data": "Check data before a run: splits, copies, leaks, broken images.",
    "data": "Download or lay out data sets; name locations; write manifests.",
    "leaderboard": "Make one table of result records, also as CSV, HTML, LaTeX.",
    "reproduce": "Run a record, or a published number, again and compare.",
    "compare": "Test whether two results differ.",
    "selective": "Measure if a classifier knows its errors; sets of classes.",
    "list": "List names: methods, protocols, presets, benchmarks, ...",
    "show": "Draw features or predictions; print a recipe or benchmark.",
    "demo": "Pretrain and evaluate on bundled digits; offline, two minutes.",
}


class LazyGroup(click.Group):
    """Group of commands: `check-data` is `command` in sslbench/cli/commands/check_data/__init__.py."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        # Hyphens are for the user's eye: a module cannot have them.
        module = importlib.import_module(f"sslbench.cli.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest name for a mistyped command."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command '{args[0]}'. {did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per command without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        echo(f"sslbench {importlib.metadata.version('sslbench')}")
        ctx.exit()


GREETING = """\
sslbench pretrains image representations and measures how good they are.

  sslbench demo                                           pretrain and evaluate on bundled digits, two minutes
  sslbench inspect w.pth                                  format, architecture and layers of a weights file
  sslbench eval knn linear --weights w.pth --data photos/ score it
  sslbench leaderboard results/                           all results in one table
  sslbench pretrain simclr --data photos/                 train a backbone without labels

sslbench --help lists all commands."""


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Pretrain and benchmark image representations.

    \b
    sslbench pretrain simclr --data photos/ --backbone resnet50 batch_size=256
    sslbench eval knn linear svm --weights w.torch --data photos/
    sslbench leaderboard results/ --csv board.csv
    """  # noqa: D301
    if ctx.invoked_subcommand is None:
        echo(GREETING)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command; exit code 0 done, 2 wrong usage, 1 failed.

    A user's mistake ends in one message; SSLBENCH_TRACEBACK=1 also prints the traceback.
    """
    _open_streams()
    # OpenMP's threads spin while they wait, unless the user decides: they use the processor for nothing. It must be set
    # before torch is imported, whose OpenMP library reads it as it is loaded.
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "passive"
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # see `sslbench.cli`
    try:
        with _terminable():
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()  # at exit, a full disk would go unnoticed and a closed pipe would print a traceback
    except KeyboardInterrupt as error:
        code = _interrupted(error)
    except BrokenPipeError:
        code = _without_reader()
    except OSError as error:
        # Python's own OSErrors without errno and file are bugs: their traceback is needed.
        if error.filename is None and error.strerror is None:
            raise
        problem = str(error)
        if error.filename and error.errno in FULL:
            problem = not_written(Path(os.fsdecode(error.filename)), error)
        elif error.filename:
            problem = f"{error.strerror}: {error.filename}"
        code = _fail(problem, 1)
    except Exception as error:
        if _ends_of(error):
            sys.exit(_interrupted(error))
        # By name, since torch may not be imported, and need not be for this.
        if type(error).__name__ != "OutOfMemoryError":
            raise
        code = _fail("the device ran out of memory\nUse a smaller --batch-size, or --precision bf16.", 1)
    sys.exit(code)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: what is done is written, temporary files are removed."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Raise `_Terminated` for a SIGTERM in this process; of several processes, their launcher ends all."""
    # Python lets the main thread alone set handlers of signals.
    if threading.current_thread() is not threading.main_thread() or os.environ.get("WORLD_SIZE", "1") != "1":
        yield
        return
    process = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends at once
        if os.getpid() != process:  # a forked worker
            os.kill(os.getpid(), signal.SIGTERM)
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ends_of(cause: BaseException | None) -> list[KeyboardInterrupt]:
    """Return the interrupts from which an error was raised: a library may hide one in an error of its own."""
    found = []
    while cause is not None:
        found += [cause] if isinstance(cause, KeyboardInterrupt) else []
        cause = cause.__cause__ or cause.__context__
    return found


def _interrupted(cause: BaseException | None) -> int:
    """Print that a command was ended from outside, with what it says about that, and return the exit code."""
    ends = _ends_of(cause)
    by_signal = any(isinstance(end, _Terminated) for end in ends)
    said = [str(words) for end in ends for words in end.args]
    return _fail(": ".join(["terminated" if by_signal else "interrupted", *said]), 143 if by_signal else 130)


def _run(words: list[str]) -> int:
    """Run a command and return its exit code; print a user's mistake as one message."""
    # click replaces it where a pipe is closed, which tells that exit from others.
    stdout = sys.stdout
    try:
        outcome = cli.main(
            args=words,
            prog_name="sslbench",
            # click would print errors and exit by itself.
            standalone_mode=False,
            # It stands in records, and addresses may hold a login.
            obj=shlex.join(["sslbench", *map(without_secrets, words)]),
        )
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.Abort as error:  # click raises it for Ctrl-C and for EOFError
        if isinstance(error.__cause__, EOFError):
            return _fail(f"a file ends too early: {error.__cause__}", 1)
        return _interrupted(error.__cause__)
    except click.ClickException as error:
        hint = f"\nSee: {error.ctx.command_path} --help" if isinstance(error, click.UsageError) and error.ctx else ""
        return _fail(_short(error.format_message()) + hint, error.exit_code)
    except SslbenchError as error:
        if _ends_of(error):
            return _interrupted(error)
        shown = error.printed_by_rank_0 and shown_elsewhere()
        return error.exit_code if shown else _fail(str(error), error.exit_code)
    except SystemExit as error:
        if sys.stdout is stdout:
            raise SystemExit(error.code) from None
        return _without_reader()  # click wraps stdout and exits when the pipe is closed


def _short(message: str) -> str:
    """Return click's message with at most three of the arguments that a command does not take."""
    found = re.fullmatch(r"(Got unexpected extra arguments \()(.*)\)", message, re.DOTALL)
    words = found[2].split(" ") if found else []
    if found is None or len(words) <= 3:
        return message
    return f"{found[1]}{' '.join(words[:3])} and {len(words) - 3:,} more); a shell replaces a pattern (*) by all files"


def _without_reader() -> int:
    """Return 0 after the reader of stdout (head, less) has left, and discard further output."""
    # Python flushes stdout once more at its end, which would print 'Exception ignored ... BrokenPipeError'.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _open_streams() -> None:
    """Make printing work on any terminal: escape characters that it cannot encode, discard output if it is closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # 2>&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - open until exit
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(message: str, code: int) -> int:
    """Print an error, by one of the processes that have it, and return the exit code."""
    # For reports of bugs; a user's mistake has no traceback otherwise.
    if os.environ.get("SSLBENCH_TRACEBACK"):
        traceback.print_exc()

    def show() -> None:
        head, *rest = message.splitlines() or [""]
        echo_text(head, err=True, before=click.style("error: ", fg="red", bold=True))
        for line in rest:
            echo_text("  " + line, err=True)

    show_once(message, show)
    return code
