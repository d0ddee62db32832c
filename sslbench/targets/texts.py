"""Texts of images: captions, of which an image may have several."""

import dataclasses
import hashlib

import numpy as np

from sslbench.arrays import IntArray
from sslbench.metrics import retrieval
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.target import Rows, Target


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
