"""Weight conversion as VISSL's, MoCo's and Detectron2's scripts do it, by our tables: names and bytes are compared.

Where those scripts lose or keep more than the weights of the backbone, the difference is written down here.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden_cases import Case
from golden_models import recipe
from golden_optimizers import resnet_with
from torch import Tensor

from sslbench.backbones.build import build
from sslbench.weights.formats.places import tensors_at
from sslbench.weights.formats.recognise import Recognised, recognise
from sslbench.weights.formats.tables import load_table
from sslbench.weights.reading.files import WeightsFile, read

TRUNK = "classy_state_dict.base_model.model.trunk"
COUNTER = "num_batches_tracked"
Tensors = dict[str, Tensor]


def _recorded(case: Case) -> dict[str, Any]:
    """Return what is recorded of a case: beside its results, the file and its options."""
    return case.meta | case.args | case.expected_json()


def _results(recorded: dict[str, Any], without_name: str) -> dict[str, Any]:
    """Return the results by name; where they stand without names, the one of this name, or those of scripts."""
    if "output" in recorded:
        return {without_name: {"output": recorded["output"]}}
    scripts = {key: {"output": value} for key, value in recorded.items() if key.startswith("to_")}
    if "to_detectron2" in scripts:
        scripts["to_detectron2_torch"] = scripts.pop("to_detectron2")
    return dict(recorded.get("results", {})) | scripts


def _file(case: Case, name: str) -> WeightsFile:
    path = case.topic / name
    if not path.is_file():
        pytest.skip(f"{name} is not shipped: set SSLBENCH_GOLDEN")
    return read(path)


def _listed(recorded: dict[str, Any], where: str = "") -> dict[str, tuple[str, tuple[int, ...], str]]:
    """Key -> (dtype, shape, sha256) of the tensors at a dotted path in a recorded structure."""
    for step in where.split(".") if where else []:
        recorded = recorded[step]
    return {
        key: (value["dtype"], tuple(value["shape"]), value["sha256"])
        for key, value in recorded.items()
        if isinstance(value, dict) and "sha256" in value
    }


def _described(tensors: Tensors) -> dict[str, tuple[str, tuple[int, ...], str]]:
    return {
        key: (
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            hashlib.sha256(np.ascontiguousarray(tensor.numpy()).tobytes()).hexdigest(),
        )
        for key, tensor in tensors.items()
    }


def _without_counters(tensors: Tensors) -> Tensors:
    return {key: tensor for key, tensor in tensors.items() if not key.endswith(COUNTER)}


def _to(name: str, canonical: Tensors) -> Tensors:
    """The format's keys; counters only where it has names for them, as `convert` does."""
    table = load_table(name)
    names = [pattern for rule in table.rules for pattern in rule.canonical]
    held = {key for key in canonical if any(pattern.match(key) is not None for pattern in names)}
    assert all(key.endswith(COUNTER) for key in canonical.keys() - held)
    return table.from_canonical({key: tensor for key, tensor in canonical.items() if key in held})


def _same_tensors(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)


def vissl(case: Case) -> None:
    """A VISSL checkpoint to torchvision, Detectron2 and ClassyVision, each also read back."""
    recorded = _recorded(case)
    results = _results(recorded, "to_torchvision")
    if "teacher" in case.name:
        return dino_teacher(case)
    found = _vissl_input(case, recorded)
    if any("keys" in result for result in results.values()):
        return linear_evaluation(results, found, recorded.get("salt", ""))
    assert found.format == "vissl"
    assert results
    for target, result in results.items():
        if "error" in result:  # the script fails for heads of other names
            continue
        if target == "to_torchvision":
            assert _described(found.canonical) == _listed(result["output"])
        elif target.startswith("to_detectron2"):
            _check_both_ways("detectron2", found.canonical, _listed(result["output"], "model"))
        elif target.startswith("to_classy"):
            _check_both_ways("classyvision", found.canonical, _listed(result["output"], TRUNK))
        else:
            assert target == "classy_to_vissl"
            _check_classy_to_vissl(found.canonical, _listed(result["output"], "model_state_dict"))
        if "file" in result:
            _check_file(case, result["file"], target, found.canonical)


def _vissl_input(case: Case, recorded: dict[str, Any]) -> Recognised:
    if "input_file" in recorded:
        return recognise(_file(case, recorded["input_file"]))
    # Of full size: made by the recipe.
    where = TRUNK if "classy_state_dict" in recorded["input_structure"] else "model_state_dict"
    structure = _listed(recorded["input_structure"], where)
    names = {key: re.sub(r"^(base_model\.)?_feature_blocks\.", "", key) for key in structure}
    tensors = {
        key: torch.from_numpy(np.asarray(recipe(names[key], shape, recorded.get("salt", ""))))
        for key, (_, shape, _) in structure.items()
    }
    assert _described(tensors) == structure
    content: dict[str, Any] = tensors
    for step in reversed(where.split(".")):
        content = {step: content}
    return recognise(WeightsFile(case.topic, "0" * 64, content, "torch zip"))


