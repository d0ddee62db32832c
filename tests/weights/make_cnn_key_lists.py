"""Writes keys/*.txt of CNN formats: names, shapes and dtypes as those who publish the files name them, no weights.

The names are made here from torchvision's, by each format's own habits and without the rename tables, so that the
tables are checked against something else. Run it from the repository's root: `python
tests/weights/make_cnn_key_lists.py`.
"""

import re
from collections.abc import Mapping

import torch
from make_key_lists import Entries, mlp_head, network, prefixed, without_head, write

TRUNK = "classy_state_dict.base_model.model.trunk"
CAFFE2_LEAVES = {"weight": "s", "bias": "b", "running_mean": "rm", "running_var": "riv"}
# VISSL's AlexNets are a list of blocks; those with numbers 1, 3 and 7 are poolings
VISSL_BLOCKS = (0, 2, 4, 5, 6)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def without_counters(entries: Entries) -> Entries:
    return {key: tensor for key, tensor in entries.items() if not key.endswith("num_batches_tracked")}


def linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> Entries:
    return {f"{name}.weight": meta(outputs, inputs)} | ({f"{name}.bias": meta(outputs)} if bias else {})


def norm(name: str, width: int, *, affine: bool = True) -> Entries:
    leaves = {f"{name}.{leaf}": meta(width) for leaf in ("weight", "bias")} if affine else {}
    leaves |= {f"{name}.{leaf}": meta(width) for leaf in ("running_mean", "running_var")}
    return leaves | {f"{name}.num_batches_tracked": meta(dtype=torch.int64)}


def renamed(entries: Entries, *rules: tuple[str, str]) -> Entries:
    """Each regular expression in its order, on every key."""
    result = {}
    for key, tensor in entries.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        result[key] = tensor
    return result


def detectron2(entries: Entries) -> Entries:
    plain = without_counters(without_head(entries))
    return {
        re.sub(r"^layer(\d)", lambda m: f"res{int(m[1]) + 1}", key): tensor
        for key, tensor in renamed(
            plain,
            (r"^conv1", "stem.conv1"),
            (r"^bn1", "stem.conv1.norm"),
            (r"\.bn(\d)\.", r".conv\1.norm."),
            (r"downsample\.0", "shortcut"),
            (r"downsample\.1", "shortcut.norm"),
        ).items()
    }


def sequential(entries: Entries) -> Entries:
    """Names of Sequential(*children): conv1, bn1, relu, maxpool, layer1, ... by their numbers."""
    shifted = renamed(without_head(entries), (r"^conv1\.", "0."), (r"^bn1\.", "1."))
    return {re.sub(r"^layer(\d)", lambda m: str(int(m[1]) + 3), key): tensor for key, tensor in shifted.items()}


def classyvision(entries: Entries) -> Entries:
    names = {"conv1": "0", "bn1": "1", "conv2": "3", "bn2": "4", "conv3": "6"}
    result = {}
    for key, tensor in without_head(entries).items():
        if found := re.match(r"layer(\d)\.(\d+)\.(\w+)\.(.+)", key):
            stage, block, part, leaf = int(found[1]) - 1, found[2], found[3], found[4]
            inner = f"convolutional_block.{names[part]}" if part in names else {"bn3": "bn"}.get(part, part)
            result[f"blocks.{stage}.block{stage}-{block}.{inner}.{leaf}"] = tensor
        else:
            number = "0" if key.startswith("conv1") else "1"
            result[f"initial_block._module.{number}.{key.partition('.')[2]}"] = tensor
    return result


def huggingface(entries: Entries) -> Entries:
    result = {}
    for key, tensor in without_head(entries).items():
        if found := re.match(r"layer(\d)\.(\d+)\.(conv|bn|downsample\.)(\d)\.(.+)", key):
            where = f"resnet.encoder.stages.{int(found[1]) - 1}.layers.{found[2]}"
            shortcut = found[3] == "downsample."
            kind = "normalization" if found[3] == "bn" or (shortcut and found[4] == "1") else "convolution"
            inner = "shortcut" if shortcut else f"layer.{int(found[4]) - 1}"
            result[f"{where}.{inner}.{kind}.{found[5]}"] = tensor
        else:
            kind = "convolution" if key.startswith("conv1") else "normalization"
            result[f"resnet.embedder.embedder.{kind}.{key.partition('.')[2]}"] = tensor
    return result | linear("classifier.1", 1000, 2048)


