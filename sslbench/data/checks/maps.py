"""Checks of images with label maps."""

import colorsys
import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from sslbench.data.checks.duplicates import Finding, by_level, exact_copies
from sslbench.data.checks.parts import picture_findings, spread
from sslbench.data.checks.sheets import Thumbnail, shrunk
from sslbench.data.decode.handlers import Reading, make_decoder
from sslbench.data.decode.picture import UnreadableImage, Wanted
from sslbench.data.loading import loader
from sslbench.data.maps.types import CodedMaps, coded, distinct, size_and_turn, size_difference
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.data.workers import Computed, run
from sslbench.names import did_you_mean
from sslbench.targets.classes import Classes
from sslbench.targets.label_maps import UNKNOWN, Grid
from sslbench.targets.none import Unlabelled

_CHUNK = 8
_STEPS, _EDGES = 0.2, 50


@dataclasses.dataclass(frozen=True, eq=False)
class MapFacts:
    """Facts of one map.

    Attributes:
        index: in the source.
        path: name of the map in messages.
        unreadable: why it cannot be read; then the rest is empty.
        pixels: (C,) of each class.
        ignored: pixels that do not count.
        unknown: value that is no class -> pixels.
        smooth: between its classes lie values in between, as when a picture is resized.
        size: difference to the size of its image.
        broken: see `RawMap`.
        contradictions: see `RawMap`.
        crowds: see `RawMap`.
        instances: their number; None if nothing tells them apart.
        turned: the image is turned by EXIF.
    """

    index: int
    path: str
    unreadable: str | None = None
    pixels: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    ignored: int = 0
    unknown: dict[int, int] = dataclasses.field(default_factory=dict)
    smooth: bool = False
    size: str | None = None
    broken: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    crowds: int = 0
    instances: int | None = None
    turned: bool = False


def _facts(source: CodedMaps, max_pixels: int, chunk: npt.NDArray[np.int64]) -> list[MapFacts]:
    facts = []
    for index in chunk.tolist():
        path = source.maps.path(index)
        try:
            raw = source.maps.read(index, max_pixels)
        except UnreadableImage as error:
            facts.append(MapFacts(index, path, error.reason if error.path == path else str(error)))
            continue
        semantic = source.coding.positions(raw.values)
        # bincount takes no negative numbers: -2 (unknown) and -1 (ignored) become the first two.
        counts = np.bincount(semantic.reshape(-1) - UNKNOWN, minlength=len(source.classes) + 2)
        values, pixels = np.unique(raw.values[semantic == UNKNOWN], return_counts=True)
        size, turned = size_and_turn(source.images, index)
        fact = MapFacts(
            index=index,
            path=path,
            pixels=counts[2:].astype(np.int64),
            ignored=int(counts[1]),
            unknown=dict(zip(values.tolist(), pixels.tolist(), strict=True)),
            smooth=not source.coding.colours and is_smooth(raw.values),
            size=size_difference(raw.values.shape, size),
            broken=raw.broken,
            contradictions=raw.contradictions,
            crowds=raw.crowds,
            instances=None if raw.instances is None else int((distinct(raw.instances)[0] > 0).sum()),
            turned=turned,
        )
        facts.append(fact)
    return facts


def is_smooth(values: Grid) -> bool:
    """Return whether a map was smoothed: at borders of two classes there are values between theirs.

    Counted are pixels at a border, and among them those whose value lies strictly between the two neighbours' on either
    side, along rows and columns. Classes have no order, so in a map of classes that is rare.
    """
    steps = edges = 0
    rows, columns = (values[:-2], values[1:-1], values[2:]), (values[:, :-2], values[:, 1:-1], values[:, 2:])
    for before, at, after in (rows, columns):
        edges += int(((before != at) | (at != after)).sum())
        steps += int((((before < at) & (at < after)) | ((before > at) & (at > after))).sum())
    return edges >= _EDGES and steps > _STEPS * edges


MANY_IGNORED = 0.5
"""Share of ignored pixels that calls for a warning."""


@dataclasses.dataclass(frozen=True, eq=False)
class PartCounts:
    """Counts over the label maps of one split.

    Attributes:
        read: number of maps read.
        pixels: (C,) pixels of each class.
        images: (C,) images with at least one pixel of each class.
        ignored: ignored pixels.
        unknown: pixels with values of no class.
        instances: number of instances; None for maps without instances.
    """

    read: int
    pixels: npt.NDArray[np.int64]
    images: npt.NDArray[np.int64]
    ignored: int
    unknown: int
    instances: int | None

    @property
    def total(self) -> int:
        """Number of all pixels."""
        return int(self.pixels.sum()) + self.ignored + self.unknown


