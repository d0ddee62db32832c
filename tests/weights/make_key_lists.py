"""Writes keys/*.txt: names, shapes and dtypes of files of each format, from the real architectures, without weights.

Run it from the repository's root after adding a format: `python tests/weights/make_key_lists.py`. The other lists were
written once by the habits of those who publish the files, whose names do not change: there is no script of them.
"""

from collections.abc import Mapping
from pathlib import Path

import timm
import torch
import torchvision

HERE = Path(__file__).parent / "keys"
Entries = dict[str, torch.Tensor]


def network(name: str, **options: object) -> Entries:
    """State dict of a torchvision or timm architecture on the meta device."""
    with torch.device("meta"):
        if name.startswith("timm:"):
            module = timm.create_model(name.removeprefix("timm:"), pretrained=False, **options)
        else:
            module = torchvision.models.get_model(name, weights=None, **options)
    return dict(module.state_dict())


def prefixed(prefix: str, entries: Mapping[str, torch.Tensor]) -> Entries:
    return {prefix + key: tensor for key, tensor in entries.items()}


def without_head(entries: Entries) -> Entries:
    return {key: tensor for key, tensor in entries.items() if not key.startswith("fc.")}


def mlp_head(entries: Entries, width: int) -> Entries:
    first = {"fc.0.weight": torch.empty(width, width, device="meta"), "fc.0.bias": torch.empty(width, device="meta")}
    last = {"fc.2.weight": torch.empty(128, width, device="meta"), "fc.2.bias": torch.empty(128, device="meta")}
    return {**without_head(entries), **first, **last}


def write(name: str, where: str, entries: Mapping[str, torch.Tensor]) -> None:
    lines = [f"# at: {where}"]
    for key, tensor in entries.items():
        shape = "x".join(map(str, tensor.shape)) or "-"
        lines.append(f"{key} {shape} {str(tensor.dtype).removeprefix('torch.')}")
    (HERE / f"{name}.txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    r50, r18, alexnet = network("resnet50"), network("resnet18"), network("alexnet")
    queue = {
        "module.queue": torch.empty(128, 65536, device="meta"),
        "module.queue_ptr": torch.empty(1, dtype=torch.int64, device="meta"),
    }
    encoders = [prefixed(f"module.encoder_{letter}.", mlp_head(r50, 2048)) for letter in "qk"]
    trunk = "classy_state_dict.base_model.model.trunk"
    write("torchvision", "", r50)
    write("torchvision.alexnet", "", alexnet)
    write("torchvision.resnext", "state_dict", network("resnext50_32x4d"))
    write("timm", "", network("timm:vit_small_patch16_224"))
    write("timm.dinov2", "", network("timm:vit_small_patch14_reg4_dinov2"))
    write("timm.resnet50d", "state_dict", network("timm:resnet50d"))
    write("timm.convnext", "state_dict", network("timm:convnext_atto"))
    write("timm.swin", "model", network("timm:swin_tiny_patch4_window7_224"))
    write("timm.mobilenetv3", "", network("timm:mobilenetv3_small_050"))
    write("timm.regnet", "", network("timm:regnety_002"))
    write("vissl", trunk, prefixed("_feature_blocks.", without_head(r50)))
    write("vissl.linear_evaluation", trunk, prefixed("base_model._feature_blocks.", without_head(r50)))
    write("vissl.model_state_dict", "model_state_dict", prefixed("_feature_blocks.", without_head(r18)))
    write("moco", "state_dict", {**encoders[0], **encoders[1], **queue})
    write("sslbench", "state_dict", without_head(r18))
    write("sslbench_checkpoint", "state_dict", without_head(r18))
    write("module", "state_dict", prefixed("module.", network("timm:test_efficientnet_gn")))
    write("module.torchvision", "state_dict", prefixed("module.", r18))
    write("plain", "model", network("timm:test_nfnet"))


if __name__ == "__main__":
    main()
