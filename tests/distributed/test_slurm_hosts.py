"""SLURM's short lists of hosts, against a slow writer of them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sslbench.distributed.collectives import hosts
from sslbench.errors import UsageError


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("node7", ["node7"]),
        ("a,b-1,c", ["a", "b-1", "c"]),
        ("gpu[01-03]-ib", ["gpu01-ib", "gpu02-ib", "gpu03-ib"]),
        ("node[003-004,9],other", ["node003", "node004", "node9", "other"]),
        ("r[1-2]n[09-10]", ["r1n09", "r1n10", "r2n09", "r2n10"]),
        (
            "r[1,3]n[1-2]-ib.cluster,x",
            ["r1n1-ib.cluster", "r1n2-ib.cluster", "r3n1-ib.cluster", "r3n2-ib.cluster", "x"],
        ),
        ("n[98-101]", ["n98", "n99", "n100", "n101"]),
    ],
)
def test_as_scontrol_writes_them_out(nodes, expected):
    assert hosts(nodes) == expected


@pytest.mark.parametrize(
    "nodes", ["", ",", "a,", ",a", "n[", "n[1", "n]", "n[]", "n[a-b]", "n[1-]", "n[1-2-3]", "n[[1]]", "a b"]
)
def test_anything_else_is_refused(nodes):
    with pytest.raises(UsageError, match="is not a SLURM host list"):
        hosts(nodes)


words = st.text("abz-._", min_size=1, max_size=4)
ranges = st.tuples(st.integers(0, 120), st.integers(0, 5), st.integers(1, 4))
names = st.lists(st.one_of(words, st.lists(ranges, min_size=1, max_size=3)), min_size=1, max_size=4)


@given(st.lists(names, min_size=1, max_size=3))
def test_what_is_written_in_short_is_read_in_full(lists):
    """Each name is made of words and lists of ranges (low, how many more, digits)."""
    short, full = [], []
    for pieces in lists:
        choices, written = [], []
        for piece in pieces:
            if isinstance(piece, str):
                choices.append([piece])
                written.append(piece)
            else:
                choices.append([f"{n:0{digits}d}" for low, more, digits in piece for n in range(low, low + more + 1)])
                ends = [
                    (f"{low:0{digits}d}", f"-{low + more:0{digits}d}" if more else "") for low, more, digits in piece
                ]
                written.append("[" + ",".join(low + high for low, high in ends) + "]")
        short.append("".join(written))
        full += ["".join(parts) for parts in itertools.product(*choices)]
    assert hosts(",".join(short)) == full
