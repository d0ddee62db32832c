"""Texts of images: captions, of which an image may have several."""

import dataclasses
import hashlib
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sslbench.arrays import IntArray
from sslbench.metrics import retrieval
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.target import Rows, Target


def as_texts(values: Iterable[object]) -> list[str]:
    """Return the texts that are not blank, without line breaks and spaces around them.

    Raises:
        TypeError: a value is no text.

    >>> as_texts([" a  cat ", ""])
    ['a cat']
    """
    found = []
    for value in values:
        if not isinstance(value, str):
            raise TypeError(reprlib.repr(value))
        found += [text] if (text := " ".join(value.split())) else []
    return found


def captions_in(entry: Mapping[str, Any]) -> list[object]:
    """Return what an entry of a manifest has as `caption` or `captions`, a text or a list of them."""
    value = entry.get("caption") or entry.get("captions") or []
    return value if isinstance(value, list) else [value]


@dataclasses.dataclass(frozen=True, eq=False)
class Texts(Target):
    """Texts of N images.

    Attributes:
        texts: at least one text per image, in order.
        values: int64 (N,), number of texts of each image.
    """

    of_rows = ("texts",)
    name = "texts"
    title = "texts of images"
    default = ("texts:textures:images", "texts made of the classes of drawn textures")
    metric = retrieval.MEAN_RECALL.name
    given_columns = retrieval.TEXT_COLUMNS
    classes = ()
    texts: tuple[tuple[str, ...], ...]

    @property
    def values(self) -> IntArray:  # type: ignore[override]
        """Return the number of texts of each image, (N,)."""
        return np.array([len(each) for each in self.texts], dtype=np.int64)

    @classmethod
    def from_values(cls, classes: tuple[str, ...], values: Rows) -> "Texts":
        """Return as many empty texts as each image had: records keep their numbers only."""
        return cls(tuple(("",) * int(number) for number in values.reshape(len(values))))

    def text(self, index: int) -> str:
        """Return the texts, joined."""
        return " | ".join(self.texts[index])

    def size_text(self) -> str:
        """Return the number of texts."""
        return f"{int(self.values.sum()):,} texts"

    def content_key(self) -> bytes:
        """Return the key of the texts."""
        whole = "\0\0".join("\0".join(each) for each in self.texts)
        return ("texts" + hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:32]).encode()

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the recalls."""
        return retrieval.text_measures(values.reshape(len(scores)), scores)