def _check_both_ways(name: str, canonical: Tensors, wanted: dict[str, tuple[str, tuple[int, ...], str]]) -> None:
    there = _to(name, canonical)
    assert _described(there) == wanted
    table = load_table(name)
    place: Any = there
    for step in reversed(table.file.state_dict[0].split(".")):
        place = {step: place}
    back = recognise(WeightsFile(Path("back.torch"), "0" * 64, place, "torch zip"))
    assert back.format == name
    kept = canonical if any(key.endswith(COUNTER) for key in there) else _without_counters(canonical)
    assert _same_tensors(back.canonical, kept)


def _check_classy_to_vissl(canonical: Tensors, wanted: dict[str, tuple[str, tuple[int, ...], str]]) -> None:
    """VISSL's script loses the BatchNorm counters on this way; ours does not."""
    assert _described(_to("vissl", _without_counters(canonical))) == wanted


def _check_file(case: Case, name: str, result: str, canonical: Tensors) -> None:
    """The file that the script wrote holds the same backbone."""
    found = recognise(_file(case, name))
    formats = {"to_torchvision": "torchvision", "to_detectron2": "detectron2", "to_classy": "classyvision"}
    formats["classy_to_vissl"] = "vissl"
    assert found.format == next(name for target, name in formats.items() if result.startswith(target))
    lossless = found.format in ("torchvision", "classyvision")
    assert _same_tensors(found.canonical, canonical if lossless else _without_counters(canonical))
    assert bool(found.heads) == (result == "to_classy_heads")


def linear_evaluation(results: dict[str, Any], found: Recognised, salt: str) -> None:
    """VISSL's scripts keep the prefix of a linear evaluation run in every key; we take it away."""
    assert found.prefix == "base_model._feature_blocks."
    targets = {"to_classy": "classyvision", "to_detectron2_torch": "detectron2", "to_detectron2_numpy": "detectron2"}
    for name, target in targets.items():
        if name in results:
            wanted = {key.removeprefix("base_model.") for key in results[name]["keys"] if key[0] != "_"}
            assert set(_to(target, found.canonical)) == wanted
    for key, tensor in found.canonical.items():
        values = recipe(key, tuple(tensor.shape), salt)
        assert np.array_equal(tensor.numpy(), values)


def dino_teacher(case: Case) -> None:
    """The student lies in the trunk, the teacher in the loss; each is taken by its name."""
    recorded = _recorded(case)
    file = _file(case, recorded["input_file"])
    student, teacher = recognise(file), recognise(file, format="vissl:teacher")
    assert (student.network, student.other_networks) == ("trunk", ("teacher",))
    assert (teacher.network, teacher.where) == ("teacher", "classy_state_dict.loss")
    assert _described(_to("vissl", teacher.canonical)) == _listed(recorded["output"], TRUNK)
    assert not _same_tensors(student.canonical, teacher.canonical)


def caffe2_resnet(case: Case) -> None:
    """With 'bgr2rgb' we do as the script; without it, the script leaves the first convolution as it was."""
    recorded = _recorded(case)
    found = recognise(_file(case, recorded["input_file"]))
    jigsaw = any("_s0" in key for key in tensors_at(_file(case, recorded["input_file"]).content, found.where))
    assert found.format == ("caffe2_resnet_jigsaw" if jigsaw else "caffe2_resnet")
    for option, result in _results(recorded, f"bgr2rgb={recorded.get('bgr2rgb')}").items():
        wanted = _listed(result["output"])
        head = {key: wanted.pop(key) for key in wanted.keys() - found.canonical.keys()}
        ours = dict(found.canonical)
        if option == "bgr2rgb=None":
            ours["conv1.weight"] = ours["conv1.weight"].flip(1)
        assert _described(ours) == wanted
        classifier = {key.replace("_s0", ""): tensor for key, tensor in found.heads.items()}
        assert all(re.fullmatch(r"fc1000\.(weight|bias)", key) for key in head)
        ours = {key: classifier[f"fc1000_{'w' if key.endswith('weight') else 'b'}"] for key in head}
        assert _described(ours) == head
    _check_way_back(case, recorded, found)


def caffe2_alexnet(case: Case) -> None:
    recorded = _recorded(case)
    found = recognise(_file(case, recorded["input_file"]))
    for option, result in _results(recorded, f"bgr2rgb={recorded.get('bgr2rgb')}").items():
        ours = dict(found.canonical)
        if option == "bgr2rgb=None":
            ours["features.0.weight"] = ours["features.0.weight"].flip(1)
        assert _described(_to("vissl_alexnet", ours)) == _listed(result["output"], "model_state_dict")
    _check_way_back(case, recorded, found)


def _check_way_back(case: Case, recorded: dict[str, Any], found: Recognised) -> None:
    """From the canonical names to the blobs of the file, and to a file of it that is read again."""
    file = _file(case, recorded["input_file"])
    blobs = tensors_at(file.content, found.where)
    back = load_table(found.format).from_canonical({**found.canonical, **found.heads})
    assert _same_tensors(back, {key: tensor for key, tensor in blobs.items() if key not in found.dropped})