def caffe2_resnet(entries: Entries, tower: str = "", leaves: Mapping[str, str] = CAFFE2_LEAVES) -> Entries:
    result = {}
    for key, tensor in without_counters(without_head(entries)).items():
        leaf = key.rpartition(".")[2]
        if found := re.match(r"layer(\d)\.(\d+)\.(conv|bn|downsample\.)(\d)\.", key):
            shortcut = found[3] == "downsample."
            branch = "branch1" if shortcut else "branch2" + "abc"[int(found[4]) - 1]
            name = f"res{int(found[1]) + 1}_{found[2]}_{branch}"
            is_norm = found[3] == "bn" or (shortcut and found[4] == "1")
            result[f"{name}_bn{tower}_{leaves[leaf]}" if is_norm else f"{name}{tower}_w"] = tensor
        elif key.startswith("conv1"):
            result[f"conv1{tower}_w"] = tensor
        else:
            result[f"res_conv1_bn{tower}_{leaves[leaf]}"] = tensor
    return result


def caffe2_solver(first: str) -> Entries:
    return {f"{first}_momentum": meta(64, 3, 7, 7), "lr": meta(1), "model_iter": meta(1, dtype=torch.int64)}


# (output channels, input channels of the weight, kernel) of the five convolutions
GROUPED = ((96, 3, 11), (256, 48, 5), (384, 256, 3), (384, 192, 3), (256, 192, 3))
WHOLE = ((96, 2, 11), (256, 96, 5), (384, 256, 3), (384, 384, 3), (256, 384, 3))
NARROW = ((64, 3, 11), (192, 64, 5), (384, 192, 3), (256, 384, 3), (256, 256, 3))


def caffe2_alexnet(tower: str = "", norms: str = "", first: int = 3) -> Entries:
    """`norms`: name of a layer's normalisation, for those that have one."""
    result = {}
    for number, (outputs, inputs, kernel) in enumerate(GROUPED, 1):
        inputs = first if number == 1 else inputs
        result |= {
            f"conv{number}{tower}_w": meta(outputs, inputs, kernel, kernel),
            f"conv{number}{tower}_b": meta(outputs),
        }
        if norms and (not tower or number > 2):
            result |= {norms.format(number) + f"_{leaf}": meta(outputs) for leaf in CAFFE2_LEAVES.values()}
    return result


def alexnet_blocks(convolutions: tuple[tuple[int, int, int], ...], names: tuple[tuple[str, str], ...], first: int = 1):
    """Convolutions and, from number `first` on, their BatchNorms, with the given names."""
    result = {}
    for number, ((outputs, inputs, kernel), (conv, bn)) in enumerate(zip(convolutions, names, strict=True), 1):
        result |= {f"{conv}.weight": meta(outputs, inputs, kernel, kernel), f"{conv}.bias": meta(outputs)}
        result |= norm(bn, outputs) if number >= first else {}
    return result


def vissl_alexnet(convolutions: tuple[tuple[int, int, int], ...], first: int = 1) -> Entries:
    names = tuple((f"_feature_blocks.{block}.0", f"_feature_blocks.{block}.1") for block in VISSL_BLOCKS)
    return alexnet_blocks(convolutions, names, first)


def sobel() -> Entries:
    gray = {"sobel.0.weight": meta(1, 3, 1, 1), "sobel.0.bias": meta(1)}
    return gray | {"sobel.1.weight": meta(2, 1, 3, 3), "sobel.1.bias": meta(2)}


def write_contrastive(r50: Entries) -> None:
    trunk, mlp = without_head(r50), mlp_head(r50, 2048)
    predictor = linear("module.predictor.0", 512, 2048, bias=False) | norm("module.predictor.1", 512)
    write("moco.query_only", "state_dict", prefixed("module.encoder_q.", r50))
    both = prefixed("module.base_encoder.", mlp) | prefixed("module.momentum_encoder.", mlp)
    write("moco_v3", "state_dict", both | predictor | linear("module.predictor.3", 256, 512, bias=False))
    write("simsiam", "state_dict", prefixed("module.encoder.", mlp) | predictor)
    heads = linear("projection_head.0", 2048, 2048) | norm("projection_head.1", 2048)
    heads |= linear("projection_head.3", 128, 2048)
    write("swav", "", prefixed("module.", trunk | heads | linear("prototypes", 3000, 128, bias=False)))
    many = linear("prototypes.prototypes0", 3000, 128, bias=False) | linear(
        "prototypes.prototypes1", 3000, 128, bias=False
    )
    write("swav.deepclusterv2", "state_dict", prefixed("module.", trunk | heads | many))
    projector = linear("module.projector.0", 8192, 2048, bias=False) | norm("module.projector.1", 8192)
    write("vicreg", "model", prefixed("module.backbone.", trunk) | projector)
    bn = norm("module.bn", 8192, affine=False)
    write("barlow_twins", "model", prefixed("module.backbone.", trunk) | projector | bn)


