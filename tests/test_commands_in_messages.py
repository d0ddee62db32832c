"""Commands and options that messages name as remedies: they exist."""

import ast
import functools
import re
from pathlib import Path

import click
from test_documented_commands import unknown_words

import sslbench
from sslbench.cli.main import COMMANDS, LazyGroup

CODE = Path(sslbench.__file__).parent
COMMAND = re.compile(r"sslbench ([a-z][a-z-]+(?: [\w./=\[\]{}'-]+(?::[\w./-]+)*)*)")
OF_OTHERS = {
    *("--shm-size", "--no-build-isolation", "--upgrade"),  # docker run, pip
    *("--cpus-per-task", "--ntasks-per-node", "--nproc-per-node", "--kill-on-bad-exit"),  # srun, torchrun
    *("--verify", "--no-optional-locks", "--porcelain", "--untracked-files"),  # git
    *("--help", "--version", "--flag", "--knn"),  # of every command; of the help about options
}
"""Options in strings that are none of a command of sslbench."""


@functools.cache
def texts():
    """Return (file and line, text) of each string in the code but docstrings; holes of f-strings are X."""
    found = []
    for file in sorted(CODE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in documentation:
                continue
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            found.append((f"{file.relative_to(CODE)}:{node.lineno}", text))
    return found


def test_commands_in_messages_exist_with_their_options():
    wrong, seen = [], 0
    for where, text in texts():
        for match in COMMAND.finditer(text):
            words = match[1].split()
            if words[0] in COMMANDS:
                seen += 1
                unknown = [word for word in unknown_words(words) if word not in ("--help", "X")]
                wrong += [f"{where}: sslbench {match[1]}: {', '.join(unknown)}"] if unknown else []
    assert seen > 40
    assert wrong == []


def test_options_in_messages_exist():
    known = {*OF_OTHERS}
    group = LazyGroup("sslbench")
    waiting = [group]
    while waiting:
        command = waiting.pop()
        known |= {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        if isinstance(command, click.Group):
            with click.Context(command) as ctx:
                waiting += [command.get_command(ctx, name) for name in command.list_commands(ctx)]
    wrong = [
        f"{where}: {flag}"
        for where, text in texts()
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", text)
        if flag not in known
    ]
    assert wrong == []
