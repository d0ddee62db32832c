"""Provenance of a number, in words."""

from typing import Any

from sslbench.leaderboard.grouping import seeds_of
from sslbench.leaderboard.headings import code_text, precision_text, preprocessing_text
from sslbench.leaderboard.model import Cell, Row
from sslbench.leaderboard.writers.tables import number
from sslbench.results import Costs, DataPart, Hardware, MetricValue, Overlaps, Result

Lines = list[tuple[str, str]]


def how_made(row: Row, cell: Cell) -> list[Lines]:
    """Return (key, text) lines for each measurement behind a cell, one per seed, or the source of its number."""
    if cell.published is not None:
        found = cell.published
        return [[("published in", found.source), ("where", found.where), ("protocol", found.protocol)]]
    if not cell.records:
        return [[("floor", f"{row.label}: the records' own name")]]
    return [_record(record) for record in cell.records]


def _record(record: Result) -> Lines:
    weights, protocol, data = record.weights, record.protocol, record.data
    lines: Lines = [
        ("weights", f"{weights.name}, {weights.backbone}, format {weights.format}"),
        ("loaded", f"{weights.loaded} of {weights.total} tensors, sha256 {weights.sha256[:16]}"),
        ("layer", record.layer),
        ("code", code_text(weights.code) if weights.code else ""),
        ("preprocessing", f"{preprocessing_text(record.preprocessing)} ({precision_text(record)})"),
        ("protocol", f"{protocol.name} version {protocol.version}"),
        ("settings", _pairs(protocol.settings)),
    ]
    if record.benchmark is not None:
        changed = ", modified by the user" if record.benchmark.modified else ""
        lines.append(("benchmark", f"{record.benchmark.name} version {record.benchmark.version}{changed}"))
    lines += [
        ("train", _part(data.train)),
        ("test", _part(data.test)),
        ("split", data.how),
        *[(name, _metric(metric)) for name, metric in record.metrics.items()],
    ]
    if record.train is not None:
        lines.append((f"{record.headline} on train", f"{record.train:.2f}"))
    lines += [
        (f"by {column}", ", ".join(f"{group.name} {_metric(group.metric)}, n {group.metric.n}" for group in groups))
        for column, groups in record.groups.items()
    ]
    if record.overlaps is not None:
        lines.append(("overlaps of train and test", _overlaps(record.overlaps, record.headline)))
    if record.selected:
        lines.append(("selected", _pairs(record.selected)))
    floors = {name: values.get(record.headline) for name, values in record.floors.items()}
    lines.append(("floors", ", ".join(f"{name} {value:.2f}" for name, value in floors.items() if value is not None)))
    lines += [(f"no floor: {name}", reason) for name, reason in record.missing_floors.items()]
    lines += [("note", note) for note in record.notes]
    lines += [
        ("seed", ", ".join(map(str, seeds_of(record)))),
        ("command", record.command),
        ("created", record.created),
        ("versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
        ("hardware", "" if record.hardware is None else _hardware(record.hardware)),
        ("costs", "" if record.costs is None else _costs(record.costs)),
        ("timings", ", ".join(f"{name} {value:g}" for name, value in record.timings.items())),
        ("record", f"{record.file.name if record.file else ''} (id {record.id})"),
    ]
    return [(name, text) for name, text in lines if text]


def _hardware(hardware: Hardware) -> str:
    rounding = f", float32 by {hardware.float32}" if hardware.float32 else ""
    return f"{hardware.device}, {hardware.threads} threads{rounding}"


def _part(part: DataPart) -> str:
    used = f"{part.n_used:,}" if part.n_used == part.n else f"{part.n_used:,} of {part.n:,}"
    return f"{part.name}: {used} samples, {len(part.classes):,} classes, fingerprint {part.fingerprint[:16]}"


def _metric(metric: MetricValue) -> str:
    if metric.value is None:
        return "n/a"
    if metric.low is None or metric.high is None:
        return f"{metric.value:.2f}"
    return f"{metric.value:.2f} ({metric.low:.2f} .. {metric.high:.2f})"


def _overlaps(found: Overlaps, headline: str) -> str:
    text = f"{found.n:,} suspected by {found.by}"
    if found.n:
        text += f" ({found.exact:,} with the same content), listed in {found.pairs_file}"
    if found.without is not None:
        text += f"; {headline} without them {_metric(found.without)}, n {found.without.n}"
    return f"{text}; near duplicates were not searched: {found.problem}" if found.problem else text


def _costs(costs: Costs) -> str:
    parts = [] if costs.parameters is None else [f"{costs.parameters / 1e6:.1f} million parameters"]
    parts += [] if costs.gflops is None else [f"{costs.gflops:.2f} GFLOPs per image"]
    parts += [] if costs.images_per_second is None else [f"{costs.images_per_second:.0f} images/s"]
    for name, stage in costs.stages.items():
        memory = "" if stage.ram_mib is None else f", at most {stage.ram_mib:.0f} MiB"
        gpu = "" if stage.gpu_mib is None else f", {stage.gpu_mib:.0f} MiB of the GPU"
        parts.append(f"{name} {stage.seconds:.1f} s{memory}{gpu}")
    return "; ".join(parts)


def _pairs(values: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        return number(value) if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {text(value)}" for name, value in values.items())