def alexnet(case: Case) -> None:
    recorded = _recorded(case)
    found = recognise(_file(case, recorded["input_file"]))
    assert found.format == ("rotnet" if "rotnet" in case.name.lower() else "deepcluster_alexnet")
    assert _described(_to("vissl_alexnet", found.canonical)) == _listed(recorded["output"], "model_state_dict")
    back = load_table(found.format).from_canonical({**found.canonical, **found.heads})
    tensors = tensors_at(_file(case, recorded["input_file"]).content, found.where)
    assert _same_tensors(back, {key: tensor for key, tensor in tensors.items() if key not in found.dropped})


def moco(case: Case) -> None:
    """MoCo's own script keeps the counters and the head, as 'stem.fc'; we leave both out."""
    recorded = _recorded(case)
    found = recognise(_file(case, recorded["input_file"]))
    assert (found.format, found.network) == ("moco", "query")
    wanted = _listed(recorded["output"], "model")
    ours = _described(_to("detectron2", found.canonical))
    assert ours == {key: value for key, value in wanted.items() if COUNTER not in key and "stem.fc" not in key}
    assert len(ours) == len(_without_counters(found.canonical))


def detectron2_names(case: Case) -> None:
    """Every tensor of Detectron2's model is found in our file by its suffix matching, and each of ours is used."""
    recorded = _recorded(case)
    if "matched" not in recorded:
        return caffe2_names(recorded)
    tensors = dict(build(_resnet_of(recorded["checkpoint_keys"])).module.state_dict())
    used = set(recorded["matched"].values())
    here = _to("detectron2", tensors)
    assert set(here) == set(recorded["checkpoint_keys"]) - set(recorded.get("checkpoint_keys_unused", ())) == used
    model = {key: here[source] for key, source in recorded["matched"].items()}
    assert set(model) == set(recorded.get("model_keys_backbone", model))
    assert len(model) == len(_without_counters(tensors))
    extra = {key: torch.zeros(1) for key in recorded.get("other_model_keys", ())}
    found = recognise(WeightsFile(Path("d2.pth"), "0" * 64, {"model": model | extra}, "torch zip"))
    assert found.format == ("detectron2" if any("bottom_up" in key for key in model) else "detectron2_c4")
    assert _same_tensors(found.canonical, _without_counters(tensors))


def _resnet_of(keys: list[str]) -> str:
    """The ResNet behind Detectron2's names: 'res4.22.conv3.weight' is of the third stage, whose blocks are counted."""
    named = [f"layer{int(key[3]) - 1}{key[4:]}" for key in keys if re.match(r"res[2-5]\.", key)]
    return resnet_with(named)


def caffe2_names(recorded: dict[str, Any]) -> None:
    """Detectron2's own renaming of Caffe2 blobs agrees with ours, from Caffe2 to Detectron2.

    The blobs of a detector's other parts, which it renames as well, are no weights of a backbone.
    """
    pairs = {
        key: name
        for key, name in zip(recorded["in"], recorded["out"], strict=True)
        if re.match(r"(conv1|res_conv1|res[2-5]|fc1000|pred)_", key)
    }
    tensors: Tensors = {
        key: torch.full((2, 3, 7, 7) if key == "conv1_w" else (2,), float(number)) for number, key in enumerate(pairs)
    }
    found = recognise(WeightsFile(Path("c2.pkl"), "0" * 64, {"blobs": tensors}, "pickle"))
    ours = _to("detectron2", found.canonical)
    for key, name in pairs.items():
        if key not in found.dropped and key not in found.heads:
            assert float(ours[name].flatten()[0]) == float(tensors[key].flatten()[0])
    assert len(ours) == len(pairs) - len(set(pairs) & {*found.dropped, *found.heads})


def helpers(case: Case) -> None:
    """A prefix goes away at the beginning of a key and nowhere else."""
    recorded = _recorded(case)["replace_module_prefix"]
    prefix = recorded.get("prefix", "_feature_blocks.")
    begins = {key for key in recorded["in"] if key.startswith(prefix)}
    assert {key.removeprefix(prefix) for key in begins} <= set(recorded["out"])
    split = load_table("vissl").split(
        {key.replace(prefix, "_feature_blocks."): torch.zeros(1) for key in recorded["in"]}
    )
    others = {key.replace(prefix, "_feature_blocks.") for key in set(recorded["in"]) - begins}
    assert set(split.canonical) <= {key.removeprefix(prefix) for key in begins}
    assert others <= set(split.unknown)
    assert len(split.canonical) + len(split.unknown) == len(recorded["in"])


PATTERNS = {
    "08_weight_conversion/vissl*/*": vissl,
    "08_weight_conversion/caffe2_resnet*": caffe2_resnet,
    "08_weight_conversion/caffe2_alexnet*": caffe2_alexnet,
    "08_weight_conversion/alexnet_*": alexnet,
    "08_weight_conversion/moco_*": moco,
    "08_weight_conversion/detectron2_*": detectron2_names,
    "08_weight_conversion/helpers*": helpers,
}
