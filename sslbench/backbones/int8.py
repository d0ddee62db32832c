"""Networks in 8-bit integers on a processor, by onnxruntime.

Weights are rounded per channel; what enters and leaves a convolution or a matrix product with weights per tensor, in
the range that it has on calibration images; all other operations stay in float32. Products are summed in 32-bit
integers, exactly, so features do not depend on the batch.
(Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference",
CVPR 2018, section 2.)
"""

import contextlib
import dataclasses
import functools
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.export import cause_of, need_onnx, refuse_large, write_onnx
from sslbench.backbones.layers import Layer, forward_layers, single_layers
from sslbench.data.decode import transforms
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.errors import BackboneError, DataError, UsageError

log = logging.getLogger("sslbench")

# Number of images that decide the ranges.
CALIBRATION_IMAGES = 128

_INPUT = "images"
_CHUNK = 8  # images per pass of the calibration
_OTHERWISE = "Use --precision bf16 or fp32."


def calibrated(backbone: Backbone, source: Source, precision: str, device: torch.device) -> Backbone:
    """Return a backbone with the images that int8 needs; unchanged in another precision, and for pixels."""
    if precision != "int8":
        return backbone
    if backbone.kind.pixels:
        log.info(f"{backbone.name} has no weights that int8 could round: computed and recorded in fp32")
        return backbone
    check_int8(device)
    if backbone.preprocessing.output_size is None:
        raise UsageError(
            "precision int8 is for images of one size, and these keep their own",
            "Give --resize and --crop, or --precision bf16.",
        )
    if backbone.preprocessing.scales != (1.0,):
        raise UsageError("precision int8 is for images of one scale", "Leave out --scales, or use --precision bf16.")
    whole = source.every_image()
    rows = np.unique(np.linspace(0, len(whole) - 1, min(CALIBRATION_IMAGES, len(whole))).astype(np.int64))
    batches = loader.batches(whole, rows, backbone.preprocessing, batch_size=32, workers=0)
    images = [
        transforms.normalise(batch.images, backbone.preprocessing, memory_format=torch.contiguous_format)
        for batch in batches
        if len(batch.indices)
    ]
    if not images:
        raise DataError(f"none of {len(rows)} images of {source.name} can be read, which int8 takes its ranges from")
    return dataclasses.replace(backbone, calibration=torch.cat(images))


