"""One command in a child process with bounded memory and time, and what became of it."""

import contextlib
import dataclasses
import functools
import gc
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 60
"""Processor time of a command; ten times as much may pass on the clock."""
BYTES = 12 << 30
REPORTS = ("check-data", "inspect")
"""Commands whose output is a report that says what is wrong, with exit code 1."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of one command.

    Attributes:
        command: first word of the command line.
        code: exit code; negative: the number of the signal that killed it.
        out: of stdout.
        err: of stderr.
        seconds: of processor time.
    """

    command: str
    code: int
    out: str
    err: str
    seconds: float

    @property
    def is_clear(self) -> bool:
        """Exit code 0, 1 or 2 and no traceback; after an error a line on stderr, or a report on stdout (`REPORTS`)."""
        report = self.out if self.command in REPORTS else ""
        has_message = self.code == 0 or bool((self.err + report).strip())
        return self.code in (0, 1, 2) and "Traceback" not in self.err + self.out and has_message


def run(
    words: Sequence[str], folder: Path, *, seconds: int = SECONDS, memory: int = BYTES, largest: int | None = None
) -> Outcome:
    """Run `sslbench WORDS` in a fork of a process that has imported what earlier commands needed, and nothing else.

    Args:
        words: of the command line.
        folder: current folder of the child; also of its caches, so that cases do not meet.
        seconds: of processor time, after which the child is killed.
        memory: address space that the child may add to the parent's, in bytes.
        largest: size in bytes that no file of the child may exceed, which is a full disk for whoever writes one.
    """
    ended = _ask({
        "words": list(words), "folder": str(folder), "environment": dict(os.environ),
        "seconds": seconds, "memory": memory, "largest": largest,
    })  # fmt: skip
    out, err = ((folder / name).read_text(errors="replace") for name in (".stdout", ".stderr"))
    return Outcome(words[0], ended["code"], out, err, ended["seconds"])


def prepare(words: Sequence[str], folder: Path) -> None:
    """Run a command that ends well in the process whose forks the children are: what it imports and keeps is theirs."""
    environment = os.environ | {"SSLBENCH_CACHE": str(folder / ".cache")}
    code = _ask({"words": list(words), "folder": str(folder), "environment": environment, "stay": True})["code"]
    assert code == 0, f"exit {code} of {words}"


@functools.cache
def _parent() -> subprocess.Popen[str]:
    """The process that children are forks of: the one of the tests has run threads, which a fork does not survive."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}  # a fork of several threads hangs
    return subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    parent = _parent()
    assert parent.stdin is not None
    assert parent.stdout is not None
    print(json.dumps(request), file=parent.stdin, flush=True)
    return json.loads(parent.stdout.readline())


def _answer() -> None:
    """Fork a child per line of stdin, until it is closed."""
    from sslbench import names
    from sslbench.weights.formats import tables

    for name in names.list_names("format"):  # a second of parsing, kept by the module
        tables.load_networks(name)
    for line in sys.stdin:
        request = json.loads(line)
        answer = _stay(**request) if request.pop("stay", False) else _run(**request)
        _import_as(Path(request["folder"]) / ".modules")
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _import_as(child: Path) -> None:
    """Import what a child had imported in the end, given its list: the next one begins in milliseconds."""
    if not child.is_file() or not (new := set(child.read_text().split()) - set(sys.modules) - _TRIED):
        return
    _TRIED.update(new)
    for name in sorted(new):
        with contextlib.suppress(Exception):  # parts of a package that only it can import
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else each child copies all memory as it collects


_TRIED: set[str] = set()


def _stay(words: Sequence[str], folder: str, environment: dict[str, str]) -> dict[str, Any]:
    from sslbench.cli.main import main

    before, here = dict(os.environ), Path.cwd()
    os.environ.update(environment)
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for answers
            main(list(words))
    except SystemExit as stop:
        return {"code": stop.code}
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)
        gc.collect()
        gc.freeze()  # else each child copies all memory as it collects
    return {"code": 0}


def _run(
    words: Sequence[str], folder: str, environment: dict[str, str], seconds: int, memory: int, largest: int | None
) -> dict[str, Any]:
    process = os.fork()
    if process == 0:
        os.environ.clear()
        os.environ.update(environment)
        _become(words, Path(folder), seconds, memory, largest)
    _, status, used = os.wait4(process, 0)
    return {"code": os.waitstatus_to_exitcode(status), "seconds": used.ru_utime + used.ru_stime}


def _become(words: Sequence[str], folder: Path, seconds: int, memory: int, largest: int | None) -> None:
    """Run the command in this process, a child, and end it."""
    code = 70
    try:
        os.chdir(folder)
        for number, path in ((1, folder / ".stdout"), (2, folder / ".stderr")):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        os.environ["SSLBENCH_CACHE"] = str(folder / ".cache")
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + memory, mapped + memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        signal.alarm(10 * seconds)  # it waits for something, or the machine is very busy
        from sslbench.cli.main import main

        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
            sys.dont_write_bytecode = True  # the first bytes of a module would be kept, which nobody can import again
        try:
            main(list(words))
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:  # noqa: BLE001 - whatever it is, it is printed
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
            if largest is None:
                (folder / ".modules").write_text("\n".join(sys.modules))
        os._exit(code)


if __name__ == "__main__":
    _answer()