def write_byol(r50: Entries) -> None:
    head = linear("projector.net.0", 4096, 2048) | norm("projector.net.1", 4096)
    predictor = linear("online_predictor.net.0", 4096, 256)
    networks = prefixed("net.", r50)
    for which in ("online", "target"):
        networks |= prefixed(f"{which}_encoder.net.", r50) | prefixed(f"{which}_encoder.", head)
    write("byol", "", networks | predictor)
    projection = linear("projetion.net.0", 512, 512) | norm("projetion.net.1", 512)
    r18 = network("resnet18")
    write("byol_pytorch", "online_network_state_dict", prefixed("encoder.", sequential(r18)) | projection)


def write_libraries(r50: Entries) -> None:
    trunk, layers = without_head(r50), sequential(r50)
    head = linear("projection_head.layers.0", 2048, 2048, bias=False) | norm("projection_head.layers.1", 2048)
    write("lightly", "state_dict", prefixed("backbone.", layers) | head)
    pair = prefixed("backbone.", layers) | prefixed("backbone_momentum.", layers) | head
    pair |= linear("prediction_head.layers.0", 512, 128) | linear("projection_head_momentum.layers.0", 512, 2048)
    write("lightly.momentum", "", pair)
    projector = linear("projector.0", 2048, 2048) | linear("classifier", 1000, 2048)
    write("solo_learn", "state_dict", prefixed("backbone.", trunk) | projector)
    pair = prefixed("backbone.", trunk) | prefixed("momentum_backbone.", trunk) | projector
    queue = {"queue": meta(2, 256, 65536), "queue_ptr": meta(1, dtype=torch.int64)}
    write("solo_learn.momentum", "state_dict", pair | linear("momentum_projector.0", 2048, 2048) | queue)
    vit = prefixed("backbone.", network("timm:vit_tiny_patch16_224", num_classes=0))
    write("solo_learn.vit", "state_dict", vit | linear("classifier", 100, 192))
    write("mmpretrain", "state_dict", prefixed("backbone.", trunk) | linear("head.fc", 1000, 2048))
    neck = linear("neck.fc0", 2048, 2048, bias=False) | norm("neck.bn0", 2048)
    write(
        "mmpretrain.mmselfsup",
        "state_dict",
        prefixed("backbone.", trunk) | neck | linear("head.predictor.fc0", 512, 2048),
    )
    keys = prefixed("encoder_k.module.0.", trunk) | linear("encoder_k.module.1.mlp.0", 2048, 2048)
    write("mmpretrain.moco", "state_dict", prefixed("backbone.", trunk) | neck | keys | {"queue": meta(128, 65536)})
    write("huggingface_resnet", "", huggingface(r50))
    write("classyvision", TRUNK, classyvision(r50))
    write("timm.ema", "state_dict_ema", network("timm:resnet18"))


def write_detectron2(r50: Entries) -> None:
    backbone = detectron2(r50)
    write("detectron2", "model", backbone)
    counters = {key: t for key, t in network("resnet50").items() if key.endswith("num_batches_tracked")}
    counters = renamed(counters, (r"^bn1", "stem.conv1.norm"), (r"\.bn(\d)", r".conv\1.norm"))
    counters = {re.sub(r"^layer(\d)", lambda m: f"res{int(m[1]) + 1}", key): t for key, t in counters.items()}
    counters = renamed(counters, (r"downsample\.1", "shortcut.norm"))
    moco_head = linear("stem.fc.0", 2048, 2048) | linear("stem.fc.2", 128, 2048)
    write("detectron2.moco", "model", backbone | counters | moco_head)
    rpn = {"proposal_generator.rpn_head.conv.weight": meta(256, 256, 3, 3)}
    box = linear("roi_heads.box_predictor.cls_score", 21, 1024)
    pixels = {"pixel_mean": meta(3, 1, 1), "pixel_std": meta(3, 1, 1)}
    fpn = {f"backbone.fpn_lateral{i}.weight": meta(256, 256, 1, 1) for i in range(2, 6)}
    fpn |= {f"backbone.fpn_output{i}.weight": meta(256, 256, 3, 3) for i in range(2, 6)}
    write("detectron2.fpn", "model", prefixed("backbone.bottom_up.", backbone) | fpn | rpn | box | pixels)
    first = prefixed("backbone.", {k: t for k, t in backbone.items() if not k.startswith("res5")})
    last = prefixed("roi_heads.", {k: t for k, t in backbone.items() if k.startswith("res5")})
    write("detectron2_c4", "model", first | last | rpn | box | pixels)