class Int8Network(nn.Module):
    """Frozen network up to several layers, images (B, C, H, W) -> {text of the layer: (B, D) float32}.

    Copies share the session of onnxruntime, which computes for several threads at once, each pass on one of them.
    """

    def __init__(self, model: bytes, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.texts = tuple(layer.text for layer in layers)
        self._session = _session(model)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the features of normalised images."""
        found = self._session.run(None, {_INPUT: images.contiguous().numpy()})
        return {text: torch.from_numpy(features) for text, features in zip(self.texts, found, strict=True)}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Int8Network":
        """Return the network itself: nothing of it changes."""
        return self


def int8_network(backbone: Backbone, module: nn.Module, layers: Sequence[Layer], device: torch.device) -> Int8Network:
    """Return the network of a backbone in 8-bit integers.

    module: its module with BatchNorm folded, not changed.
    """
    images = backbone.calibration
    if images is None:
        raise UsageError(
            "precision int8 is for protocols on features and for extract, which find its ranges on images of train",
            _OTHERWISE,
        )
    check_int8(device)
    refuse_large(backbone, _OTHERWISE)
    known = (
        backbone.name,  # its options (an activation, say) need not show in the tensors
        backbone.weights_sha256,
        backbone.calibration_sha256,
        *sorted(backbone.identity.items()),
        *(layer.text for layer in layers),
        backbone.process_key,
    )
    try:
        return Int8Network(_model(_Exact(known, module, tuple(layers), images)), layers)
    except Exception as error:  # torch and onnxruntime raise errors of many kinds
        raise BackboneError(f"{backbone.name} cannot be computed in int8: {cause_of(error)}", _OTHERWISE) from error


@dataclasses.dataclass(frozen=True)
class _Exact:
    """Network in float32; equal to another with the same name, tensors, identity (calibration included) and layers."""

    known: tuple[object, ...]
    module: nn.Module = dataclasses.field(compare=False)
    layers: tuple[Layer, ...] = dataclasses.field(compare=False)
    images: Tensor = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=1)  # the parts of the data follow each other; a ResNet-50 takes half a minute
def _model(exact: _Exact) -> bytes:
    """Return an ONNX model with the rounded network."""
    network = _Features(exact.module, exact.layers).eval().requires_grad_(False)
    with tempfile.TemporaryDirectory(prefix="sslbench-int8-") as folder, warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        written, rounded = Path(folder) / "exact.onnx", Path(folder) / "int8.onnx"
        write_onnx(network, exact.images[:2], written, _INPUT, [f"layer{i}" for i in range(len(exact.layers))], {})
        _quantise(written, rounded, exact.images)
        return rounded.read_bytes()


def check_int8(device: torch.device) -> None:
    """Refuse int8 where it cannot be computed exactly."""
    if device.type != "cpu":
        raise UsageError(f"precision int8 computes on a processor, not on {device.type}", "Use --device cpu, or bf16.")
    need_onnx("networks in int8", "use --precision bf16 or fp32.")
    if not _sums_are_exact():
        raise UsageError(
            "this processor cannot add 8-bit products without overflow (it lacks VNNI), so int8 would give other "
            "features here than elsewhere",
            _OTHERWISE,
        )


class _Features(nn.Module):
    """Network that returns the features of several layers as a tuple."""

    def __init__(self, module: nn.Module, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.network, self.layers = module, tuple(layers)
        # Registers their tensors.
        self.heads = nn.ModuleList(layer.head for layer in single_layers(layers) if layer.head is not None)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        found = forward_layers(self.network, images, self.layers)
        return tuple(found[layer.text] for layer in self.layers)


def _quantise(exact: Path, rounded: Path, images: Tensor) -> None:
    """Write the rounded network; the weights of products are rounded, products of two activations are not."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Images(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.pieces = iter(torch.split(images, _CHUNK))

        def get_next(self) -> dict[str, Any] | None:
            piece = next(self.pieces, None)
            return None if piece is None else {_INPUT: piece.numpy()}

    quantize_static(
        exact,
        rounded,
        Images(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        # Of a ViT-S, with all operations the centred features had a cosine of 0.27 to the exact ones, with these 0.98.
        op_types_to_quantize=["Conv", "Gemm", "MatMul"],
        extra_options={"MatMulConstBOnly": True},
    )
    if not any(node.op_type == "DequantizeLinear" for node in onnx.load(rounded).graph.node):
        raise ValueError("up to its layers it has no convolution or matrix product with weights, so nothing is rounded")


def _session(model: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@functools.cache
def _sums_are_exact() -> bool:
    """Return whether sums of products of 8-bit integers are exact on this processor.

    Those of AVX2 and AVX-512 without VNNI add pairs of products in 16 bits, which overflow.
    """
    from onnx import TensorProto, helper

    depth, width = 64, 32
    shapes = {"a": [8, depth], "b": [depth, width], "c": [8, width]}
    kinds = {"a": TensorProto.UINT8, "b": TensorProto.INT8, "c": TensorProto.INT32}
    a, b, c = (helper.make_tensor_value_info(name, kinds[name], shapes[name]) for name in "abc")
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["a", "b"], ["c"])], "sums", [a, b], [c])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = _session(model.SerializeToString())
    # The largest numbers: a pair of their products is beyond 2^15.
    left, right = np.full((8, depth), 255, np.uint8), np.full((depth, width), 127, np.int8)
    found = session.run(None, {"a": left, "b": right})[0]
    return bool((found == 255 * 127 * depth).all())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the hints of onnxruntime's quantiser, which go to the root logger, and those of its sessions."""
    import onnxruntime

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    onnxruntime.set_default_logger_severity(3)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(2)  # its default, which it does not tell
        logging.disable(before)
