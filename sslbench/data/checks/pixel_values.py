"""Checks of images with depth or surface normals."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from sslbench.data.checks.findings import Finding, by_level
from sslbench.data.checks.parts import picture_findings, spread
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.loading import loader
from sslbench.data.maps.types import size_and_turn, unknown_orientation
from sslbench.data.maps.values import Quantity, implausible_unit
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import SslbenchError
from sslbench.targets.pixel_values import ReadValues

_LISTED = 10


@dataclasses.dataclass(frozen=True)
class CheckedValues:
    """Result of a check.

    Attributes:
        lines: one per split.
        findings: errors first.
    """

    lines: tuple[str, ...]
    findings: tuple[Finding, ...]


def check_values(parts: Mapping[str, Source], quantity: Quantity, read: int | None) -> CheckedValues:
    """Read depth or normals and return what they hold and what is wrong with them.

    Args:
        parts: split -> images with values.
        quantity: of the values.
        read: number of images of each split, evenly spaced; None: all.
    """
    lines, findings = [], list[Finding]()
    for source in parts.values():
        line, found = _checked(source, quantity, read)
        lines.append(line)
        findings += [*found, *(Finding("note", note) for note in source.notes)]
    return CheckedValues(tuple(lines), tuple(by_level(findings)))


def _checked(source: Source, quantity: Quantity, read: int | None) -> tuple[str, list[Finding]]:
    problems, without, ranges, pixels, unknown = list[str](), list[str](), list[tuple[float, float, float]](), 0, 0
    rows = spread(len(source), read).tolist()
    for index in rows:
        try:
            values = _values(source, index)
        except (SslbenchError, UnreadableImage) as error:
            problems.append(error.message if isinstance(error, SslbenchError) else str(error))
            continue
        known = values[~np.isnan(values).any(axis=2)]
        pixels, unknown = pixels + values[..., 0].size, unknown + values[..., 0].size - len(known)
        if not len(known):
            without.append(source.ids[index])
        elif quantity == "depth":
            ranges.append((float(known.min()), float(known.max()), float(np.median(known))))
    decoded = loader.survey(source, np.array(rows, dtype=np.int64), 0)
    problems += [f"{path}: {reason}" for _, path, reason in decoded.unreadable]
    findings = [Finding("error", problem) for problem in problems[:_LISTED]] + picture_findings(source, decoded)
    if (turned := unknown_orientation(source.name, source.images, sized=True)) is not None:
        findings.append(Finding("warning", turned))
    if len(problems) > _LISTED:
        findings.append(Finding("error", f"{source.name}: and {len(problems) - _LISTED} more that cannot be used"))
    if without and not pixels - unknown:
        findings.append(Finding("error", f"{source.name}: no pixel of the {len(rows):,} images read has a known value"))
    elif without:
        names = f"{counted(len(without), 'image')} without a known {quantity} are not scored: {some(without, 5)}"
        findings.append(Finding("warning", f"{source.name}: {names}"))
    line = f"{source.name}: {len(source):,} images with {quantity}, {len(rows):,} read"
    if pixels:
        line += f"; {unknown / pixels:.1%} of the pixels unknown"
    if ranges:
        lows, highs, medians = zip(*ranges, strict=True)
        median = float(np.median(medians))
        line += f"; {min(lows):.3g} to {max(highs):.3g} m, median {median:.3g} m"
        if wrong := implausible_unit(min(lows), max(highs), median):
            findings.append(Finding("error", f"{source.name}: {wrong}"))
    return line, findings


def _values(source: Source, index: int) -> np.ndarray:
    return ReadValues.of(source.target).pixels.read_values(index, size=size_and_turn(source.images, index)[0])
