"""Networks as files of other programs: ONNX and torch.export, with a comparison of their outputs."""

import dataclasses
import importlib.metadata
import json
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone, copied
from sslbench.backbones.classifier import Classifier
from sslbench.backbones.layers import Layer, forward_layers, relative_difference
from sslbench.errors import BackboneError, UsageError
from sslbench.paths import new_file
from sslbench.preprocessing import Preprocessing
from sslbench.weights.format_name import check_export

log = logging.getLogger("sslbench")

# ONNX files are messages of protobuf, which end at 2 GiB.
_LARGEST = 1.9e9


INPUT = "images"
# Largest accepted difference of an output, relative to the largest output; float32 rounding gives about 1e-6.
LARGEST_DIFFERENCE = 1e-3
# Numbers of images on which the exported network is compared.
_BATCHES = (1, 2, 5)
_Run = Callable[[Tensor], Tensor]


def need_onnx(purpose: str, otherwise: str) -> None:
    """Refuse what the packages of ONNX are needed for where one is missing."""
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        raise UsageError(
            f"{purpose} need the packages onnx, onnxscript and onnxruntime: {error}",
            f"pip install 'sslbench[onnx]', or {otherwise}",
        ) from error
    log.debug(f"onnx {onnx.__version__}, onnxscript {onnxscript.__version__}, onnxruntime {onnxruntime.__version__}")


def quantiser() -> str:
    """Return the library that rounds networks to 8 bits, with its version."""
    return f"onnxruntime {importlib.metadata.version('onnxruntime')}"


def refuse_large(backbone: Backbone, remedy: str) -> None:
    """Refuse a network whose tensors one ONNX file cannot hold."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in backbone.module.state_dict().values())
    if size > _LARGEST:
        raise UsageError(f"{backbone.name} has {size / 1e9:.1f} GB of tensors; one ONNX file holds 2 GB", remedy)


def any_batch() -> dict[int, Any]:
    """Return the dynamic shape of images (B, C, H, W) of any number."""
    return {0: torch.export.Dim("batch", min=1, max=2**31 - 1)}  # without an end torch below 2.8 refuses


def write_onnx(
    network: nn.Module, images: Tensor, path: Path, input_name: str, outputs: Sequence[str], facts: Mapping[str, str]
) -> None:
    """Write a network as one ONNX file for any number of images.

    network: images (B, C, H, W) -> one or several tensors.
    images: an example, two at least.
    """
    program = torch.onnx.export(
        network,
        (images,),
        dynamo=True,
        dynamic_shapes={input_name: any_batch()},
        input_names=[input_name],
        output_names=list(outputs),
        verbose=False,
    )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    program.model.metadata_props.update(facts)
    program.save(path)


def cause_of(error: BaseException) -> str:
    """Return the first line of the error that caused the others; torch's exporter says only in which step it failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0][:300]}"


class ExportedNetwork(nn.Module):
    """Backbone up to a layer and, if there is one, the classifier on it: (B, C, H, W) -> (B, D)."""

    def __init__(self, backbone: Backbone, layer: Layer, classifier: Classifier | None = None) -> None:
        super().__init__()
        self.network = copied(backbone.module)
        self.head = nn.Identity() if classifier is None else classifier.head
        self.layer_head = nn.Identity() if layer.head is None else layer.head  # registers its tensors
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        """Return the layer's features, or the scores of the classes, of normalised images."""
        features = forward_layers(self.network, images, (self.layer,))[self.layer.text]
        return cast(Tensor, self.head(features))


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """Facts about an exported file.

    Attributes:
        path: the file.
        output: name of the output, 'features', 'scores' or 'maps'.
        shape: (C, H, W) of an image.
        output_shape: shape of the output of an image: (D,), or (K, H, W) of maps.
        difference: largest difference from the network's outputs, relative to the largest output.
        preprocessing: preprocessing of the images, which is not part of the file's network.
    """

    path: Path
    output: str
    shape: tuple[int, int, int]
    output_shape: tuple[int, ...]
    difference: float
    preprocessing: Preprocessing

    @property
    def width(self) -> int:
        """Dimension of the output, or channels of maps."""
        return self.output_shape[0]


