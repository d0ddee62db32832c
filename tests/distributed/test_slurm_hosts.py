"""First host of SLURM's short lists of hosts, against a slow writer of them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sslbench.distributed import first_host
from sslbench.errors import UsageError


@pytest.mark.parametrize(
    "nodes", ["", ",", "a,", ",a", "n[", "n[1", "n]", "n[]", "n[a-b]", "n[1-]", "n[1-2-3]", "n[[1]]", "a b"]
)
def test_anything_else_is_refused(nodes):
    with pytest.raises(UsageError, match="is not a SLURM host list"):
        first_host(nodes)


words = st.text("abz-._", min_size=1, max_size=4)
ranges = st.tuples(st.integers(0, 120), st.integers(0, 5), st.integers(1, 4))
names = st.lists(st.one_of(words, st.lists(ranges, min_size=1, max_size=3)), min_size=1, max_size=4)


@given(st.lists(names, min_size=1, max_size=3))
def test_the_first_name_of_what_is_written_in_short(lists):
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
    assert first_host(",".join(short)) == full[0]
