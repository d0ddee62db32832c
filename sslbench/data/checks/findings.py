"""What a check of data found."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was found: an error stops the evaluation, a warning may make its number misleading."""

    level: Literal["error", "warning", "note"]
    message: str


def by_level(findings: list[Finding]) -> list[Finding]:
    """The same without repetitions, errors first and notes last."""
    return sorted(dict.fromkeys(findings), key=lambda finding: ("error", "warning", "note").index(finding.level))