def export(
    backbone: Backbone, layer: Layer, out: Path, *, classifier: Classifier | None = None, overwrite: bool = False
) -> ExportReport:
    """Write a network as .onnx or .pt2, for any number of normalised images; the file appears verified or not."""
    if backbone.preprocessing.scales != (1.0,):
        scales = ",".join(f"{scale:g}" for scale in backbone.preprocessing.scales)
        raise UsageError(
            f"an exported network takes images of one size, and these features are means over the scales {scales}",
            "Leave --scales out; a probe of these features needs sslbench predict.",
        )
    facts = {"layer": layer.text}
    if classifier is not None:
        facts |= {"labels": classifier.info.labels, "classes": json.dumps(classifier.info.classes)}
    network, output = ExportedNetwork(backbone, layer, classifier), "features" if classifier is None else "scores"
    return export_module(backbone, network, out, image_shape(backbone.preprocessing), output, facts, overwrite)


def export_module(
    backbone: Backbone,
    network: nn.Module,
    out: Path,
    shape: tuple[int, int, int],
    output: str,
    facts: Mapping[str, str],
    overwrite: bool,
) -> ExportReport:
    """Write a module with a backbone in it that takes images (B, *shape); see `export`.

    `facts`: further metadata of the file.
    """
    check_export(out, overwrite=overwrite)
    write = _write_onnx if out.suffix == ".onnx" else _write_pt2
    if out.suffix == ".onnx":
        need_onnx("ONNX files", "write a .pt2 file of torch.export.")
        refuse_large(backbone, "Write a .pt2 file.")
    network.eval().requires_grad_(False)
    examples = [torch.randn(n, *shape, generator=torch.Generator().manual_seed(n)) for n in _BATCHES]
    with torch.inference_mode():
        wanted = [network(images) for images in examples]
    preprocessing = json.dumps(backbone.preprocessing.record())
    facts = {"output": output, "backbone": backbone.name, "preprocessing": preprocessing, **facts}
    with new_file(out) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run = write(network, examples[1], temporary, output, facts)
        except Exception as error:  # torch raises errors of many kinds for networks that it cannot trace
            raise BackboneError(f"{backbone.name} cannot be exported: {cause_of(error)}") from error
        difference = max(relative_difference(run(images), own) for images, own in zip(examples, wanted, strict=True))
        # Not `>`, which is false for NaN.
        if not difference <= LARGEST_DIFFERENCE:
            raise BackboneError(
                f"{backbone.name}: the outputs of the exported network differ by {difference:.1e} of the largest; "
                "nothing was written"
            )
    return ExportReport(out, output, shape, tuple(wanted[0].shape[1:]), difference, backbone.preprocessing)


def image_shape(preprocessing: Preprocessing) -> tuple[int, int, int]:
    """Return channels, height and width of preprocessed images; 224 pixels where images keep their sizes.

    >>> image_shape(Preprocessing(resize=256, crop=(224, 192)))
    (3, 224, 192)
    """
    size = preprocessing.crop or preprocessing.resize or 224
    height, width = size if isinstance(size, tuple) else (size, size)
    return preprocessing.channels, height, width


def _write_pt2(network: nn.Module, images: Tensor, path: Path, output: str, facts: Mapping[str, str]) -> _Run:
    """Write a program of torch.export, and return the program that was read back."""
    program = torch.export.export(network, (images,), dynamic_shapes={INPUT: any_batch()}, strict=False)
    with path.open("wb") as file:  # to a path, the archive's folder would have the name of the temporary file
        torch.export.save(program, file, extra_files={"sslbench.json": json.dumps(dict(facts))})
    return cast(_Run, torch.export.load(path).module())


def _write_onnx(network: nn.Module, images: Tensor, path: Path, output: str, facts: Mapping[str, str]) -> _Run:
    """Write an ONNX model, and return its function in onnxruntime."""
    import onnxruntime

    write_onnx(network, images, path, INPUT, [output], facts)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(batch: Tensor) -> Tensor:
        return torch.from_numpy(session.run([output], {INPUT: batch.numpy()})[0])

    return run