def write_caffe2(r50: Entries) -> None:
    plain = caffe2_resnet(r50)
    write(
        "caffe2_resnet", "blobs", plain | {"pred_w": meta(1000, 2048), "pred_b": meta(1000)} | caffe2_solver("conv1_w")
    )
    write("caffe2_resnet.no_blobs", "", plain | {"fc1000_w": meta(1000, 2048), "fc1000_b": meta(1000)})
    leaves = {"weight": "gamma", "bias": "beta", "running_mean": "running_mean", "running_var": "running_var"}
    beside = {"conv1_b": meta(64), "fc1000_w": meta(1000, 2048), "fc1000_b": meta(1000)}
    write("detectron2_caffe2", "", caffe2_resnet(r50, leaves=leaves) | beside)
    towers = {}
    for number in range(9):
        towers |= caffe2_resnet(r50, f"_s{number}") if number < 2 else {f"conv1_s{number}_w": meta(64, 3, 7, 7)}
    write("caffe2_resnet_jigsaw", "blobs", towers | caffe2_solver("conv1_s0_w"))
    fc = {"fc6_w": meta(4096, 9216), "fc6_b": meta(4096), "pred_w": meta(1000, 4096), "pred_b": meta(1000)}
    write("caffe2_alexnet", "blobs", caffe2_alexnet() | fc | caffe2_solver("conv1_w"))
    write("caffe2_alexnet.npy", "", caffe2_alexnet() | fc)
    write("caffe2_alexnet.colorization", "blobs", caffe2_alexnet("", "conv{}norm", first=1) | fc)
    towers = {}
    for number in range(9):
        towers |= caffe2_alexnet(f"_s{number}", f"conv{{}}_s{number}_bn")
    write("caffe2_alexnet_jigsaw", "blobs", towers | fc)


def write_alexnets() -> None:
    none = 6  # no BatchNorm at all
    write("vissl_alexnet", "model_state_dict", vissl_alexnet(GROUPED, first=none))
    write("vissl_alexnet.jigsaw", TRUNK, vissl_alexnet(GROUPED, first=3))
    write("vissl_alexnet.colorization", "model_state_dict", vissl_alexnet(((96, 1, 11), *GROUPED[1:])))
    write("vissl_alexnet.deepcluster", TRUNK, sobel() | vissl_alexnet(WHOLE))
    head = linear("_feature_blocks.8.1", 4096, 9216, bias=False) | norm("_feature_blocks.8.2", 4096)
    write("rotnet", "network", vissl_alexnet(NARROW) | head | linear("_feature_blocks.9.0", 4, 4096))
    names = tuple((f"features.module.{conv}", f"features.module.{conv + 1}") for conv in (0, 4, 8, 11, 14))
    head = linear("classifier.1", 4096, 9216) | linear("classifier.4", 4096, 4096) | linear("top_layer", 10000, 4096)
    write("deepcluster_alexnet", "state_dict", alexnet_blocks(WHOLE, names) | head | sobel())


def write_vissl() -> None:
    trunk = without_head(network("resnet18"))
    heads = linear("momentum_teacher.heads.0.projection_head.0", 512, 512) | {"center": meta(1, 65536)}
    teacher = prefixed("momentum_teacher.trunk._feature_blocks.", trunk)
    write("vissl.teacher", "classy_state_dict.loss", teacher | heads)


def main() -> None:
    r50 = network("resnet50")
    write_contrastive(r50)
    write_byol(r50)
    write_libraries(r50)
    write_detectron2(r50)
    write_caffe2(r50)
    write_alexnets()
    write_vissl()


if __name__ == "__main__":
    main()
