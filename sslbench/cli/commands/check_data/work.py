"""Checks of `sslbench check-data`, and their reports on images, boxes, label maps and values of pixels."""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sslbench.cli import options
from sslbench.cli.commands.check_data.flags import CheckFlags
from sslbench.cli.echo import echo, echo_text, is_verbose
from sslbench.data.checks import maps as map_checks
from sslbench.data.checks import sheets
from sslbench.data.checks.duplicates import THRESHOLD, Finding, Pair, as_csv, near_copies, small_pictures
from sslbench.data.checks.maps import CheckedMaps, check_maps
from sslbench.data.checks.parts import CheckedParts, OpenedParts, check_parts, check_values, open_with_boxes
from sslbench.data.clips import noun_of
from sslbench.data.decode.handlers import Reading, resolve
from sslbench.data.open import kind_alone, open_as
from sslbench.data.splits import TrainTest, train_test
from sslbench.errors import DataError, UsageError
from sslbench.evaluation.label_errors import label_errors
from sslbench.features.store import StoredPair, find_stored
from sslbench.paths import new_file
from sslbench.preprocessing import MAX_PIXELS
from sslbench.runtime.resources import default_workers
from sslbench.targets.label_maps import LabelMaps
from sslbench.targets.pixel_values import Depth, Normals
from sslbench.targets.target import Target
from sslbench.text import csv_text

_OF_MAPS = (*("label_maps", "decode", "copies", "csv", "sheet", "html", "as_json", "workers", "max_pixels", "decoder"),)
"""Flags that a check of label maps uses."""


def check(ctx: click.Context, given: CheckFlags) -> int:
    """Check the data, print the report and return the exit code."""
    kind = _kind_of_pixels(given)
    if kind in (Depth, Normals):
        options.refuse(ctx, used=("pixel_values", "decode"), what=f"values of pixels ({kind.name})")
        return _check_values(given, kind)
    if kind is LabelMaps:
        used = (*_OF_MAPS, "near_copies") if given.near_copies == "none" else _OF_MAPS
        options.refuse(ctx, used=used, what="label maps")
        return _check_maps(given)
    if given.boxes:
        columns = {"image_column", "label_column"}
        options.refuse(
            ctx,
            used={field.name for field in dataclasses.fields(given)} - columns,
            what="--boxes: objects have no columns",
        )
    try:
        checked = _check(ctx, given)
    except DataError as error:
        if not given.as_json:
            raise
        echo(failed(given.data, str(error)))
        return 1
    if given.label_errors is not None:
        checked = checked.with_near([_write_label_errors(given.label_errors, given, checked)], ())
    write_files(checked, csv=given.csv, sheet=given.sheet, html=given.html, pairs=given.pairs)
    if given.as_json:
        echo(as_json(checked))
    else:
        show(checked, pairs=given.pairs)
        for file in filter(None, (given.csv, given.sheet, given.html, given.pairs, given.label_errors)):
            echo(f"written: {file}")
    return exit_code(checked.findings)


def _kind_of_pixels(given: CheckFlags) -> type[Target] | None:
    """Return the targets of pixels to check: asked for, or the only ones that fit the layout."""
    if given.pixel_values:
        return Depth if given.pixel_values == Depth.name else Normals
    if given.label_maps:
        return LabelMaps
    columns = given.label_column or given.image_column
    if given.boxes or columns or given.store:
        return None
    kind = kind_alone(given.data)
    near = given.near_copies not in (None, "none")
    # Flags that a check of label maps does not have ask for the images of such a layout.
    of_images = given.label_maps is False or given.test_data or given.pairs or near
    return None if kind is LabelMaps and of_images else kind


def _check_values(given: CheckFlags, kind: type[Target]) -> int:
    """Check depth or normals, print the report and return the exit code."""
    found = check_values(open_as(given.data, kind), "depth" if kind is Depth else "normals", given.decode)
    for line in found.lines:
        echo(line)
    show_findings(found.findings)
    return exit_code(found.findings)


def _check_maps(given: CheckFlags) -> int:
    """Check label maps, print the report and return the exit code."""
    reading, workers = _reading(given)
    try:
        parts = open_as(given.data, LabelMaps)
        copies = given.look_for_copies(sum(map(len, parts.values())))
        found = check_maps(given.data, parts, copies=copies, read=given.decode, workers=workers, reading=reading)
    except DataError as error:
        if not given.as_json:
            raise
        echo(failed(given.data, str(error)))
        return 1
    write_map_files(found, csv=given.csv, sheet=given.sheet, html=given.html)
    if given.as_json:
        echo(maps_as_json(found))
    else:
        show_maps(found)
    return exit_code(found.findings)


