"""How `sslbench inspect` prints a weights file: a page for a person, or JSON."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sslbench.backbones.describe import Description

_SHOWN = 12


def as_json(path: Path, known: "Description") -> str:
    """Everything that is known, as JSON."""
    from sslbench.results import plain

    return json.dumps(plain({"path": str(path), **dataclasses.asdict(known)}), indent=1, allow_nan=False)


def page(path: Path, known: "Description") -> str:
    """Everything that is known, in lines of a label and a value."""
    rows = [*_file_rows(known), *_format_rows(known), *_backbone_rows(known)]
    if known.problem:
        message, *remedies = known.problem.splitlines()
        rows += [("problem", message), *(("", remedy) for remedy in remedies)]
    text = [str(path), *(f"  {label:<13}{value}" for label, value in rows)]
    if not known.format:
        text += _keys(known)
    return "\n".join(text)


def _file_rows(known: "Description") -> list[tuple[str, str]]:
    rows = [("file", f"{known.container}, {_size(known.size)}, sha256 {known.sha256}")]
    if known.beside:
        shown = [f"{key}: {_short(value)}" for key, value in list(known.beside.items())[:6]]
        rows.append(("beside", ", ".join(shown) + (", ..." if len(known.beside) > 6 else "")))
    if known.stubbed:
        rows.append(("not loaded", "objects of " + ", ".join(known.stubbed)))
    if known.suspicious:
        rows.append(("suspicious", "names functions that weights do not need: " + ", ".join(known.suspicious)))
    return rows


def _format_rows(known: "Description") -> list[tuple[str, str]]:
    place = f"at '{known.where}'" if known.where else "at the top of the file"
    tensors = f"{len(known.tensors)} {place}"
    if not known.format:
        return [("format", "not recognised"), ("tensors", tensors)]
    variant = f":{known.variant}" if known.variant else ""
    rows = [("format", f"{known.format}{variant}: {known.title}"), ("because", known.why), ("tensors", tensors)]
    if known.prefix or known.other_networks:
        others = ", ".join(f"--format {known.format}:{name}" for name in known.other_networks)
        taken = known.network + (", " if known.network and known.prefix else "")
        taken += f"keys start with '{known.prefix}'" if known.prefix else ""
        rows.append(("sub-network", taken + (f" (the file also has: {others})" if others else "")))
    if known.heads:
        shown = [f"{name} {_shape(shape)}" for name, shape in list(known.heads.items())[:4]]
        rows.append(("heads", ", ".join(shown) + (f", ... {len(known.heads)} tensors" if len(known.heads) > 4 else "")))
    if known.ignored:
        rows.append(("ignored", ", ".join(known.ignored)))
    return rows


def _backbone_rows(known: "Description") -> list[tuple[str, str]]:
    if not known.format:
        return []
    rows = []
    described = [known.backbone] * bool(known.backbone) + _architecture(known)
    rows += [("" if number else "backbone", line) for number, line in enumerate(described)]
    dtypes = ", ".join(f"{count} {dtype}" for dtype, count in known.dtypes.items())
    rows.append(("parameters", f"{known.parameters:,} ({dtypes} tensors)"))
    if known.preprocessing is not None:
        rows += [("" if number else "input", line) for number, line in enumerate(_input(known))]
        rows += [("strides", known.strides)] if known.strides else []
        rows.append(("loads", known.report))
        rows.append(("layers", f"{', '.join(known.layers)} (default {known.layers[0]})"))
        rows.append(("tensor hash", known.tensors_sha256))
    return rows


def _architecture(known: "Description") -> list[str]:
    numbers = dict(known.architecture)
    if not numbers:
        return []
    lines = [str(numbers.pop("kind"))]
    if "blocks" in numbers:
        blocks = "-".join(map(str, numbers["blocks"]))
        groups = f", {numbers['groups']} groups" if numbers["groups"] > 1 else ""
        lines[0] += f", {numbers['depth']} layers deep ({blocks}), width {numbers['width']}{groups}"
        lines[0] += ", CIFAR's stem" if numbers["stem"] == "cifar" else ""
        lines[0] += f", {_channels(numbers['input_channels'])}"
    else:
        lines[0] += f", {_channels(numbers['channels'])}"
        lines += [f"note: {note}" for note in numbers.get("notes", ())]
    return lines


def _channels(count: int) -> str:
    return f"{count} input channel{'s' if count > 1 else ''}"


def _input(known: "Description") -> list[str]:
    used = known.preprocessing
    if used is None:
        return []
    spaces = {
        "RGB": "RGB",
        "BGR": "BGR in the file, turned to RGB on loading",
        "lightness": "lightness (L of CIE Lab / 100) of RGB",
    }
    order = spaces.get(known.space, f"{used.channels} channel{'s' if used.channels > 1 else ''}")
    mean, std = ("(" + ", ".join(f"{value:.4g}" for value in values) + ")" for values in (used.mean, used.std))
    resize = (
        "images keep their size" if used.resize is None else f"{used.interpolation} resize to {_pixels(used.resize)}"
    )
    crop = f", centre crop {_pixels(used.crop)}" if used.crop else ""
    return [f"{order}, 0 to 1, then mean {mean}, std {std}", f"{resize}{crop} ({used.origin})"]


def _pixels(size: int | tuple[int, int]) -> str:
    return f"{size} (shorter side)" if isinstance(size, int) else f"{size[0]}x{size[1]}"


def _keys(known: "Description") -> list[str]:
    width = max((len(name) for name in list(known.tensors)[:_SHOWN]), default=0)
    lines = [f"    {name:<{width}}  {_shape(shape)}" for name, shape in list(known.tensors.items())[:_SHOWN]]
    more = len(known.tensors) - _SHOWN
    return lines + ([f"    ... and {more} more (--json lists all)"] if more > 0 else [])


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count:,} bytes"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else text[:37] + "..."
