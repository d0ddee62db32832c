"""Expansion of SLURM's compact host lists, as by `scontrol show hostnames`."""

import itertools
import re

from sslbench.errors import UsageError

_NAME = re.compile(r"(?:[^\[\],\s]|\[[^\[\],\s]+(?:,[^\[\],\s]+)*\])+")
_PIECE = re.compile(r"\[([^\]]+)\]|([^\[]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def hosts(nodes: str) -> list[str]:
    """Return the host names of a compact list, in order.

    Numbers have as many digits as the lower end of their range. Of several brackets in a name, the last varies fastest.

    >>> hosts("gpu[01-03,7]-ib,login")
    ['gpu01-ib', 'gpu02-ib', 'gpu03-ib', 'gpu7-ib', 'login']

    Args:
        nodes: for instance the value of SLURM_STEP_NODELIST.

    Raises:
        UsageError: the list is malformed.
    """
    names, position = [], 0
    while found := _NAME.match(nodes, position):
        pieces = [_numbers(inside, nodes) if inside else [text] for inside, text in _PIECE.findall(found[0])]
        names += ["".join(parts) for parts in itertools.product(*pieces)]
        position = found.end()
        if position == len(nodes):
            return names
        if nodes[position] != ",":
            break
        position += 1
    raise _malformed(nodes)


def _numbers(ranges: str, nodes: str) -> list[str]:
    """Return the numbers of a bracket: '01-03,7' -> 01, 02, 03, 7."""
    found = []
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text)
        if match is None:
            raise _malformed(nodes)
        low, high = match[1], match[2] or match[1]
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found


def _malformed(nodes: str) -> UsageError:
    return UsageError(
        f"'{nodes}' is not a SLURM host list such as node[003-006,9],other",
        "Set MASTER_ADDR to the first host of the job.",
    )