@dataclasses.dataclass(frozen=True, eq=False)
class CheckedMaps:
    """Result of a check of label maps.

    Attributes:
        spec: data location, as the user gave it.
        parts: split -> source.
        counts: split -> counts.
        present: split -> position of an image -> numbers of the classes in its map, for the maps that were read.
        findings: errors first.
        unreadable: path and reason of unreadable images and maps.
        copies: duplicates were looked for.
        reading: the decoder and its limit.
    """

    spec: str
    parts: dict[str, CodedMaps]
    counts: dict[str, PartCounts]
    present: dict[str, dict[int, list[int]]]
    findings: tuple[Finding, ...]
    unreadable: tuple[tuple[str, str], ...]
    copies: bool
    reading: Reading


def check_maps(
    spec: str, sources: Mapping[str, Source], *, copies: bool, read: int | None, workers: int, reading: Reading
) -> CheckedMaps:
    """Check all splits of a data location.

    `copies`: look for duplicates, for which images and maps not hashed yet are read; `read`: number of evenly spaced
    images and maps to read per split; None: all.
    """
    findings: list[Finding] = []
    unreadable: list[tuple[str, str]] = []
    counts: dict[str, PartCounts] = {}
    present: dict[str, dict[int, list[int]]] = {}
    parts = {split: coded(source) for split, source in sources.items()}
    for split, part in parts.items():
        rows = spread(len(part), read)
        chunks = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
        dataset = Computed(functools.partial(_facts, part, reading.max_pixels), chunks)
        facts = [fact for chunk in run(dataset, workers, start_method=reading.start_method) for fact in chunk]
        decoded = loader.survey(plain(part), rows, workers, reading=reading)
        lost = [(path, reason) for _, path, reason in decoded.unreadable]
        findings += picture_findings(plain(part), decoded)
        unreadable += [*lost, *((fact.path, fact.unreadable) for fact in facts if fact.unreadable)]
        good = [fact for fact in facts if fact.unreadable is None]
        counts[split] = _counted(part, good)
        present[split] = {fact.index: np.flatnonzero(fact.pixels).tolist() for fact in good}
        for names, thing, lack in ((part.without_map, "image", "a map"), (part.without_image, "map", "an image")):
            if names:
                message = f"{part.name}: {counted(len(names), thing)} without {lack} left out: {some(names, 5)}"
                findings.append(Finding("warning", message))
        findings += [*_damage(part, good), *_about_pixels(part, good, counts[split])]
        findings += [Finding("note", note) for note in sources[split].notes if note not in part.left_out()]
    findings += [Finding("error", f"{path}: {reason}") for path, reason in unreadable]
    findings += [*_across(parts, counts), *(_copies(parts) if copies else ())]
    if not copies:
        findings.append(Finding("note", "duplicate images were not searched (--copies)"))
    return CheckedMaps(spec, parts, counts, present, tuple(by_level(findings)), tuple(unreadable), copies, reading)


def plain(part: CodedMaps) -> Source:
    """Return the images without their maps."""
    return Source(part.name, part.ids, Unlabelled(len(part)), part.images)


def _counted(part: CodedMaps, facts: Sequence[MapFacts]) -> PartCounts:
    table = np.array([fact.pixels for fact in facts], dtype=np.int64).reshape(len(facts), len(part.classes))
    objects = [fact.instances for fact in facts if fact.instances is not None]
    return PartCounts(
        read=len(facts),
        pixels=table.sum(axis=0),
        images=(table > 0).sum(axis=0),
        ignored=sum(fact.ignored for fact in facts),
        unknown=sum(sum(fact.unknown.values()) for fact in facts),
        instances=sum(objects) if objects else None,
    )


def _damage(part: CodedMaps, facts: Sequence[MapFacts]) -> list[Finding]:
    found = [
        *_listed(part, facts, "error", "of another size than the image", lambda fact: fact.size),
        *_listed(part, facts, "error", "that cannot be used", lambda fact: "; ".join(fact.broken)),
        *_listed(part, facts, "warning", "that differ from segments_info", lambda fact: "; ".join(fact.contradictions)),
    ]
    found += _unknown(part, facts)
    smooth = [fact.path for fact in facts if fact.smooth]
    if smooth:
        message = (
            f"{part.name}: {counted(len(smooth), 'map')} with mixed values along region borders, "
            f"as smoothing or JPEG produces: {some(smooth)}; resize maps by nearest neighbour and save them as PNG"
        )
        # Without names every value becomes a class, those in between, too.
        found.append(Finding("warning" if part.coding.named else "error", message))
    turned = [part.images.path(fact.index) for fact in facts if fact.turned]
    if turned:
        message = (
            f"{part.name}: {counted(len(turned), 'image')} turned by EXIF, whose maps should fit the upright image"
        )
        found.append(Finding("note", f"{message}: {some(turned)}"))
    return found


