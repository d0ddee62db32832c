"""Reading files: what is in them comes out, what is none is refused by its name, and nothing in them is run."""

import argparse
import collections
import enum
import io
import os
import pickle
import random
import struct
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from sslbench.errors import WeightsError
from sslbench.weights.reading.files import read

TENSORS = {"conv1.weight": torch.arange(24.0).reshape(2, 3, 2, 2), "bn1.num_batches_tracked": torch.tensor(7)}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)


@pytest.fixture
def checkpoint(tmp_path):
    torch.save(TENSORS, tmp_path / "weights.pth")
    return tmp_path / "weights.pth"


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_torch_save_are_read(tmp_path, zipped):
    path = tmp_path / "w.pth"
    torch.save({"state_dict": TENSORS, "epoch": 3}, path, _use_new_zipfile_serialization=zipped)
    file = read(path)
    assert file.container == ("torch zip" if zipped else "torch legacy")
    assert equal(file.content["state_dict"], TENSORS) and file.content["epoch"] == 3
    assert file.stubbed == file.suspicious == () and len(file.sha256) == 64


def test_safetensors_are_read_with_their_metadata(tmp_path):
    save_file(TENSORS, tmp_path / "w.safetensors", metadata={"arch": "resnet50"})
    file = read(tmp_path / "w.safetensors")
    assert equal(file.content, TENSORS) and file.metadata == {"arch": "resnet50"} and file.container == "safetensors"


class Kind(enum.Enum):
    TRAIN = "train"


class AttrDict(dict):
    def __init__(self, *args, **keywords):
        super().__init__(*args, **keywords)
        self.__dict__ = self


@pytest.fixture
def foreign(monkeypatch):
    """Classes of a library that is there when the file is written and not when it is read."""
    module = types.ModuleType("vissl_like")
    for cls in (Kind, AttrDict):
        monkeypatch.setattr(cls, "__module__", "vissl_like")
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "vissl_like", module)
    return module


@pytest.mark.parametrize("zipped", [True, False])
def test_unknown_classes_become_inert_and_are_named_and_tensors_in_dicts_are_kept(
    tmp_path, foreign, zipped, monkeypatch
):
    content = {
        "classy_state_dict": AttrDict(base_model=AttrDict(model=TENSORS)),
        "phase": Kind.TRAIN,
        "args": argparse.Namespace(lr=0.1),
        "path": Path("/x"),
        "history": collections.deque([1, 2]),
        "counts": collections.defaultdict(list, a=[1]),
        "score": np.float64(0.5),
        "queue": np.arange(6, dtype=np.float32).reshape(2, 3),
        "metadata": collections.OrderedDict(a=1),
    }
    torch.save(content, tmp_path / "w.torch", _use_new_zipfile_serialization=zipped)
    monkeypatch.delitem(sys.modules, "vissl_like")
    file = read(tmp_path / "w.torch")
    assert equal(file.content["classy_state_dict"]["base_model"]["model"], TENSORS)
    assert torch.equal(file.content["queue"], torch.arange(6.0).reshape(2, 3)) and file.content["score"] == 0.5
    assert {"vissl_like.AttrDict", "vissl_like.Kind", "argparse.Namespace"} <= set(file.stubbed)
    assert file.suspicious == ()
    assert "vissl_like" not in sys.modules


def test_a_tensor_of_all_the_dimensions_that_torch_has_is_read(tmp_path):
    torch.save({"w": torch.ones([1] * 64)}, tmp_path / "w.torch")
    assert read(tmp_path / "w.torch").content["w"].shape == (1,) * 64


def test_a_module_that_is_named_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "sslbench_bomb.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    write_zip(tmp_path / "w.pth", b"\x80\x02}X\x01\x00\x00\x00acsslbench_bomb\nThing\n)\x81s.")
    assert read(tmp_path / "w.pth").stubbed == ("sslbench_bomb.Thing",)
    assert "sslbench_bomb" not in sys.modules


def write_zip(path, pickled):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")


