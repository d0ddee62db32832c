"""Report of `sslbench check-data` on label maps."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sslbench.cli.commands.check_data.report import show_findings
from sslbench.cli.echo import echo
from sslbench.text import csv_text

if TYPE_CHECKING:
    from sslbench.data.checks.maps import CheckedMaps

_ALL, _END = 24, 8  # up to 24 classes are listed; beyond that, the 8 largest and the 8 smallest
_CLASSES, _EACH = 40, 4  # classes on the sheet, examples of each


def show(checked: "CheckedMaps") -> None:
    """Print the splits, the share of every class and the findings."""
    for line in _about(checked):
        echo(line)
    _show_classes(checked)
    show_findings(checked.findings)


def _about(checked: "CheckedMaps") -> list[str]:
    lines = []
    for split, part in checked.parts.items():
        counts = checked.counts[split]
        ignored = counts.ignored / max(counts.total, 1)
        shares = [f"{ignored:.1%} of the pixels ignored"] if counts.ignored else []
        shares += [f"{counts.instances:,} instances"] if counts.instances is not None else []
        extent = "" if counts.read == len(part) else f"in {counts.read:,} of the maps "
        line = f"{part.name}: {len(part):,} images with label maps, {len(part.classes)} classes"
        lines.append(line + (f"; {extent}{', '.join(shares)}" if shares else ""))
    read, total = (sum(of) for of in zip(*_read(checked), strict=True))
    lines.append(f"read: {read:,} of {total:,} maps and their images" + (" (--decode all)" * (read < total)))
    return lines


def _read(checked: "CheckedMaps") -> list[tuple[int, int]]:
    return [(checked.counts[split].read, len(part)) for split, part in checked.parts.items()]


def _show_classes(checked: "CheckedMaps") -> None:
    rows = _rows(checked)
    first = next(iter(checked.parts))
    order = sorted(rows, key=lambda name: -rows[name].get(first, (0, 0, 0.0))[0])
    listed: list[str | None] = list(order)
    if len(order) > _ALL:
        listed = [*order[:_END], None, *order[-_END:]]
    width = min(max([len(name) for name in order] + [5]), 40)
    heads = ["pixels" if split == "all" else split for split in checked.parts]
    echo(f"{'class':{width}}" + "".join(f"  {head:>8}  {'images':>7}" for head in heads))
    for name in listed:
        if name is None:
            echo(f"... {len(order) - 2 * _END:,} more")
            continue
        cells = [rows[name].get(split, (0, 0, 0.0)) for split in checked.parts]
        echo(f"{name[:width]:{width}}" + "".join(f"  {share:>8.2%}  {images:>7,}" for _, images, share in cells))


def _rows(checked: "CheckedMaps") -> dict[str, dict[str, tuple[int, int, float]]]:
    """Return class -> split -> (pixels, images, share of the labelled pixels)."""
    rows: dict[str, dict[str, tuple[int, int, float]]] = {}
    for split, part in checked.parts.items():
        counts = checked.counts[split]
        whole = max(int(counts.pixels.sum()), 1)
        for name, pixels, images in zip(part.classes, counts.pixels.tolist(), counts.images.tolist(), strict=True):
            rows.setdefault(name, {})[split] = (pixels, images, pixels / whole)
    return rows


def as_json(checked: "CheckedMaps") -> str:
    """Return the whole check as JSON."""
    parts: dict[str, Any] = {}
    for split, part in checked.parts.items():
        counts = checked.counts[split]
        columns = zip(part.classes, part.coding.values, counts.pixels.tolist(), counts.images.tolist(), strict=True)
        parts[split] = {
            "name": part.name,
            "images": len(part),
            "read": counts.read,
            "ignored_values": list(part.coding.ignore),
            "ignored_pixels": counts.ignored,
            "unknown_pixels": counts.unknown,
            "instances": counts.instances,
            "classes": [{"name": name, "value": v, "pixels": n, "images": m} for name, v, n, m in columns],
            "images_without_map": list(part.without_map),
            "maps_without_image": list(part.without_image),
        }
    found = {
        "data": checked.spec,
        "parts": parts,
        "findings": [{"level": finding.level, "message": finding.message} for finding in checked.findings],
        "unreadable": [{"path": path, "reason": reason} for path, reason in checked.unreadable],
        "copies_looked_for": checked.copies,
    }
    return json.dumps(found, indent=1)


def write_files(checked: "CheckedMaps", *, csv: Path | None, sheet: Path | None, html: Path | None) -> None:
    """Write the given files; each appears complete or not at all."""
    if csv is not None:
        _write_csv(checked, csv)
    if sheet is None and html is None:
        return
    from sslbench.data.checks import map_sheet, page, sheets

    pictures = {split: map_sheet.overlays(checked, split, classes=_CLASSES, each=_EACH) for split in checked.parts}
    rows = _rows(checked)
    if sheet is not None:
        titles = {split: "" if split == "all" else f" ({split})" for split in checked.parts}
        shown = {f"{name}{titles[s]}": row for s, of in pictures.items() for name, row in of.items()}
        captions = {
            f"{name}{titles[s]}": f"{images:,} images, {share:.1%}"
            for name, of in rows.items()
            for s, (_, images, share) in of.items()
        }
        sheets.class_sheet(shown, captions, sheet)
        echo(f"wrote {sheet}", err=True)
    if html is not None:
        page.write_page(
            html,
            title=checked.spec,
            about=_about(checked),
            findings=checked.findings,
            counts={s: {name: of[s][1] for name, of in rows.items() if s in of} for s in checked.parts},
            pictures={checked.parts[split].name: groups for split, groups in pictures.items()},
        )
        echo(f"wrote {html}", err=True)


def _write_csv(checked: "CheckedMaps", path: Path) -> None:
    from sslbench.weights.save import new_file

    head = ["class", *(f"{split}_{what}" for split in checked.parts for what in ("pixels", "images"))]
    rows = [
        [name, *(n for split in checked.parts for n in of.get(split, (0, 0, 0.0))[:2])]
        for name, of in _rows(checked).items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        temporary.write_text(csv_text([head, *rows]), encoding="utf-8")
    echo(f"wrote {path}", err=True)