def _listed(
    part: CodedMaps,
    facts: Sequence[MapFacts],
    level: Literal["error", "warning"],
    what: str,
    of: Callable[[MapFacts], str | None],
) -> list[Finding]:
    said = [f"{fact.path}: {text}" for fact in facts if (text := of(fact))]
    if not said:
        return []
    more = f" (and {len(said) - 3:,} more)" if len(said) > 3 else ""
    message = f"{part.name}: {counted(len(said), 'map')} {what}{more}: " + " | ".join(said[:3])
    return [Finding(level, message)]


def _unknown(part: CodedMaps, facts: Sequence[MapFacts]) -> list[Finding]:
    """Return an error that lists values of no class with their counts and maps; empty without any."""
    pixels: Counter[int] = Counter()
    where: dict[int, list[str]] = {}
    for fact in facts:
        pixels.update(fact.unknown)
        for value in fact.unknown:
            where.setdefault(value, []).append(fact.path)
    if not pixels:
        return []
    lines = []
    for value, n in pixels.most_common(5):
        files = where[value]
        lines.append(
            f"{part.coding.text(value)} ({counted(n, 'pixel')} in {counted(len(files), 'map')}: {some(files, 1)})"
        )
    known = some([part.coding.text(value) for value in sorted(part.coding.values)], 6)
    message = (
        f"{part.name}: {counted(len(pixels), 'value')} in the maps without a class: "
        f"{some(lines, 5, total=len(pixels))}; the classes have {known} (?ignore=VALUE ignores one)"
    )
    return [Finding("error", message)]


def _about_pixels(part: CodedMaps, facts: Sequence[MapFacts], counts: PartCounts) -> list[Finding]:
    found = []
    share = counts.ignored / max(counts.total, 1)
    if counts.ignored:
        message = f"{part.name}: {share:.1%} of the pixels are ignored"
        found.append(Finding("warning" if share >= MANY_IGNORED else "note", message))
    blank = [fact.path for fact in facts if not fact.pixels.any() and not fact.unknown]
    if blank:
        found.append(Finding("warning", f"{part.name}: {counted(len(blank), 'map')} without any class: {some(blank)}"))
    present = np.flatnonzero(counts.pixels)
    if len(present) == 1:
        message = f"{part.name}: every pixel that is not ignored is of the class '{part.classes[present[0]]}'"
        found.append(Finding("error" if counts.read == len(part) else "warning", message))
    if counts.read == len(part):
        empty = [name for name, n in zip(part.classes, counts.pixels.tolist(), strict=True) if not n]
        if empty:
            message = f"{part.name}: {counted(len(empty), 'class')} without a pixel: {some(empty, 5)}"
            found.append(Finding("note", message))
    crowds = sum(fact.crowds for fact in facts)
    if crowds:
        message = f"{part.name}: {counted(crowds, 'crowd')} (iscrowd), counted for the class but not as instances"
        found.append(Finding("note", message))
    return found


def _across(parts: Mapping[str, CodedMaps], counts: Mapping[str, PartCounts]) -> list[Finding]:
    """Return findings about classes that differ between splits, or that train has no pixels of."""
    if "train" not in parts:
        return []
    train, found = parts["train"], []
    seen = {name for name, n in zip(train.classes, counts["train"].pixels.tolist(), strict=True) if n}
    for split, part in parts.items():
        if split == "train":
            continue
        unknown = [name for name in part.classes if name not in train.classes]
        if unknown or len(part.classes) != len(train.classes):
            lacking = [name for name in train.classes if name not in part.classes]
            hint = f" {did_you_mean(unknown[0], train.classes)}" if unknown else ""
            message = f"{part.name} and {train.name} have other classes: {some([*unknown, *lacking], 5)}.{hint}"
            found.append(Finding("error", message))
        elif counts["train"].read == len(train):
            here = [name for name, n in zip(part.classes, counts[split].pixels.tolist(), strict=True) if n]
            missing = [name for name in here if name not in seen]
            if missing:
                message = f"{part.name} has pixels of classes without one in {train.name}: {some(missing, 5)}"
                found.append(Finding("warning", f"{message}; they cannot be learnt"))
    return found


