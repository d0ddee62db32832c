"""Files made to harm: each is refused, or read without harm, in a child process with little memory and time."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from sslbench.backbones.load import load_backbone
from sslbench.errors import SslbenchError, WeightsError
from sslbench.weights import save
from sslbench.weights.reading.files import read

SCRIPT = Path(__file__).with_name("hostile_pickles.py")
REFUSED = {
    "scalar with an address": "numpy dtype 'V8'",
    "scalar with an address, in a zip": "numpy dtype 'V8'",
    "storage longer than its member": "storage '0' has 64 bytes, not 1048576 values",
    "storage longer than its member, without stand-in": "storage '0' has 64 bytes, not 1048576 values",
    "storage longer than the file, legacy": "shorter than it should be",
    "one value expanded": "far beyond its own size",
    "tensor beyond its storage": "lies outside its storage",
    "lists again and again": "far beyond its own size",
    "bytes again and again": "far beyond its own size",
    "arrays again and again": "far beyond its own size",
    "key of 2^60 tuples": "a key of excessive size",
    "archive that unpacks to a gigabyte": "unpacks to 1,073,741,824",
    "extension": "registry of pickle extensions",
}
HARMLESS = {
    *("value of 2^60 lists", "set of 2^60 tuples", "number of 6,000 digits", "items is an attribute"),
    "half a character",
}


@pytest.fixture(scope="module")
def said():
    """Lines of a process that reads all attacks and then 500 random pickles."""
    words = [sys.executable, str(SCRIPT), "0", "500"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=1800, check=False)
    assert ran.returncode == 0, (ran.stdout[-300:], ran.stderr[-2000:])
    return ran.stdout.splitlines()


def test_every_attack_is_refused_or_read_without_harm(said):
    said = dict(line.split(": ", 1) for line in said if ": " in line)
    assert said.keys() == REFUSED.keys() | HARMLESS
    for name, why in REFUSED.items():
        assert said[name].startswith("refused: ") and why in said[name], (name, said[name])
    assert {name for name, what in said.items() if what == "read"} == HARMLESS


def test_random_pickles_harm_nothing(said):
    n_read, _, n_refused, _ = said[-1].split()
    assert int(n_read) > 25 and int(n_refused) > 250, "else they are all of one kind and prove little"


def odd_tensors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some of these are experimental
        ones = torch.ones(2, 2)
        return {
            "sparse": ones.to_sparse(),
            "csr": ones.to_sparse_csr(),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "quantised": torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8),
            "float8": ones.to(torch.float8_e4m3fn),
            "uint16": torch.ones(2, dtype=torch.uint16),
        }


@pytest.mark.parametrize("name", ["sparse", "csr", "nested", "quantised", "float8", "uint16"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_tensor_of_an_odd_kind_is_left_out_and_named(tmp_path, caplog, name, zipped):
    path = tmp_path / "w.pth"
    try:
        torch.save({"odd": odd_tensors()[name], "w": torch.ones(3)}, path, _use_new_zipfile_serialization=zipped)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"this torch does not write it: {error}")
    file = read(path)
    assert set(file.content) == {"w"} and torch.equal(file.content["w"], torch.ones(3))
    assert len(file.unreadable) == 1 and file.unreadable[0].startswith("'odd' (")
    assert "left out tensors of unsupported kinds: 'odd' (" in caplog.text


def test_float8_in_safetensors_is_left_out(tmp_path):
    from safetensors.torch import save_file

    save_file({"odd": torch.ones(2).to(torch.float8_e4m3fn), "w": torch.ones(3)}, tmp_path / "w.safetensors")
    file = read(tmp_path / "w.safetensors")
    assert set(file.content) == {"w"} and file.unreadable == ("'odd' (float8_e4m3fn)",)


def test_negated_and_conjugate_views_have_the_numbers_that_they_show(tmp_path):
    z = torch.complex(torch.arange(3.0), torch.arange(3.0) + 1)
    torch.save({"neg": z.conj().imag}, tmp_path / "neg.pth")
    torch.save({"conj": z.conj()}, tmp_path / "conj.pth")
    content = {**read(tmp_path / "neg.pth").content, **read(tmp_path / "conj.pth").content}
    assert content["neg"].tolist() == [-1.0, -2.0, -3.0]
    assert content["conj"].tolist() == z.conj().tolist()
    assert not content["neg"].is_neg() and not content["conj"].is_conj()


def test_text_that_no_terminal_shows_and_huge_numbers_do_not_come_out(tmp_path):
    torch.save({"state_dict": {"a\ud800": torch.ones(1)}, "epoch": 10**5000, "note": "\udfff"}, tmp_path / "w.pth")
    content = read(tmp_path / "w.pth").content
    assert set(content["state_dict"]) == {"a\\ud800"} and content["note"] == "\\udfff" and "epoch" not in content


def test_arrays_of_numbers_that_torch_lacks_are_left_out(tmp_path):
    np.savez(tmp_path / "w.npz", a=np.ones(2, np.uint32), b=np.ones(2, np.float32))
    assert read(tmp_path / "w.npz").unreadable == ("'a' (uint32)",)


@pytest.mark.parametrize(
    "metadata",
    [
        {"preprocessing": {"resize": 1}},
        {"preprocessing": "["},
        {"preprocessing": "[1]"},
        {"preprocessing": "[" * 100_000},
        {"preprocessing": '{"resize": ' + "1" * 5000 + "}"},
        {"preprocessing": json.dumps({"crop": [10**9, 10**9]})},
        {"preprocessing": json.dumps({"std": [0, 1, 1]})},
        {"preprocessing": '{"mean": [NaN, 0, 0]}'},
    ],
)
def test_a_transform_that_makes_no_sense_is_one_message(tmp_path, metadata):
    from sslbench.backbones.build import build

    save.save(
        tmp_path / "w.torch", build("resnet18w0.25").module.state_dict(), backbone="resnet18w0.25", metadata=metadata
    )
    with pytest.raises(WeightsError, match=r"w\.torch: metadata\.preprocessing"):
        load_backbone(str(tmp_path / "w.torch"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet50w64", "has 96,040,185,909 parameters, but the file holds 1"),
        ("timm:vit_giant_patch14_dinov2", "parameters, but the file holds 1"),
        ("resnet_bottleneck_999999999-1-1-1", "blocks; at most 1000"),
        ("timm:vit_tiny_patch16_224,depth=1000000", "depth=1000000 is larger than in any network"),
        ("timm:vit_tiny_patch16_224,patch_size=0", "cannot be built"),
        ("timm:no_such", "timm has no model"),
        ("resnet50,checkpoint_path=x", "is not an option"),
    ],
)
def test_a_short_file_does_not_make_a_large_network(tmp_path, name, message):
    save.save(tmp_path / "w.torch", {"conv1.weight": torch.zeros(1)}, backbone=name, metadata={})
    with pytest.raises(SslbenchError, match=message) as caught:
        load_backbone(str(tmp_path / "w.torch"))
    assert caught.value.exit_code == 1 and str(tmp_path / "w.torch") in caught.value.message
