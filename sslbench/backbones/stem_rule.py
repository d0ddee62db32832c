"""Rules given as `--stem`, without torch; `stems` applies them."""

import dataclasses
from typing import Literal

from sslbench.errors import UsageError
from sslbench.names import did_you_mean

Name = Literal["repeat", "average", "sum", "bands", "random"]
_PLAIN: tuple[Name, ...] = ("repeat", "average", "sum", "random")
REMEDY = (
    "Write --stem average, repeat, sum, random, or bands=3,2,1 (one input band per channel of the file; '-': none)."
)


@dataclasses.dataclass(frozen=True)
class StemRule:
    """Rule that maps stem weights from C to N channels.

    Attributes:
        name: 'repeat': cycled, times C/N (Ross Wightman's rule, as in timm). 'average': the mean of the C for each of
            the N, times C/N: a grey picture repeated N times gives what it gave repeated C times, for any N. 'sum': the
            C added up, N is 1; the same as 'average' there. 'bands': each of the C for one band, zeros for the others.
            'random': the weights of the file are left out.
        bands: for each of the C the input band (from 0) that it is for, or None.
    """

    name: Name
    bands: tuple[int | None, ...] = ()


def parse_rule(text: str) -> StemRule:
    """Parse 'repeat', 'average', 'sum', 'random' or 'bands=3,2,1'.

    Raises:
        UsageError: it is none of them.
    """
    head, equals, rest = text.replace(" ", "").partition("=")
    if not equals:
        for name in _PLAIN:
            if head == name:
                return StemRule(name)
    if head != "bands":
        hint = did_you_mean(head, {*_PLAIN, "bands"})
        raise UsageError(f"--stem {text} is not a rule", f"{hint} {REMEDY}".strip())
    parts = rest.split(",")
    if not all(part == "-" or part.isdecimal() for part in parts):
        raise UsageError(f"--stem {text}: bands are numbers from 0, separated by commas", REMEDY)
    bands = tuple(None if part == "-" else int(part) for part in parts)
    named = [band for band in bands if band is not None]
    if not named or len(set(named)) < len(named):
        raise UsageError(f"--stem {text}: {'a band is named twice' if named else 'no band is named'}", REMEDY)
    return StemRule("bands", bands)