def _copies(parts: Mapping[str, CodedMaps]) -> list[Finding]:
    """Return findings about duplicate images in two splits or in one, with equal or different maps."""
    sources = []
    for part in parts.values():
        # A label for each distinct map.
        digests = np.ascontiguousarray(part.maps.digests()).view("V16").reshape(-1)
        _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
        names = tuple(part.maps.path(int(i)) for i in first)
        labels = Classes(names, inverse.reshape(-1).astype(np.int64))
        sources.append(Source(part.name, part.ids, labels, part.images))
    if len(sources) == 1:
        # Beside an empty part only copies within the other are found.
        return exact_copies(sources[0], sources[0].select([]))
    # `exact_copies` takes its first argument for train.
    order = sorted(sources, key=lambda source: not source.name.endswith("(train)"))
    return [finding for two in itertools.combinations(order, 2) for finding in exact_copies(*two)]


_OPACITY = 0.55
_SWATCH = 14
_SIDE = 128  # pixels of the longer side of a picture
_IGNORED, _UNKNOWN = (255, 255, 255), (0, 0, 0)
_GOLDEN = 0.618033988749895


def class_colours(n: int) -> npt.NDArray[np.uint8]:
    """Return n distinct, deterministic colours, uint8 (n, 3): hues by the golden ratio, in three brightnesses."""
    rows = [colorsys.hsv_to_rgb(i * _GOLDEN % 1, 0.9 - 0.2 * (i % 2), (0.95, 0.6, 0.8)[i % 3]) for i in range(n)]
    return np.round(255 * np.array(rows).reshape(n, 3)).astype(np.uint8)


def overlays(checked: CheckedMaps, split: str, *, classes: int, each: int) -> dict[str, list[Thumbnail]]:
    """Return for each class its colour, and images beside their overlaid maps.

    White pixels are ignored ones, black pixels have values of no class. Shown are `classes` classes, those with most
    pixels, and `each` images of each, of those whose maps were read.
    """
    part, present = checked.parts[split], checked.present[split]
    rng, colours = np.random.default_rng(0), class_colours(len(part.classes))
    order = np.argsort(-checked.counts[split].pixels, kind="stable").tolist()[:classes]
    made: dict[int, Thumbnail | None] = {}
    found: dict[str, list[Thumbnail]] = {}
    for c in sorted(order):
        rows = [index for index, there in present.items() if c in there]
        chosen = sorted(rng.permutation(np.array(rows, dtype=np.int64))[:each].tolist())
        for row in chosen:
            if row not in made:
                made[row] = _overlay(checked, part, row, colours)
        swatch = Image.new("RGB", (_SWATCH, _SIDE // 2), tuple(colours[c].tolist()))
        pictures = [thumbnail for row in chosen if (thumbnail := made[row]) is not None]
        found[part.classes[c]] = [Thumbnail(swatch, "", "its colour"), *pictures] if pictures else []
    return found


def _overlay(checked: CheckedMaps, part: CodedMaps, row: int, colours: npt.NDArray[np.uint8]) -> Thumbnail | None:
    reading = checked.reading
    decoder = make_decoder(reading.decoder, Wanted(max_pixels=reading.max_pixels), part.images)
    try:
        image = loader.read(part.images, row, decoder).image
        raw = part.maps.read(row, reading.max_pixels)
    except UnreadableImage:
        return None
    small, _ = shrunk(image, _SIDE)
    size = small.size
    places = part.coding.positions(raw.values)
    at_y, at_x = (
        # By the nearest pixel, as classes cannot be averaged.
        np.minimum((np.arange(n) + 0.5) * m / n, m - 1).astype(int)
        for n, m in zip(size[::-1], places.shape, strict=True)
    )
    places = places[at_y][:, at_x]
    table = np.array([_UNKNOWN, _IGNORED, *colours.tolist()], dtype=np.float32)
    drawn = (1 - _OPACITY) * np.asarray(small, dtype=np.float32) + _OPACITY * table[places - UNKNOWN]
    both = Image.new("RGB", (2 * size[0], size[1]))
    both.paste(small, (0, 0))
    both.paste(Image.fromarray(drawn.round().astype(np.uint8)), (size[0], 0))
    names = [part.classes[c] for c in np.unique(places[places >= 0]).tolist()]
    return Thumbnail(both, part.images.path(row), ", ".join(names))
