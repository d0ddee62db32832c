"""Export of the network of a weights file: its classifier's scores if it has one, else the features of a layer."""

from pathlib import Path

from sslbench.backbones import named
from sslbench.backbones.classifier import find_classifier, has_classifier
from sslbench.backbones.export import ExportReport, export
from sslbench.backbones.layers import resolve_layers
from sslbench.errors import UsageError
from sslbench.evaluation.prediction import load_with_heads
from sslbench.evaluation.preparation import for_request, load
from sslbench.evaluation.request import Request, RunSettings


def export_network(request: Request, out: Path, *, overwrite: bool = False) -> ExportReport:
    """Write the network of a request as .onnx or .pt2; see `sslbench.backbones.export.export`.

    Args:
        request: weights, backbone, preprocessing, and at most one layer; without a layer the output is that of the
            file's classifier, or the default layer if it has none.
        out: file to write.
        overwrite: replace an existing file.

    Raises:
        SslbenchError: the weights or options are invalid, or the network cannot be exported.
    """
    run = RunSettings(device="cpu")
    if len(request.layers) > 1:
        raise UsageError(f"--layers {','.join(request.layers)}: an exported network has one output", "Name one layer.")
    if request.layers or not (named.is_named(request.weights) or Path(request.weights).exists()):
        backbone, _ = for_request(load(request, run), request, run)
        (layer,) = resolve_layers(backbone, request.layers)
        return export(backbone, layer, out, overwrite=overwrite)
    file, backbone = load_with_heads(request, run)
    if has_classifier(file, backbone):
        classifier = find_classifier(file, backbone)
        return export(backbone, classifier.layer, out, classifier=classifier, overwrite=overwrite)
    return export(backbone, resolve_layers(backbone, ())[0], out, overwrite=overwrite)