def _reading(given: CheckFlags) -> tuple[Reading, int]:
    """Return the decoders with their limit, and the number of worker processes."""
    names = given.decoder
    resolve(names)
    workers = default_workers() if given.workers is None else given.workers
    return Reading(names, given.max_pixels or MAX_PIXELS), workers


def _check(ctx: click.Context, given: CheckFlags) -> CheckedParts:
    """Check images or boxes."""
    reading, workers = _reading(given)
    opened = _open(given)
    images = len(opened.data.train) + len(opened.data.test)
    search = given.search(images)
    used = {str(parameter.name) for parameter in ctx.command.params}
    # What near copies are found by depends on the number of images, known only now.
    if search != "features" and given.label_errors is None:
        options.refuse(ctx, used=used - {"store"}, what=f"--near-copies {search}")
    if search == "none":
        options.refuse(ctx, used=used - {"near_threshold"}, what="--near-copies none")
    if not opened.data.seeded:
        options.refuse(ctx, used=used - {"seed", "test_fraction"}, what=f"data with a test split: {opened.data.how}")
    copies = given.look_for_copies(images)
    found = check_parts(opened, copies=copies, decode=given.decode, workers=workers, reading=reading)
    return found.with_near(*_near(search, given, opened.data, workers=workers, reading=reading))


def _open(given: CheckFlags) -> OpenedParts:
    if given.boxes:
        return open_with_boxes(given.data, given.test_data, seed=given.seed, test_fraction=given.test_fraction)
    parts = train_test(
        given.data,
        given.test_data,
        seed=given.seed,
        test_fraction=given.test_fraction,
        image_column=given.image_column,
        label_column=given.label_column,
        decoder=given.decoder,
    )
    return OpenedParts(given.data, parts)


def _near(
    search: str, given: CheckFlags, data: TrainTest, *, workers: int, reading: Reading
) -> tuple[list[Finding], tuple[Pair, ...]]:
    """Return findings about nearly equal images, and the pairs of images of test and train."""
    threshold = THRESHOLD if given.near_threshold is None else given.near_threshold
    if search == "none" or not len(data.train) or not len(data.test):
        n = len(data.train) + len(data.test)
        message = f"near duplicates were not searched: {n:,} images would be decoded (--near-copies pixels)"
        # Said where the number of images decided, not where the user chose so.
        unasked = search == "none" and given.near_copies is None
        return [Finding("note", message)] if unasked else [], ()
    if search == "pixels":
        train, test = (small_pictures(part, workers=workers, reading=reading) for part in (data.train, data.test))
        return near_copies(data.train, data.test, (train, test), threshold=threshold, by="16 x 16 pixels")
    stored = _stored(given, data, "compare pixels: --near-copies pixels")
    vectors = (stored.train, stored.test)
    return near_copies(data.train, data.test, vectors, threshold=threshold, by=stored.made_by)


def _stored(given: CheckFlags, data: TrainTest, otherwise: str) -> StoredPair:
    """Return the newest stored features of all images of the data."""
    root = options.store_folder(given.store)
    stored = find_stored(root, data)
    if stored is None:
        raise UsageError(
            f"{root} has no features of all images of {data.train.name} and {data.test.name}",
            f"Make them with sslbench extract or eval on the same data, or {otherwise}.",
        )
    return stored


def _write_label_errors(file: Path, given: CheckFlags, checked: CheckedParts) -> Finding:
    """Write the images whose label is probably wrong, and a sheet of the first; return what was found."""
    data = checked.opened.data
    stored = _stored(given, data, "leave --label-errors out")
    errors = label_errors(data.train, data.test, stored, seed=given.seed)
    paths = {name: part.images.path for name, part in checked.parts.items()}
    lines = [[*error[:1], error.id, paths[error.part](error.row), *error[3:]] for error in errors]
    names = ("part", "id", "path", "label", "suggested", "p(label)", "p(suggested)")
    _write_text(csv_text([names, *lines]), file)
    shown: dict[str, list[sheets.Thumbnail]] = {}
    for error in errors[:_SUSPECTED]:
        [row] = sheets.thumbnails(checked.parts[error.part], {"": [error.row]}, reading=checked.reading).values()
        shown.setdefault(f"{error.label}, or {error.suggested}", []).extend(row)
    if shown:
        sheets.class_sheet(shown, {}, file.with_suffix(".png"))
    of = f"of {len(data.train) + len(data.test):,} labels are probably wrong, by {stored.made_by}"
    first = "; ".join(f"{error.id}: {error.label}, or {error.suggested}" for error in errors[:_NAMED])
    return Finding("note", f"{len(errors):,} {of}{': ' * bool(errors)}{first}")