class Payload:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def short(text):
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def payloads(marker):
    """Name -> (pickle, what the message must name)."""
    command = f"touch {marker}"
    write = f"open({str(marker)!r}, 'w')"
    system = os.system.__module__ + ".system"
    nested = pickle.dumps(Payload(os.system, command))
    return {
        "os.system": (pickle.dumps({"a": Payload(os.system, command)}), system),
        "eval": (pickle.dumps({"a": Payload(eval, write)}), "eval"),
        "exec, protocol 2": (pickle.dumps({"a": Payload(exec, write)}, protocol=2), "exec"),
        "open": (pickle.dumps(Payload(open, str(marker), "w")), "open"),
        "getattr": (pickle.dumps(Payload(getattr, "", "join")), "getattr"),
        "pickle in a pickle": (pickle.dumps(Payload(pickle.loads, nested)), "loads"),
        "torch loads bytes": (pickle.dumps(Payload(torch.storage._load_from_bytes, nested)), "_load_from_bytes"),
        "stack global": (
            b"\x80\x04" + short("os") + short("system") + b"\x93" + short(command) + b"\x85R.",
            "os.system",
        ),
        "dotted name": (
            b"\x80\x04" + short("os") + short("path.os.system") + b"\x93" + short(command) + b"\x85R.",
            "os",
        ),
        "inst opcode": (b"(" + short(command) + b"ios\nsystem\n.", "os.system"),
        "obj opcode": (b"(cos\nsystem\n" + short(command) + b"o.", "os.system"),
        "newobj": (b"\x80\x02csubprocess\nPopen\n" + short(command) + b"\x85\x81.", "subprocess.Popen"),
        "popen": (b"\x80\x02csubprocess\nPopen\n" + short(command) + b"\x85R.", "subprocess.Popen"),
        "unknown function": (b"\x80\x02cevil_module\nrun_me\n" + short(command) + b"\x85R.", "evil_module.run_me"),
    }


@pytest.mark.parametrize("name", sorted(payloads("x")))
@pytest.mark.parametrize("container", ["zip", "legacy"])
def test_a_file_that_calls_something_is_refused_naming_it_and_nothing_runs(tmp_path, name, container):
    marker = tmp_path / "ran"
    pickled, named = payloads(marker)[name]
    path = tmp_path / "evil.pth"
    if container == "zip":
        write_zip(path, pickled)
    else:
        magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + pickle.dumps(1001, protocol=2)
        info = pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, protocol=2)
        path.write_bytes(magic + info + pickled + pickle.dumps([], protocol=2))
    with pytest.raises(WeightsError) as caught:
        read(path)
    assert named in caught.value.message and "nothing was run" in caught.value.message
    assert not marker.exists()


def test_a_function_that_is_named_and_not_called_is_reported(tmp_path):
    write_zip(tmp_path / "w.pth", b"\x80\x02}" + short("a") + b"cos\nsystem\ns.")
    file = read(tmp_path / "w.pth")
    assert file.suspicious == ("os.system",) and file.content == {}


def test_a_pickle_cannot_change_what_it_is_allowed_to_call(tmp_path):
    state = b"N}" + short("__defaults__") + b"Ns\x86b"
    stub = b"cevil\nThing\n0"  # torch's own reader stops here, and the restricted one goes on
    write_zip(tmp_path / "w.pth", b"\x80\x02" + stub + b"ctorch._utils\n_rebuild_tensor_v2\n" + state + b"0}.")
    before = torch._utils._rebuild_tensor_v2.__defaults__
    assert before is not None
    with pytest.raises(WeightsError, match="sets the state of a PickledName"):
        read(tmp_path / "w.pth")
    assert torch._utils._rebuild_tensor_v2.__defaults__ == before


def test_a_dict_that_holds_itself_is_read_once(tmp_path):
    endless = {"w": torch.ones(2)}
    endless |= {"a": endless, "b": endless}
    for _ in range(60):
        endless = {"a": endless, "b": endless}
    torch.save(endless, tmp_path / "w.pth")
    file = read(tmp_path / "w.pth")
    assert file.content["a"] is file.content["b"]


