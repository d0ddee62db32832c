"""Classifier of the weights file, for protocols that score one without training: loading, and names of its classes."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sslbench.arrays import FloatArray, Matrix
from sslbench.backbones import named
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.classifier import Classifier, find_classifier, read_classifier
from sslbench.backbones.layer_spec import parse_stem
from sslbench.backbones.load import load_file, read_weights
from sslbench.data.regular import read_class_names
from sslbench.data.source import Source
from sslbench.data.splits import TrainTest, match_classes
from sslbench.errors import UsageError
from sslbench.evaluation.request import Request
from sslbench.evaluation.settings import RunSettings
from sslbench.protocols import FileClassifier, FileClassifierChoice
from sslbench.results import WeightsUsed
from sslbench.targets.classes import Classes
from sslbench.targets.target import OfClasses
from sslbench.weights.reading.files import WeightsFile

_ROWS = 8192


def load_file_classifier(request: Request, run: RunSettings, data: TrainTest) -> FileClassifier | None:
    """Return the classifier of the weights file that the tasks choose; None where they train their own.

    Its classes are those that the file or `class_names` names; else the sorted classes of train or, of 1,000 outputs,
    ImageNet's synsets.
    """
    choices = (task.kind.file_classifier(task.settings) for task in request.tasks)
    chosen = [choice for choice in choices if choice is not None]
    if not chosen:
        return None
    setting = "classifier=file"
    if len(request.tasks) > 1:
        raise UsageError(
            f"{setting} takes labels or features of the classifier of the weights file, and other protocols do not",
            "Run it alone.",
        )
    if not named.is_named(request.weights) and not Path(request.weights).exists():
        raise UsageError(f"{setting}: '{request.weights}' has no classifier", "Give a weights file: --weights FILE.")
    if run.baseline:
        raise UsageError(f"baseline has no effect with {setting}: the classifier is that of the trained backbone")
    classifier, has_names = _load(request, chosen[0])
    if classifier.info.labels != Classes.name:
        raise UsageError(f"{setting}: the classifier of {request.weights} does not predict one class per image")
    layer = classifier.layer.text
    if request.layers and request.layers != (layer,):
        raise UsageError(f"--layers has no effect with {setting}: the classifier takes {layer}", "Leave it out.")
    classes, relabels = classifier.info.classes, chosen[0].relabels
    if relabels and not has_names:
        classes = _names_by_number(len(classes), data)
    if relabels and len(set(classes)) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise UsageError(f"{setting}: two classes are called '{twice}'", "Give different names: class_names=FILE.")
    name = named.weights_name(request.weights)
    description = f"the classifier in {name}, {len(classes):,} classes on the layer {layer}"
    return FileClassifier(description, layer, classes, _sha256(classifier), _logits(classifier.head), relabels)


def read_with_heads(request: Request) -> tuple[WeightsFile, Backbone]:
    """Return the weights file of a request and its backbone with the file's heads."""
    file = read_weights(request.weights, trust_pickle=request.trust_pickle)
    loaded = load_file(
        file,
        backbone=named.backbone_of(request.weights, request.backbone),
        format=request.format,
        allow_partial=request.allow_partial,
        stem=parse_stem(request.stem) if request.stem is not None else None,
        heads=True,
    )
    return file, loaded


def _load(request: Request, choice: FileClassifierChoice) -> tuple[Classifier, bool]:
    """Return the classifier of the weights file, and whether its classes have names."""
    file, loaded = read_with_heads(request)
    names = read_class_names(Path(choice.class_names)) if choice.class_names else None
    own = read_classifier(file, loaded)
    if own is not None and names is not None:
        raise UsageError(f"class_names has no effect: {file.path} names its classes itself", "Leave it out.")
    return own or find_classifier(file, loaded, names), own is not None or names is not None


def _names_by_number(count: int, data: TrainTest) -> tuple[str, ...]:
    """Return the names of a classifier's outputs, known by number only."""
    numbers = tuple(map(str, range(count)))
    known = data.train.target.classes
    if set(known) <= set(numbers):
        return numbers
    if len(known) == count:
        return tuple(sorted(known))
    if count == 1000:
        from timm.data.imagenet_info import ImageNetInfo

        synsets = tuple(ImageNetInfo("imagenet-1k").label_names())  # type: ignore[no-untyped-call]
        present = OfClasses.of(data.test.target).present().tolist()
        if {name for name, has in zip(data.test.target.classes, present, strict=True) if has} <= set(synsets):
            return synsets
    raise UsageError(
        f"classifier=file: its {count:,} classes have no names, and {data.train.name} has {len(known):,} classes",
        "Name them in the order of the outputs: class_names=FILE, one per line.",
    )


def _sha256(classifier: Classifier) -> str:
    """Return a digest of the classifier's structure, layer and tensors."""
    found = hashlib.sha256(f"{classifier.layer.text}\n{classifier.head}".encode())
    for name, tensor in sorted(classifier.head.state_dict().items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        # numpy has no bfloat16; float64 holds the values of every type, and the type is hashed above.
        found.update(np.ascontiguousarray(tensor.cpu().double().numpy()).tobytes())
    return found.hexdigest()[:32]


def _logits(head: nn.Module) -> Callable[[Matrix], FloatArray]:
    """Return the function from features (N, D) to the head's logits (N, C), computed on the processor."""

    def logits(x: Matrix) -> FloatArray:
        blocks = []
        for start in range(0, len(x), _ROWS):
            # A copy: rows of a mapped file are read-only, and torch warns of such arrays.
            block = torch.from_numpy(np.array(x[start : start + _ROWS], dtype=np.float32))
            with torch.inference_mode():
                blocks.append(head(block).double().numpy())
        return np.concatenate(blocks)

    return logits


def labelled_by(data: TrainTest, classifier: FileClassifier) -> TrainTest:
    """Return the data with labels among the classes of the classifier, matched by name, if it relabels."""
    if not classifier.relabels:
        return data
    none = np.zeros(0, dtype=np.int64)
    parts = {name: part for name in ("train", "test", "whole") if (part := getattr(data, name)) is not None}
    for name, part in parts.items():
        known = Source(classifier.description, (), Classes(classifier.classes, none), part.images.select(none))
        parts[name] = match_classes(known, part)[1]
    return dataclasses.replace(data, **parts)


def with_classifier(weights: WeightsUsed, classifier: FileClassifier | None) -> WeightsUsed:
    """Return the weights of a record with the digest of the classifier that was scored, if it is the file's."""
    if classifier is None:
        return weights
    return dataclasses.replace(weights, code={**weights.code, "classifier": classifier.sha256})
