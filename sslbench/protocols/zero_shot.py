"""Zero-shot classification: the class whose text is most similar to the image, without training.

Each class is the mean direction of its prompts, templates with the words of the class in them; the answer is the class
of the largest cosine (Radford et al., CLIP, 2021, section 3.1). The metrics are those of any classifier: top1, top5,
mean per class (balanced_accuracy); of several labels per image average precision (mAP_noninterpolated is that of
CLIP_benchmark). Texts are encoded by the text tower in the file of the weights, or elsewhere (`text_features`).

Names and templates of known data sets are in `benchmarks/prompts` (`prompts=imagenet1k`). Intervals are over images.
"""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sslbench.config import build, read_yaml, setting
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.names import did_you_mean, find_file
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
from sslbench.results import Outcome
from sslbench.targets.classes import Classes
from sslbench.targets.target import Target

if TYPE_CHECKING:
    from sslbench.backbones.text_towers import TextTower

_TEMPLATES = ("a photo of a {}.",)
_PLACE = "{}"
_ROWS = 8192


@dataclasses.dataclass(frozen=True)
class Settings(TextSettings):
    """Settings of zero-shot classification."""

    prompts: str = setting(
        "", "published templates and names of classes of a data set (sslbench list prompts), or a .yaml of your own"
    )
    templates: tuple[str, ...] = setting(
        _TEMPLATES, "prompts of a class, {} in the place of its name", filled=True, distinct=True
    )
    temperature: float = setting(
        0.01, "divisor of the cosines before the softmax, for calibration only; CLIP learnt 0.01", within="(0, inf)"
    )

    def __post_init__(self) -> None:
        """Refuse templates without a place for the name, and templates beside published ones."""
        super().__post_init__()
        if odd := [template for template in self.templates if template.count(_PLACE) != 1]:
            raise UsageError(
                f"zero-shot: the template '{odd[0]}' has {odd[0].count(_PLACE)} places for the name of a class",
                "Write {} once, as in 'a photo of a {}.'.",
            )
        if self.prompts and self.templates != _TEMPLATES:
            raise UsageError(
                "zero-shot: templates has no effect beside prompts, which has its own", "Give one of them."
            )


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Published prompts of a data set.

    Attributes:
        names: words of the classes: a list by the number that the class has for a name, or class -> words; empty: the
            names of the data, with spaces for underscores and slashes.
        sorted: the list is in the sorted order of the names of the classes.
    """

    title: str
    source: str
    templates: tuple[str, ...]
    names: Any = ()
    sorted: bool = False


def prompts_of(settings: Settings) -> Prompts:
    """Return the templates and names that the settings choose.

    Raises:
        UsageError: there is no such file, or it lacks a key.
    """
    if not settings.prompts:
        return Prompts("", "", settings.templates)
    file = find_file("prompts", settings.prompts)
    found = build(Prompts, read_yaml(file), str(file))
    odd = [template for template in found.templates if template.count(_PLACE) != 1]
    values = found.names.values() if isinstance(found.names, Mapping) else found.names
    if odd or not found.templates:
        raise UsageError(f"{file}: each of 'templates' should have one place {{}} for the name of a class")
    if not isinstance(found.names, Mapping | list | tuple) or not all(isinstance(each, str) for each in values):
        raise UsageError(f"{file}: 'names' should be a list of texts, or a mapping of classes to texts")
    if isinstance(found.names, Mapping):  # YAML reads the class 7 as a number
        return dataclasses.replace(found, names={str(name): words for name, words in found.names.items()})
    return found


def words_of(classes: Sequence[str], prompts: Prompts) -> list[str]:
    """Return the words (C,) of classes.

    Raises:
        UsageError: the prompts are of other classes.

    >>> words_of(("2", "1", "3 - three"), Prompts("", "", ("{}",), ["one", "two", "three"]))
    ['two', 'one', 'three']
    """
    names = prompts.names
    unknown = [name for name in classes if name not in names] if isinstance(names, Mapping) else [*classes]
    if not unknown:
        return [names[name] for name in classes]
    spoken = [re.sub(r"[_\s/]+", " ", name).strip() for name in classes]
    words = list(names.values()) if isinstance(names, Mapping) else list(names)
    if not words or set(spoken) <= set(words):
        return spoken
    remedy = "Leave prompts out, or copy its file and write the names as CLASS: words."
    if isinstance(names, Mapping):
        lacking = f"{len(unknown):,} of {counted(len(classes), 'class')}: {some(unknown)}"
        raise UsageError(f"the prompts of {prompts.title} lack {lacking}", f"They have {some(list(names))}. {remedy}")
    of_data = f"the prompts of {prompts.title} are of {len(words):,} classes, and the data have {len(classes):,}"
    numbers = [int(found[0]) for name in classes if (found := re.match(r"\d+", name.strip()))]
    keys = sorted(classes) if prompts.sorted else sorted(numbers)
    if len(set(keys)) != len(words) or len(classes) != len(words):
        raise UsageError(f"{of_data}: {some(list(classes))} for {some(words)}", remedy)
    if not prompts.sorted and max(numbers) - min(numbers) + 1 != len(words):
        raise UsageError(f"{of_data}, whose numbers are not consecutive: {some(keys)}", remedy)
    by_key = dict(zip(keys, words, strict=True))
    return [by_key[key] for key in (classes if prompts.sorted else numbers)]


def _texts_of_classes(classes: Sequence[str], source: "TextFile | TextTower", settings: Settings) -> list[list[str]]:
    """Return the prompts of each class; in a file of embeddings without them, and if none were given, words or name."""
    prompts = prompts_of(settings)
    words = words_of(classes, prompts)
    ways = [[[template.replace(_PLACE, each) for template in prompts.templates] for each in words]]
    if isinstance(source, TextFile):
        ways += [[[each] for each in words]] if settings.templates == _TEMPLATES else []
        ways += [] if settings.prompts or len(ways) == 1 else [[[name] for name in classes]]
        lacking = [[i for i, own in enumerate(way) if not source.rows.keys() >= {*own}] for way in ways]
        # Texts of one kind for all classes: vectors of prompts and of words are no answers to one question.
        ways = [way for way, missing in zip(ways, lacking, strict=True) if not missing] or ways
        if fewest := min(lacking, key=len):
            first = next(text for text in ways[lacking.index(fewest)][fewest[0]] if text not in source.rows)
            raise DataError(
                f"{source.title} lacks {len(fewest):,} of {counted(len(classes), 'class')}: "
                f"{some([classes[i] for i in fewest])}{'' if first in classes else f' (the text {first!r})'}",
                did_you_mean(first, source.rows),
            )
    return ways[0]


def check(settings: Settings, labels: Target) -> None:
    """Refuse settings without texts, and texts of other classes, before any image is decoded."""
    check_texts(settings)
    _texts_of_classes(labels.classes, open_texts(settings), settings)


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Score the texts of the classes for every image of test; scores (N, C) are cosines over the temperature."""
    check_features(train, test)
    check(settings, test.target)
    source, labels = open_texts(settings), test.target
    groups = _texts_of_classes(labels.classes, source, settings)
    classes = text_vectors(source, groups, device)
    scores = np.empty((len(test), len(classes)), np.float32)
    for start in range(0, len(test), _ROWS):
        vectors = image_vectors(source, test.x[start : start + _ROWS], classes.shape[1])
        scores[start : start + _ROWS] = vectors @ classes.T / settings.temperature
    notes = []
    twice = [i for i, group in enumerate(groups) if group in groups[:i]]
    # Classes with equal texts, two pairs in ImageNet's names: the first one is predicted, as by CLIP's argmax.
    scores[:, twice] = np.nextafter(scores[:, twice], np.float32(-np.inf))
    if twice:
        notes = [
            f"Of classes with equal texts the first is predicted: never {some([labels.classes[i] for i in twice])}."
        ]
    each = len({len(group) for group in groups}) == 1
    number = f"{len(groups[0])}" if each else "1 or more"
    pairs = [f"{name}: '{group[0]}'" for name, group in zip(labels.classes, groups, strict=True)]
    note = f"{number} text{'s' * (number != '1')} per class by {source.title}; {some(pairs)}."
    return Outcome.of(
        labels,
        scores,
        seed=seed,
        groups=test.groups,
        notes=(note, *notes),
        probabilities="softmax" if isinstance(labels, Classes) else None,
    )


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the cosines; texts are encoded once, which is little beside the images."""
    return Cost(
        products=2.0 * shapes.test * shapes.width * shapes.classes,
        passes=16.0 * shapes.test * shapes.width,
        memory=8.0 * shapes.width * (_ROWS + shapes.classes) + 4.0 * shapes.test * shapes.classes,
        scores=4.0 * shapes.test * shapes.classes,
    )


def _recorded(settings: Settings) -> dict[str, Any]:
    """Return the settings for records, with a digest of templates and names that lie in a file."""
    found = recorded(settings)
    if settings.prompts:
        prompts = prompts_of(settings)
        found["prompts"] = f"{prompts.title} {hashlib.sha256(repr(prompts).encode()).hexdigest()[:16]}"
    return found


PROTOCOL = Protocol(
    version=1,
    summary="Zero-shot classification: the class whose text is most similar to the image, without training.",
    settings=Settings,
    kind=OnImagesAndTexts(check, run, cost=cost, part=test_part, own_classes=True),
    recorded=_recorded,
)
