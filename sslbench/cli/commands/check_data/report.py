"""Report of `sslbench check-data` on images and boxes."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli.echo import echo
from sslbench.text import csv_text

if TYPE_CHECKING:
    from sslbench.data.checks.findings import Finding
    from sslbench.data.checks.parts import CheckedParts

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
_ALL, _END = 12, 5  # up to 12 classes are listed; beyond that, the 5 largest and the 5 smallest
_CLASSES, _EACH = 60, 8  # classes on the sheet, examples of each


def show(checked: "CheckedParts", *, pairs: Path | None) -> None:
    """Print the splits, the counts and the findings; without a file of `pairs`, the flag that writes it."""
    for line in _about(checked):
        echo(line)
    _show_counts(checked)
    hint = "--pairs FILE.csv lists all suspected pairs of test and train: take one of each out before a run"
    show_findings(checked.findings, hint if pairs is None and checked.overlaps() else "")


def show_findings(findings: Sequence["Finding"], hint: str = "") -> None:
    """Print the findings, one per line, a hint, and last their number; see `exit_code`."""
    for finding in findings:
        echo(finding.message, before=click.style(f"{finding.level}: ", fg=_COLOURS[finding.level]))
    if hint:
        echo(hint)
    numbers = Counter(finding.level for finding in findings)
    counts = [f"{n} {level}{'s' if n > 1 else ''}" for level in ("error", "warning") if (n := numbers[level])]
    leak = "; test images lie in train" if any(finding.leak for finding in findings) else ""
    echo(f"found: {' and '.join(counts)}{leak}" if counts else "no errors found")


def exit_code(findings: Sequence["Finding"]) -> int:
    """Return 1 if an evaluation would stop or test samples lie in train, else 0."""
    return 1 if any(finding.level == "error" or finding.leak for finding in findings) else 0


def _about(checked: "CheckedParts") -> list[str]:
    lines = []
    for name, part in checked.parts.items():
        kind = "no labels" if not part.target.labelled else f"{part.target.name} label"
        if checked.opened.objects is not None:
            kind = f"{sum(checked.counts[name].values()):,} boxes"
        lines.append(f"{part.name}: {len(part):,} images, {len(part.target.classes)} classes ({kind})")
    total = sum(len(part) for part in checked.parts.values())
    lines.append(f"split: {checked.opened.data.how}")
    bad = f", {checked.tried - checked.decoded:,} cannot be used" if checked.decoded < checked.tried else ""
    all_ = " (--decode all)" if checked.tried < total else ""
    lines.append(f"decoded: {checked.decoded:,} of {total:,} images{bad}{all_}")
    return lines


def _show_counts(checked: "CheckedParts") -> None:
    names = _names(checked)
    if not names:
        return
    train, test = (checked.counts[part] for part in ("train", "test"))
    ordered = sorted(names, key=lambda name: (-train.get(name, 0), -test.get(name, 0)))
    listed: list[str | None] = list(ordered)
    if len(ordered) > _ALL:
        listed = [*ordered[:_END], None, *ordered[-_END:]]
    width = min(max(len(name) for name in ordered), 40)
    echo(f"{'class':{width}}  {'train':>9}  {'test':>9}")
    for name in listed:
        if name is None:
            echo(f"{f'... {len(ordered) - 2 * _END:,} more':{width}}")
        else:
            echo(f"{name[:width]:{width}}  {train.get(name, 0):>9,}  {test.get(name, 0):>9,}")


def _names(checked: "CheckedParts") -> list[str]:
    return list(dict.fromkeys(name for column in checked.counts.values() for name in column))


def as_json(checked: "CheckedParts") -> str:
    """Return the whole check as JSON."""
    found: dict[str, Any] = {
        "data": checked.opened.spec,
        "split": checked.opened.data.how,
        "parts": {
            key: {"name": part.name, "images": len(part), "labels": part.target.name, "counts": checked.counts[key]}
            for key, part in checked.parts.items()
        },
        "findings": [{"level": finding.level, "message": finding.message} for finding in checked.findings],
        "tried": checked.tried,
        "decoded": checked.decoded,
        "unreadable": [{"path": path, "reason": reason} for path, reason in checked.unreadable],
        "copies_looked_for": checked.copies,
        "overlaps": [suspect._asdict() for suspect in checked.overlaps()],
    }
    return json.dumps(found, indent=1)


def failed(data: str, message: str) -> str:
    """Return the JSON for data that cannot be opened."""
    return json.dumps({"data": data, "findings": [{"level": "error", "message": message}]}, indent=1)


def write_files(
    checked: "CheckedParts", *, csv: Path | None, sheet: Path | None, html: Path | None, pairs: Path | None = None
) -> None:
    """Write the given files; each appears complete or not at all."""
    if csv is not None:
        _write_csv(checked, csv)
    if pairs is not None:
        from sslbench.data.checks.duplicates import as_csv

        _write_text(as_csv(checked.overlaps()), pairs)
    if sheet is None and html is None:
        return
    from sslbench.data.checks import page, sheets

    pictures = {}
    for key, part in checked.parts.items():
        examples = sheets.chosen_by_class(part, classes=_CLASSES, each=_EACH)
        boxes = checked.boxes(key)
        pictures[key] = sheets.thumbnails(part, examples, reading=checked.reading, boxes=boxes)
    unit = "boxes" if checked.opened.objects is not None else "images"
    if sheet is not None:
        rows = {f"{name} ({key})".strip(): row for key, groups in pictures.items() for name, row in groups.items()}
        counts = {f"{name} ({key})": f"{n:,} {unit}" for key, of in checked.counts.items() for name, n in of.items()}
        sheets.class_sheet(rows, counts, sheet)
        echo(f"wrote {sheet}", err=True)
    if html is not None:
        page.write_page(
            html,
            title=checked.opened.spec,
            about=_about(checked),
            findings=checked.findings,
            counts=checked.counts,
            pictures={checked.parts[key].name: groups for key, groups in pictures.items()},
            unit=unit,
        )
        echo(f"wrote {html}", err=True)


def _write_csv(checked: "CheckedParts", path: Path) -> None:
    rows = [[name, *(column.get(name, 0) for column in checked.counts.values())] for name in _names(checked)]
    _write_text(csv_text([["class", *checked.counts], *rows]), path)


def _write_text(text: str, path: Path) -> None:
    from sslbench.weights.save import new_file

    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    echo(f"wrote {path}", err=True)
