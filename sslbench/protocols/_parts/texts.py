"""Embeddings of texts in the space of image features: from a text tower, or from a file made elsewhere."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import safetensors
from safetensors.numpy import load_file

from sslbench.arrays import Matrix
from sslbench.backbones import named
from sslbench.config import result_settings, setting
from sslbench.data.regular import refuse_missing_file
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.features.external_files import read_features, read_table
from sslbench.metrics.spectrum import unit_length
from sslbench.names import did_you_mean
from sslbench.protocols.protocol import OnFeatures, ProtocolSettings

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer
    from sslbench.backbones.text_towers import TextTower
    from sslbench.data.source import Source

_NAMES = ("names", "texts", "captions", "name", "text", "caption")
_WRITE = "Write them by np.savez(FILE, features=x, names=texts), x (M, D) and one text per row."


@dataclasses.dataclass(frozen=True)
class TextSettings(ProtocolSettings):
    """Settings of protocols on images and texts."""

    text_features: str = setting(
        "",
        "file of embeddings (M, D) of the texts, made elsewhere: .npz with names, .safetensors with a tensor per text, "
        ".npy beside a .txt with a text per line",
        by_content=True,
    )
    text_tower: str = setting(
        "", "weights file or folder with the text tower; empty: that of the evaluated weights", by_content=True
    )

    def __post_init__(self) -> None:
        """Refuse two places of the embeddings."""
        super().__post_init__()
        if self.text_features and self.text_tower:
            raise UsageError(f"{self.protocol()}: text_features has no effect beside text_tower", "Give one of them.")


S = TypeVar("S", bound=TextSettings)


@dataclasses.dataclass(frozen=True)
class OnImagesAndTexts(OnFeatures[S]):
    """Protocol on the features of one layer and on texts."""

    def for_weights(self, settings: S, backbone: "Backbone", weights: str) -> S:
        """Return the settings with the text tower of the evaluated weights, unless the texts are from elsewhere."""
        if settings.text_features:
            return settings
        place = settings.text_tower or weights
        if not settings.text_tower and backbone.report is None:
            raise UsageError(
                f"{settings.protocol()}: '{weights}' has no text tower",
                "Give embeddings of the texts, text_features=FILE, or the weights of one, text_tower=FILE.",
            )
        quick = _tower(place).quick_gelu
        if not settings.text_tower and quick is not None and quick != ("quickgelu" in backbone.name):
            kinds = [f"{'Quick' if each else ''}GELU" for each in (quick, not quick)]
            raise UsageError(
                f"{place}: its text tower would have {kinds[0]}, and the backbone {backbone.name} has {kinds[1]}",
                "Put the model's open_clip_config.json beside the file, as open_clip_model.safetensors.",
            )
        return dataclasses.replace(settings, text_tower=place)

    def row_names(
        self, protocol: str, backbone: "Backbone", layers: "Sequence[Layer]", train: "Source", settings: S, *, seed: int
    ) -> tuple[str, ...]:
        """Return the layers; refuse those whose features are not in the space of the texts, nor projected into it."""
        from sslbench.backbones.layers import feature_widths

        source = open_texts(settings)
        for width in feature_widths(backbone, layers):
            _projection(source, width, source.width)
        return super().row_names(protocol, backbone, layers, train, settings, seed=seed)

    def lacking_floors(self, *, baseline: bool) -> dict[str, str]:
        """Return the pixels, which have no space in common with texts."""
        return {"pixels": "raw pixels have no space in common with texts"}


def check_texts(settings: TextSettings) -> None:
    """Refuse settings without embeddings of texts."""
    if not settings.text_features and not settings.text_tower:
        raise UsageError(
            f"{settings.protocol()} needs embeddings of texts",
            "Give text_features=FILE, or weights with a text tower: text_tower=FILE.",
        )
    open_texts(settings)


def recorded(settings: TextSettings) -> dict[str, Any]:
    """Return the settings for records, with a digest of the file of texts or of the tower."""
    given = settings.text_features or settings.text_tower
    return {**result_settings(settings), "texts": open_texts(settings).sha256 if given else ""}


def open_texts(settings: TextSettings) -> "TextFile | TextTower":
    """Return the embeddings or the tower that the settings name."""
    return _file(settings.text_features) if settings.text_features else _tower(settings.text_tower)


def _tower(place: str) -> "TextTower":
    from sslbench.backbones.text_towers import read_text_tower

    return read_text_tower(str(named.local(place).path if named.is_named(place) else place))


@dataclasses.dataclass(frozen=True)
class TextFile:
    """Embeddings made elsewhere; a text may have several rows, whose mean direction stands for it.

    Attributes:
        title: file and number of rows, for notes.
        sha256: digest of names and embeddings.
        x: (M, D), unit length.
        rows: text -> its rows.
    """

    title: str
    sha256: str
    x: Matrix
    rows: Mapping[str, Sequence[int]]
    projection: None = None

    @property
    def width(self) -> int:
        """Length of the embeddings."""
        return int(self.x.shape[1])

    def refuse_missing(self, texts: Iterable[str]) -> None:
        """Refuse texts that the file lacks."""
        every = dict.fromkeys(texts)
        if missing := [text for text in every if text not in self.rows]:
            raise DataError(
                f"{self.title} lacks {len(missing):,} of {counted(len(every), 'text')}: {some(missing)}",
                did_you_mean(missing[0], self.rows),
            )

    def encode(self, texts: Sequence[str], device: str) -> Matrix:
        """Return the embeddings (N, D) of texts."""
        self.refuse_missing(texts)
        owner = np.repeat(np.arange(len(texts)), [len(self.rows[text]) for text in texts])
        found = np.zeros((len(texts), self.x.shape[1]), np.float32)
        np.add.at(found, owner, self.x[[row for text in texts for row in self.rows[text]]])
        return found


@functools.lru_cache(maxsize=2)
def _read(place: str, stamp: tuple[int, int]) -> TextFile:
    """Return the embeddings of a file; `stamp`: size and time of change."""
    path = Path(place)
    if path.suffix.lower() == ".safetensors":
        x, names = _of_safetensors(path)
    else:
        x = np.asarray(read_features(path), np.float32)
        names = _names_beside(path, len(x)) if path.suffix.lower() == ".npy" else _names_inside(path, len(x))
    if len(names) != len(x):
        raise DataError(f"{path}: {len(x):,} embeddings and {len(names):,} names", _WRITE)
    if bad := [name for name, row in zip(names, x, strict=True) if not (np.isfinite(row).all() and row.any())]:
        raise DataError(
            f"{path}: embeddings of {counted(len(bad), 'text')} are zeros or not finite: {some(bad)}", _WRITE
        )
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    digest = hashlib.sha256("\0".join(names).encode(errors="surrogatepass"))
    digest.update(np.ascontiguousarray(x).tobytes())
    return TextFile(f"{path} ({len(x):,} embeddings)", digest.hexdigest()[:32], unit_length(x), rows)


def _file(place: str) -> TextFile:
    refuse_missing_file(Path(place))
    stat = Path(place).stat()
    return _read(place, (stat.st_size, stat.st_mtime_ns))


def _of_safetensors(path: Path) -> tuple[Matrix, list[str]]:
    """Return the rows of all tensors, (D,) or (T, D), each named like its tensor."""
    try:
        found = load_file(path)
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        raise UsageError(f"{path} cannot be read as safetensors: {error}", _WRITE) from error
    parts = {name: np.atleast_2d(tensor).astype(np.float32) for name, tensor in found.items()}
    if (
        not parts
        or {part.ndim for part in parts.values()} != {2}
        or len({part.shape[1] for part in parts.values()}) > 1
    ):
        raise UsageError(f"{path} should hold a tensor (D,) or (T, D) per text, all of one D", _WRITE)
    return np.concatenate(list(parts.values())), [name for name, part in parts.items() for _ in part]


def _names_beside(path: Path, n: int) -> list[str]:
    beside = path.with_suffix(".txt")
    if not beside.is_file():
        raise UsageError(f"{path} has no names of its {n:,} rows: there is no {beside.name} beside it", _WRITE)
    return beside.read_text(encoding="utf-8-sig", errors="replace").splitlines()


def _names_inside(path: Path, n: int) -> list[str]:
    columns = read_table(path, n)
    key = next((name for known in _NAMES for name in columns if name.lower() == known), None)
    if key is None:
        held = ", ".join(columns) or "no array of texts"
        raise UsageError(f"{path} has no 'names' of its {n:,} rows beside {held}", _WRITE)
    return [str(name) for name in columns[key]]


def text_vectors(source: "TextFile | TextTower", groups: Sequence[Sequence[str]], device: str) -> Matrix:
    """Return unit vectors (G, D): the mean direction of the texts of each group, float32.

    The mean of unit vectors at unit length is CLIP's ensemble of prompts (Radford et al. 2021, section 3.1.4).
    """
    texts = [text for group in groups for text in group]
    unique = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    x = unit_length(source.encode(list(unique), device).astype(np.float64))
    starts = np.cumsum([0, *(len(group) for group in groups[:-1])])
    means = np.add.reduceat(x[[unique[text] for text in texts]], starts, axis=0)
    return unit_length(means).astype(np.float32)


def image_vectors(source: "TextFile | TextTower", x: Matrix, width: int) -> Matrix:
    """Return unit vectors (N, D) of features (N, W), projected into the space of the texts by the file of the tower.

    `width`: D, that of the texts; features that have it are in their space already, unless the projection takes them.

    Raises:
        UsageError: the features have neither the width of the texts nor that of the projection.
    """
    projection = _projection(source, x.shape[1], width)
    x = x.astype(np.float64)
    return unit_length(x if projection is None else x @ projection).astype(np.float32)


def _projection(source: "TextFile | TextTower", given: int, width: int) -> Matrix | None:
    """Return the projection of features of a width into the space of the texts; None: they are in it."""
    projection = source.projection
    if projection is not None and given == len(projection):
        return projection
    if given != width:
        inside = f", and the projection of the file takes {len(projection)}" if projection is not None else ""
        raise UsageError(
            f"the features have {given} numbers, the texts {width}{inside}",
            "Choose the layer that was trained with these texts (--layers), behind the projection if it has one.",
        )
    return None
