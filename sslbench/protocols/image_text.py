"""Retrieval between images and texts: the texts of an image among all texts, the image of a text among all images.

Similarity is the cosine. An image counts if one of its own texts is among the first k texts, a text if its image is
among the first k images (Karpathy and Fei-Fei, CVPR 2015, section 4.1; as CLIP_benchmark counts on COCO and Flickr30k).
Equal texts of other images are wrong, there and here. Where similarities are equal, wrong ones come first.

Texts are encoded by the text tower in the file of the weights, or elsewhere (`text_features`). Intervals are over
images, whose texts are not independent. Chance is the exact expectation for random orders.
"""

import dataclasses
import math

import numpy as np

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.config import setting
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.metrics.retrieval import IMAGE_RECALL, MEAN_RECALL, RECALLED, TEXT_RECALL, GroundTruth
from sslbench.protocols._parts.selection import check_features
from sslbench.protocols._parts.texts import (
    OnImagesAndTexts,
    TextFile,
    TextSettings,
    check_texts,
    image_vectors,
    open_texts,
    recorded,
    text_vectors,
)
from sslbench.protocols.protocol import Cost, Protocol, Shapes, test_part
from sslbench.protocols.retrieval.descriptors import positive_ranks
from sslbench.results import Neighbours, Outcome
from sslbench.targets.target import Target
from sslbench.targets.texts import Texts

_SHOWN_IMAGES, _SHOWN_TEXTS = 10, 6  # rows and columns of the sheet


@dataclasses.dataclass(frozen=True)
class Settings(TextSettings):
    """Settings of retrieval between images and texts."""

    max_memory: float = setting(1.0, "working memory of the search", unit="GB", changes_result=False, within="(0, inf)")


def check(settings: Settings, labels: Target) -> None:
    """Refuse samples without texts, and settings without their embeddings."""
    if not isinstance(labels, Texts):
        raise DataError(
            f"image-text needs texts of images, and these samples have {labels.title}",
            "Give COCO's captions, Karpathy's splits, a table with a column 'caption', or images beside .txt files.",
        )
    check_texts(settings)
    if isinstance(source := open_texts(settings), TextFile):
        source.refuse_missing(text for each in labels.texts for text in each)


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Rank all texts for every image of test, and all images for every text; scores (N, 4) as `TEXT_COLUMNS`."""
    check(settings, test.target)
    check_features(train, test)
    source, target = open_texts(settings), Texts.of(test.target)
    number = target.values
    owner = np.repeat(np.arange(len(test)), number)
    texts = text_vectors(source, [[text] for each in target.texts for text in each], device)
    images = image_vectors(source, test.x, texts.shape[1])
    first = np.cumsum(number) - number
    of_image = [GroundTruth(np.arange(start, start + n)) for start, n in zip(first, number, strict=True)]
    of_text = [GroundTruth(owner[i : i + 1]) for i in range(len(owner))]
    ranks = _first_ranks(texts, images, of_text, settings, device)
    hits = np.add.reduceat(ranks[:, None] < np.array(RECALLED), first, axis=0, dtype=np.int64)
    scores = np.column_stack([_first_ranks(images, texts, of_image, settings, device), hits]).astype(np.float32)
    return Outcome.of(
        target,
        scores,
        seed=seed,
        groups=test.groups,
        chance=_chance(number),
        notes=(f"{len(owner):,} texts of {len(test):,} images by {source.title}.",),
        neighbours=_examples(test, images, texts, scores[:, 0].astype(np.float64)),
    )


def _first_ranks(
    queries: Matrix, database: Matrix, truths: list[GroundTruth], settings: Settings, device: str
) -> IntArray:
    """Return the rank, from 0, of the first positive of each query (Q,)."""
    found = positive_ranks(queries, database, truths.__getitem__, max_memory=settings.max_memory, device=device)
    return np.array([ranks[0] for ranks in found], dtype=np.int64)


def _examples(test: Features, images: Matrix, texts: Matrix, ranks: FloatArray) -> tuple[Neighbours, ...]:
    """Return the first texts of a few images, from the worst rank of an own text to the best."""
    target = Texts.of(test.target)
    every = [(text, row) for row, own in enumerate(target.texts) for text in own]
    spread = np.unique(np.linspace(0, len(test) - 1, _SHOWN_IMAGES).round().astype(int))
    shown = []
    for i in np.argsort(-ranks, kind="stable")[spread].tolist():
        first = np.argsort(-(texts @ images[i]), kind="stable")[:_SHOWN_TEXTS].tolist()
        found = tuple((every[place][0], every[place][1] == i) for place in first)
        shown.append(Neighbours(test.ids[i], found, "texts"))
    return tuple(shown)


def _chance(number: IntArray) -> dict[str, float]:
    """Return the expected metrics of random orders for images with these numbers of texts (N,)."""
    images, total = len(number), int(number.sum())
    sizes, counts = np.unique(number, return_counts=True)
    found = {}
    for k, of_texts, of_images in zip(RECALLED, TEXT_RECALL, IMAGE_RECALL, strict=True):
        missed = [math.comb(total - n, k) / math.comb(total, k) if k < total else 0.0 for n in sizes.tolist()]
        found[of_texts.name] = 1 - float(counts @ missed) / images
        found[of_images.name] = min(1.0, k / images)
    return {**found, MEAN_RECALL.name: sum(found.values()) / len(found)}


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count two products of all images and texts in double precision, with five texts per image."""
    texts = 5.0 * shapes.test
    return Cost(
        products=8.0 * shapes.test * texts * shapes.width,
        memory=4.0 * (shapes.test + texts) * shapes.width + settings.max_memory * 1e9,
        scores=16.0 * shapes.test,
    )


PROTOCOL = Protocol(
    version=1,
    summary="Retrieval between images and texts (COCO and Flickr30k captions): recall at k both ways.",
    settings=Settings,
    kind=OnImagesAndTexts(check, run, cost=cost, takes=(Texts,), part=test_part, own_classes=True),
    recorded=recorded,
)
