"""Commands in the README and the guides: every command and flag exists."""

import re
import shlex
from pathlib import Path

import click
import pytest

from sslbench.cli.main import LazyGroup

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("*/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
]


def commands(page):
    """Return the words of every command that begins a line of a code block, or stands between backticks."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)).replace("\\\n", " ")
    inline = re.findall(r"`(sslbench [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    lines = [line for line in blocks.splitlines() if re.match(r"(\S+=\S+ )*sslbench \S", line)] + inline
    return [shlex.split(line[line.index("sslbench ") :], comments=True)[1:] for line in lines]


CASES = [(page.relative_to(ROOT).as_posix(), " ".join(words)) for page in PAGES for words in commands(page)]


def test_pages_have_commands():
    assert len(CASES) > 60


@pytest.mark.parametrize(("page", "words"), CASES)
def test_a_documented_command_and_its_flags_exist(page, words):
    del page  # names the test
    command, rest = LazyGroup("sslbench"), words.split(" ")
    while isinstance(command, click.Group):
        with click.Context(command) as ctx:
            found = [command.get_command(ctx, name) for name in rest[0].split("|")]
        assert all(found), rest[0]
        command, rest = found[0], rest[1:]
        if not rest:
            return
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    unknown = {word.partition("=")[0] for word in rest if word.startswith("--")} - known
    assert not unknown
