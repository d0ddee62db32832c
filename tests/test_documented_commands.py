"""Commands in the README and the guides: every command and flag exists."""

import re
import shlex
from pathlib import Path

import click

from sslbench.cli.main import LazyGroup

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("*/README.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]


def commands(page):
    """Return the words of every command that begins a line of a code block, or stands between backticks."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)).replace("\\\n", " ")
    inline = re.findall(r"`(sslbench [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    lines = [line for line in blocks.splitlines() if re.match(r"(\S+=\S+ )*sslbench \S", line)] + inline
    return [shlex.split(line[line.index("sslbench ") :], comments=True)[1:] for line in lines]


def unknown_words(words):
    """Return the first unknown command of a documented line, else its unknown flags."""
    command, rest = LazyGroup("sslbench"), words
    while isinstance(command, click.Group) and rest:
        with click.Context(command) as ctx:
            found = {name: command.get_command(ctx, name) for name in rest[0].split("|")}
        if not all(found.values()):
            return [name for name, one in found.items() if one is None]
        command, rest = next(iter(found.values())), rest[1:]
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    return sorted({word.partition("=")[0] for word in rest if word.startswith("--")} - known)


def test_every_documented_command_and_its_flags_exist():
    cases = [(page.relative_to(ROOT).as_posix(), words) for page in PAGES for words in commands(page)]
    assert len(cases) > 60
    wrong = [
        f"{page}: sslbench {' '.join(words)}: there is no {', '.join(unknown)}"
        for page, words in cases
        if (unknown := unknown_words(words))
    ]
    assert wrong == []
