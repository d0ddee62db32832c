"""Key patterns: full keys with named holes.

`{i}` matches one dotted segment or part of it, `{rest*}` one or more, `{i+1}` a number that is one more than `{i}` on
the other side of a rule, for formats that count from one.
"""

import dataclasses
import functools
import re

_HOLE = re.compile(r"\{([a-z][a-z0-9_]*)(\*|\+1|)\}")


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Parsed pattern, for instance `layer{i}.{j}.bn{k}.{leaf}`; it matches whole keys only.

    Attributes:
        text: pattern as written.
        holes: names of the holes in order, with `*` for those that may contain dots.
        expression: equivalent regular expression.
        counted: names of the holes whose number is one more than on the other side.
        start: literal text before the first hole; comparing it first is faster than the expression.
    """

    text: str
    holes: tuple[str, ...]
    expression: re.Pattern[str]
    counted: frozenset[str]
    start: str

    def match(self, key: str) -> dict[str, str] | None:
        """Return the text in each hole if the pattern matches `key`, else None."""
        if not key.startswith(self.start):
            return None
        found = self.expression.fullmatch(key)
        if found is None:
            return None
        return {name: _moved(text, -1) if name in self.counted else text for name, text in found.groupdict().items()}

    def fill(self, values: dict[str, str]) -> str:
        """Return the key with `values` in the holes."""
        return _HOLE.sub(lambda hole: _moved(values[hole[1]], 1) if hole[2] == "+1" else values[hole[1]], self.text)

    def shape(self) -> str:
        """Return the pattern without the names of its holes; patterns of equal shape match the same keys."""
        return _HOLE.sub(lambda hole: "{" + hole[2] + "}", self.text)

    def summary(self) -> str:
        """Return the pattern as shown in reports: 'fc.*' for `fc.{rest*}`."""
        return _HOLE.sub("*", self.text)


def _moved(number: str, by: int) -> str:
    """Return a number plus 1 or -1; other text as it is, which the rule then does not give back."""
    return str(int(number) + by) if number.isdecimal() else number


@functools.cache
def parse(text: str) -> Pattern:
    """Parse a pattern.

    >>> parse("layer{i}.{j}.bn{k}.{leaf}").match("layer1.0.bn2.bias")
    {'i': '1', 'j': '0', 'k': '2', 'leaf': 'bias'}

    Raises:
        ValueError: the text is empty, has a brace outside a hole, a hole twice, two adjacent holes, several `*` holes,
            or a `*` hole that is not delimited by dots.
    """
    holes = list(_HOLE.finditer(text))
    names = [hole[1] for hole in holes]
    literal = _HOLE.sub("\0", text)
    if not text or "{" in literal or "}" in literal:
        raise ValueError(f"'{text}' is not a key with holes such as {{i}} or {{rest*}}")
    if len(set(names)) != len(names):
        raise ValueError(f"'{text}' has a hole twice")
    if "\0\0" in literal:
        raise ValueError(f"'{text}' has two holes with nothing between them")
    if sum(hole[2] == "*" for hole in holes) > 1:
        raise ValueError(f"'{text}' has more than one hole with a *")
    for hole in holes:
        before, after = text[: hole.start()], text[hole.end() :]
        if hole[2] == "*" and not ((before == "" or before[-1] == ".") and (after == "" or after[0] == ".")):
            raise ValueError(f"'{text}': a hole with a * stands for whole dotted segments")
    parts = [re.escape(part) for part in literal.split("\0")]
    expression = parts[0]
    for hole, part in zip(holes, parts[1:], strict=True):
        inside = {"*": r"[^.]+(?:\.[^.]+)*", "+1": r"[1-9]\d*", "": r"[^.]+"}[hole[2]]
        expression += f"(?P<{hole[1]}>{inside})" + part
    counted = frozenset(hole[1] for hole in holes if hole[2] == "+1")
    names = [hole[1] + hole[2].removesuffix("+1") for hole in holes]
    return Pattern(text, tuple(names), re.compile(expression), counted, literal.split("\0")[0])