def test_a_tar_archive_of_other_files_is_refused(tmp_path):
    with tarfile.open(tmp_path / "w.pth", "w") as archive:
        archive.addfile(tarfile.TarInfo("l\xfc\x9cF"), io.BytesIO())
    with pytest.raises(WeightsError, match="tar archive"):
        read(tmp_path / "w.pth")


def image(path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path, "JPEG")


def archive_of(name):
    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"x")

    return write


WRONG_FILES = {
    "empty": (lambda p: p.write_bytes(b""), "is empty"),
    "text": (lambda p: p.write_text("epoch,loss\n1,2\n"), "is text, not weights; its first line: epoch,loss"),
    "utf-8": (lambda p: p.write_text("é" * 3000), "is text"),
    "blank": (lambda p: p.write_text("\n\n"), "is text"),
    "lfs": (lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\noid x\n"), "git-lfs pointer"),
    "html": (lambda p: p.write_text("\n<!DOCTYPE html><html>404</html>"), "is a web page"),
    "jpeg": (image, "is a JPEG image"),
    "npy": (lambda p: np.save(p.open("wb"), np.zeros(3)), r"holds one array without a name \(3\)"),
    "zip": (archive_of("photo.jpg"), "zip archive with no weights; it holds photo.jpg"),
    "torchscript": (archive_of("m/constants.pkl"), "TorchScript"),
    "noise": (lambda p: p.write_bytes(random.Random(1).randbytes(5000)), "not a known kind of weights file"),
    "a list": (lambda p: torch.save([torch.ones(2)], p), "holds a list, not a dict"),
    "a tensor": (lambda p: torch.save(torch.ones(2), p), "holds a Tensor, not a dict"),
    "an optimiser": (lambda p: torch.save(torch.optim.SGD([torch.ones(1)]), p), r"whole pickled object \(.*SGD"),
    "meta": (lambda p: torch.save({"a": torch.empty(2, device="meta")}, p), "meta device"),
    "safetensors": (lambda p: p.write_bytes(struct.pack("<Q", 100) + b'{"a":'), "damaged safetensors"),
}


@pytest.mark.parametrize("name", sorted(WRONG_FILES))
def test_what_is_no_weights_file_is_refused_by_its_name(tmp_path, name):
    write, message = WRONG_FILES[name]
    path = tmp_path / "w.pth"
    write(path)
    with pytest.raises(WeightsError, match=message) as caught:
        read(path)
    assert str(path) in caught.value.message and "\n" not in caught.value.message


def test_a_mistyped_path_gets_the_nearest_name(checkpoint):
    with pytest.raises(WeightsError, match=r"there is no weights file .*weigths\.pth\nDid you mean 'weights\.pth'\?"):
        read(checkpoint.with_name("weigths.pth"))
    with pytest.raises(WeightsError, match=r"the folder .*nowhere does not exist"):
        read(checkpoint.parent / "nowhere" / "weights.pth")


def test_a_folder_is_refused_with_what_it_holds(checkpoint):
    with pytest.raises(WeightsError, match=r"is a folder, not a weights file\nDid you mean .*weights\.pth\?"):
        read(checkpoint.parent)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("change", ["cut", "flip"])
def test_damaged_files_give_a_clear_error_or_the_right_tensors(tmp_path, zipped, change):
    path, generator = tmp_path / "w.pth", random.Random(0)
    torch.save({"state_dict": TENSORS}, path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        if change == "cut":
            del data[generator.randrange(len(data)) :]
        else:
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
        try:
            read(path)
        except WeightsError:
            refused += 1
    assert refused > (58 if change == "cut" else 5)


def test_a_flipped_bit_in_a_tensor_is_noticed(tmp_path):
    path = tmp_path / "w.pth"
    torch.save({"a": torch.full((1000,), 3.0)}, path)
    data = bytearray(path.read_bytes())
    data[data.index(struct.pack("<f", 3.0) * 10) + 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsError, match="checksum of 'w/data/0'"):
        read(path)


def test_a_file_written_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(TENSORS, tmp_path / "w.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert equal(read(tmp_path / "w.pth").content, TENSORS)
