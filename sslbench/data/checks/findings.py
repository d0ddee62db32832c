"""Findings of data checks."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        level: an error stops the evaluation, a warning means that its number may mislead.
        message: one sentence for the user.
        leak: test samples lie in train.
    """

    level: Literal["error", "warning", "note"]
    message: str
    leak: bool = False


def by_level(findings: list[Finding]) -> list[Finding]:
    """Return the distinct findings, errors first and notes last."""
    return sorted(dict.fromkeys(findings), key=lambda finding: ("error", "warning", "note").index(finding.level))