_SUSPECTED, _NAMED = 60, 3  # suspected labels that are drawn, and named

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
_ALL, _END = 12, 5  # up to 12 classes are listed; beyond that, the 5 largest and the 5 smallest
_CLASSES, _EACH = 60, 8  # classes on the sheet, examples of each


def show(checked: CheckedParts, *, pairs: Path | None) -> None:
    """Print the splits, the counts and the findings; without a file of `pairs`, the flag that writes it."""
    for line in _about(checked):
        echo(line)
    _show_counts(checked)
    hint = "--pairs FILE.csv lists all suspected pairs of test and train: take one of each out before a run"
    show_findings(checked.findings, hint if pairs is None and checked.overlaps() else "")


def show_findings(findings: Sequence[Finding], hint: str = "") -> None:
    """Print the findings, one per line, a hint, and last their number; see `exit_code`."""
    for finding in findings:
        echo_text(finding.message, before=click.style(f"{finding.level}: ", fg=_COLOURS[finding.level]))
    if hint:
        echo_text(hint)
    numbers = Counter(finding.level for finding in findings)
    counts = [f"{n} {level}{'s' if n > 1 else ''}" for level in ("error", "warning") if (n := numbers[level])]
    leak = "; test images lie in train" if any(finding.leak for finding in findings) else ""
    echo(f"found: {' and '.join(counts)}{leak}" if counts else "no errors found")


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if an evaluation would stop or test samples lie in train, else 0."""
    return 1 if any(finding.level == "error" or finding.leak for finding in findings) else 0


def _about(checked: CheckedParts) -> list[str]:
    lines = []
    for name, part in checked.parts.items():
        kind = "no labels" if not part.target.labelled else f"{part.target.name} label"
        if checked.opened.objects is not None:
            kind = f"{sum(checked.counts[name].values()):,} boxes"
        noun = noun_of(part)
        lines.append(f"{part.name}: {len(part):,} {noun}s, {len(part.target.classes)} classes ({kind})")
    total = sum(len(part) for part in checked.parts.values())
    lines.append(f"split: {checked.opened.data.how}")
    bad = f", {checked.tried - checked.decoded:,} cannot be used" if checked.decoded < checked.tried else ""
    all_ = " (--decode all)" if checked.tried < total else ""
    lines.append(f"decoded: {checked.decoded:,} of {total:,} {noun}s{bad}{all_}")
    return lines


def _show_counts(checked: CheckedParts) -> None:
    names = _names(checked)
    if not names:
        return
    train, test = (checked.counts[part] for part in ("train", "test"))
    # The largest and the smallest classes are those that something may be wrong with.
    ordered = sorted(names, key=lambda name: (-train.get(name, 0), -test.get(name, 0)))
    listed: list[str | None] = list(ordered)
    if len(ordered) > _ALL and not is_verbose():
        listed = [*ordered[:_END], None, *ordered[-_END:]]
    width = min(max(len(name) for name in ordered), 40)
    echo(f"{'class':{width}}  {'train':>9}  {'test':>9}")
    for name in listed:
        if name is None:
            echo(f"{f'... {len(ordered) - 2 * _END:,} more (-v lists all)':{width}}")
        else:
            echo(f"{name[:width]:{width}}  {train.get(name, 0):>9,}  {test.get(name, 0):>9,}")


def _names(checked: CheckedParts) -> list[str]:
    return list(dict.fromkeys(name for column in checked.counts.values() for name in column))


def as_json(checked: CheckedParts) -> str:
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
    checked: CheckedParts, *, csv: Path | None, sheet: Path | None, html: Path | None, pairs: Path | None = None
) -> None:
    """Write the given files; each appears complete or not at all."""
    if csv is not None:
        lines = [[name, *(column.get(name, 0) for column in checked.counts.values())] for name in _names(checked)]
        _write_text(csv_text([["class", *checked.counts], *lines]), csv)
    if pairs is not None:
        _write_text(as_csv(checked.overlaps()), pairs)
    if sheet is None and html is None:
        return

    pictures = {}
    for key, part in checked.parts.items():
        examples = sheets.chosen_by_class(part, classes=_CLASSES, each=_EACH)
        boxes, texts = checked.boxes(key), checked.texts(key)
        pictures[key] = sheets.thumbnails(part, examples, reading=checked.reading, boxes=boxes, texts=texts)
    unit = "boxes" if checked.opened.objects is not None else f"{noun_of(checked.opened.data.test)}s"
    if sheet is not None:
        rows = {f"{name} ({key})".strip(): row for key, groups in pictures.items() for name, row in groups.items()}
        counts = {f"{name} ({key})": f"{n:,} {unit}" for key, of in checked.counts.items() for name, n in of.items()}
        sheets.class_sheet(rows, counts, sheet)
        echo(f"wrote {sheet}", err=True)
    if html is not None:
        sheets.write_page(
            html,
            title=checked.opened.spec,
            about=_about(checked),
            findings=checked.findings,
            counts=checked.counts,
            pictures={checked.parts[key].name: groups for key, groups in pictures.items()},
            unit=unit,
        )
        echo(f"wrote {html}", err=True)


def _write_text(text: str, path: Path) -> None:

    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    echo(f"wrote {path}", err=True)


_ALL_CLASSES, _END_CLASSES = 24, 8  # up to 24 classes are listed; beyond that, the 8 largest and the 8 smallest
_MAP_CLASSES, _MAP_EXAMPLES = 40, 4  # classes on the sheet, examples of each


def show_maps(checked: CheckedMaps) -> None:
    """Print the splits, the share of every class and the findings."""
    for line in _about_maps(checked):
        echo(line)
    _show_classes(checked)
    show_findings(checked.findings)


def _about_maps(checked: CheckedMaps) -> list[str]:
    lines = []
    for split, part in checked.parts.items():
        counts = checked.counts[split]
        ignored = counts.ignored / max(counts.total, 1)
        shares = [f"{ignored:.1%} of the pixels ignored"] if counts.ignored else []
        shares += [f"{counts.instances:,} instances"] if counts.instances is not None else []
        extent = "" if counts.read == len(part) else f"in {counts.read:,} of the maps "
        line = f"{part.name}: {len(part):,} images with label maps, {len(part.classes)} classes"
        lines.append(line + (f"; {extent}{', '.join(shares)}" if shares else ""))
    read, total = sum(counts.read for counts in checked.counts.values()), sum(map(len, checked.parts.values()))
    lines.append(f"read: {read:,} of {total:,} maps and their images" + (" (--decode all)" * (read < total)))
    return lines


def _show_classes(checked: CheckedMaps) -> None:
    rows = _rows(checked)
    first = next(iter(checked.parts))
    order = sorted(rows, key=lambda name: -rows[name].get(first, (0, 0, 0.0))[0])
    listed: list[str | None] = list(order)
    if len(order) > _ALL_CLASSES:
        listed = [*order[:_END_CLASSES], None, *order[-_END_CLASSES:]]
    width = min(max([len(name) for name in order] + [5]), 40)
    heads = ["pixels" if split == "all" else split for split in checked.parts]
    echo(f"{'class':{width}}" + "".join(f"  {head:>8}  {'images':>7}" for head in heads))
    for name in listed:
        if name is None:
            echo(f"... {len(order) - 2 * _END_CLASSES:,} more")
            continue
        cells = [rows[name].get(split, (0, 0, 0.0)) for split in checked.parts]
        echo(f"{name[:width]:{width}}" + "".join(f"  {share:>8.2%}  {images:>7,}" for _, images, share in cells))


def _rows(checked: CheckedMaps) -> dict[str, dict[str, tuple[int, int, float]]]:
    """Return class -> split -> (pixels, images, share of the labelled pixels)."""
    rows: dict[str, dict[str, tuple[int, int, float]]] = {}
    for split, part in checked.parts.items():
        counts = checked.counts[split]
        whole = max(int(counts.pixels.sum()), 1)
        for name, pixels, images in zip(part.classes, counts.pixels.tolist(), counts.images.tolist(), strict=True):
            rows.setdefault(name, {})[split] = (pixels, images, pixels / whole)
    return rows


def maps_as_json(checked: CheckedMaps) -> str:
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


def write_map_files(checked: CheckedMaps, *, csv: Path | None, sheet: Path | None, html: Path | None) -> None:
    """Write the given files; each appears complete or not at all."""
    if csv is not None:
        _write_maps_csv(checked, csv)
    if sheet is None and html is None:
        return

    pictures = {
        split: map_checks.overlays(checked, split, classes=_MAP_CLASSES, each=_MAP_EXAMPLES) for split in checked.parts
    }
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
        sheets.write_page(
            html,
            title=checked.spec,
            about=_about_maps(checked),
            findings=checked.findings,
            counts={s: {name: of[s][1] for name, of in rows.items() if s in of} for s in checked.parts},
            pictures={checked.parts[split].name: groups for split, groups in pictures.items()},
        )
        echo(f"wrote {html}", err=True)


def _write_maps_csv(checked: CheckedMaps, path: Path) -> None:

    head = ["class", *(f"{split}_{what}" for split in checked.parts for what in ("pixels", "images"))]
    rows = [
        [name, *(n for split in checked.parts for n in of.get(split, (0, 0, 0.0))[:2])]
        for name, of in _rows(checked).items()
    ]
    _write_text(csv_text([head, *rows]), path)
