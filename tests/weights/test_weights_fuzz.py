"""Damaged and hostile files: one clear message, or all that was in them; never half of it, and nothing is run."""

import contextlib
import io
import os
import pickle
import random
import resource
import struct
import tarfile
import time
import zipfile

import numpy as np
import pytest
import torch
from helpers.offenders import offenders
from safetensors.torch import save_file
from torch import nn

from sslbench.errors import WeightsError
from sslbench.weights.fill import fill
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.reading.files import read

CONTAINERS = ("zip", "legacy", "safetensors", "pkl", "npy", "npz", "tar")
PER_CONTAINER = 30  # times seven containers: more than 200 truncated and 200 flipped files
SECONDS = 5  # of processor time: a busy machine is no failure


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same small network in every container."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    tensors = Tiny().state_dict()
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    torch.save({"state_dict": tensors, "epoch": 3}, folder / "zip")
    torch.save({"state_dict": tensors, "epoch": 3}, folder / "legacy", _use_new_zipfile_serialization=False)
    save_file(tensors, folder / "safetensors")
    (folder / "pkl").write_bytes(pickle.dumps({"model": arrays}, protocol=2))
    with (folder / "npy").open("wb") as file:
        np.save(file, np.array(arrays, dtype=object), allow_pickle=True)
    with (folder / "npz").open("wb") as file:
        np.savez(file, **arrays)
    with tarfile.open(folder / "tar", "w") as archive:
        for name, content in tar_members(tensors).items():
            add(archive, name, content)
    return {name: (folder / name).read_bytes() for name in CONTAINERS}


def add(archive, name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def tar_members(tensors):
    """What torch 0.1 wrote: storages, tensors on them, and a pickle that refers to the tensors by number."""
    storages, described = [pickle.dumps(len(tensors), 2)], [pickle.dumps(len(tensors), 2)]
    for number, tensor in enumerate(tensors.values()):
        kind = torch.LongStorage if tensor.dtype == torch.int64 else torch.FloatStorage
        storages.append(pickle.dumps((number, "cpu", kind), 2) + struct.pack("<q", tensor.numel()))
        storages.append(tensor.numpy().tobytes())
        sizes = (*tensor.shape, *tensor.stride(), 0)
        described.append(pickle.dumps((number, number, None), 2))
        described.append(struct.pack(f"<i4x{len(sizes)}q", tensor.dim(), *sizes))
    storages.append(pickle.dumps([], 2))  # views of storages
    info = {"protocol_version": 1000, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 8}}
    keys = dict(zip(tensors, range(len(tensors)), strict=True))

    class Numbered(pickle.Pickler):
        def persistent_id(self, value):
            return value.number if isinstance(value, Reference) else None

    buffer = io.BytesIO()
    Numbered(buffer, 2).dump({"state_dict": {name: Reference(number) for name, number in keys.items()}})
    return {
        "sys_info": pickle.dumps(info, 2),
        "pickle": buffer.getvalue(),
        "storages": b"".join(storages),
        "tensors": b"".join(described),
    }


class Reference:
    def __init__(self, number):
        self.number = number


def outcome(path):
    """'refused' or 'read'; anything else, a hang or a half-filled network fails the test."""
    module = Tiny()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    expected = {name: tuple(tensor.shape) for name, tensor in before.items()}
    started = time.process_time()
    try:
        file = read(path)
        found = recognise(file, expected=expected, format="plain")
        report = fill(module, found.canonical, what=str(path))
    except WeightsError as error:
        assert str(path) in error.message or "weights" in error.message, error.message
        assert len(error.message) < 1200 and "Traceback" not in error.message
        assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items()), "half filled"
        return "refused"
    finally:
        assert time.process_time() - started < SECONDS
    assert report.loaded == report.total and not report.partial
    return "read"


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_whole_file_is_read(tmp_path, files, container):
    path = tmp_path / "w.bin"
    path.write_bytes(files[container])
    assert outcome(path) == "read", "else the damaged ones prove nothing"


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_truncated_file_is_refused(tmp_path, files, container):
    generator = random.Random(1)
    whole = files[container]
    path = tmp_path / "w.bin"
    for _ in range(PER_CONTAINER):
        length = generator.randrange(len(whole))
        path.write_bytes(whole[:length])
        # a tar archive may lose the padding at its end without losing a number
        assert outcome(path) == "refused" or (container == "tar" and length > len(whole) - 10240)


@pytest.mark.parametrize("reach", [200, None], ids=["near its start", "anywhere"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_file_with_a_flipped_bit_is_refused_or_read_whole(tmp_path, files, container, reach):
    generator = random.Random(2)
    path = tmp_path / "w.bin"
    for _ in range(PER_CONTAINER):
        damaged = bytearray(files[container])
        damaged[generator.randrange(len(damaged[:reach]))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        outcome(path)


class Call:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def text(value):
    return b"\x8c" + bytes([len(value)]) + value.encode()


def hostile(marker):
    """Pickles that would make a file called `marker` if anything in them were run."""
    shell = f"touch {marker}"
    inner = pickle.dumps(Call(os.system, shell))
    made = f"open({str(marker)!r}, 'w')"
    memo = b"\x80\x04" + text("os") + b"\x94" + text("system") + b"\x9400h\x00h\x01\x93" + text(shell) + b"\x85R."
    return {
        "os.system": pickle.dumps({"w": Call(os.system, shell)}),
        "eval": pickle.dumps({"w": Call(eval, made)}, protocol=2),
        "nested reduce": pickle.dumps(Call(getattr, Call(__import__, "os"), "system")),
        "reduce of a reduce": pickle.dumps({"a": [Call(map, Call(eval, made), [1])]}),
        "pickle inside": pickle.dumps(Call(pickle.loads, inner)),
        "stack global": memo,
        "dotted stack global": b"\x80\x04" + text("collections") + text("abc.sys.modules") + b"\x93.",
        "dict of a class": b"\x80\x02cos\nsystem\n}" + b"U\x04nameU\x03abcsb.",
        "extension": b"\x80\x02\x82\x01.",
        "build with setstate": b"\x80\x02cbuiltins\neval\n("
        + b"X"
        + struct.pack("<I", len(made))
        + made.encode()
        + b"tR.",
        "torch.load": pickle.dumps(Call(torch.load, str(marker))),
        "numpy load": pickle.dumps(Call(np.load, str(marker), None, True)),
    }


def containers(pickled):
    """The pickle as the heart of every kind of file that has one."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/version", "3\n")
        file.writestr("archive/byteorder", "little")
    head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    head += pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, 2)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as file:
        empty = pickle.dumps(0, 2)
        info = pickle.dumps({"protocol_version": 1000, "little_endian": True, "type_sizes": {}}, 2)
        for name, content in {"sys_info": info, "pickle": pickled, "storages": empty, "tensors": empty}.items():
            add(file, name, content)
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "|O", "fortran_order": False, "shape": ()})
    npz = io.BytesIO()
    with zipfile.ZipFile(npz, "w") as file:
        file.writestr("a.npy", array.getvalue() + pickled)
    return {
        "zip": archive.getvalue(),
        "legacy": head + pickled + pickle.dumps([], 2),
        "tar": tar.getvalue(),
        "pkl": pickled,
        "npy": array.getvalue() + pickled,
        "npz": npz.getvalue(),
    }


@pytest.mark.parametrize("container", sorted(containers(b".")))
def test_nothing_in_a_hostile_file_runs(tmp_path, container):
    path = tmp_path / "evil.bin"

    def runs_nothing(name):
        marker = tmp_path / f"{name.replace(' ', '_')}_ran"  # a word of the shell
        path.write_bytes(containers(hostile(marker)[name])[container])
        try:
            content = read(path).content
        except WeightsError as error:
            assert len(str(error)) < 1200
        else:
            assert not any(callable(value) for value in content.values())
            assert name in ("dict of a class", "dotted stack global")
        assert not marker.exists()

    assert offenders(hostile("x"), runs_nothing) == []


def test_the_payloads_do_run_in_an_ordinary_unpickler(tmp_path):
    ran = set()
    for name, pickled in hostile(tmp_path / "ran").items():
        with contextlib.suppress(Exception):  # what they raise does not matter
            pickle.loads(pickled)  # noqa: S301
        if (tmp_path / "ran").exists():
            ran.add(name)
            (tmp_path / "ran").unlink()
    assert {"os.system", "eval", "pickle inside", "stack global", "build with setstate"} <= ran


def test_only_trust_pickle_runs_code_and_says_so(tmp_path, caplog):
    marker = tmp_path / "ran"
    path = tmp_path / "w.pth"
    torch.save({"state_dict": Tiny().state_dict(), "extra": Call(os.system, f"touch {marker}")}, path)
    with pytest.raises(WeightsError, match="nothing was run"):
        read(path)
    assert not marker.exists()
    file = read(path, trust_pickle=True)
    assert marker.exists() and "conv.weight" in file.content["state_dict"]
    assert f"running the code that {path} refers to" in caplog.text


def test_trust_pickle_runs_nothing_where_plain_reading_does(tmp_path, caplog):
    torch.save(Tiny().state_dict(), tmp_path / "w.pth")
    read(tmp_path / "w.pth", trust_pickle=True)
    assert caplog.text == ""


@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_module_is_read_as_its_state_dict_and_no_code_of_it_runs(tmp_path, zipped):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Linear(4, 4, bias=False)))
    model.register_buffer("passing", torch.ones(2), persistent=False)
    model[2].register_parameter("missing", None)
    model[2][0].weight = model[0].bias  # tied
    model.extra = Call(os.system, f"touch {tmp_path / 'ran'}")
    with torch.no_grad():
        model[1].running_mean.normal_()
    path = tmp_path / "w.pth"
    torch.save(model, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(WeightsError, match="nothing was run"):
        read(path)
    del model.extra
    torch.save(model, path, _use_new_zipfile_serialization=zipped)
    torch.save({"net": model, "again": model[1]}, tmp_path / "in.pth", _use_new_zipfile_serialization=zipped)
    expected = model.state_dict()
    inside = read(tmp_path / "in.pth").content
    for found in (read(path).content, inside["net"]):
        assert list(found) == list(expected) and all(torch.equal(found[key], expected[key]) for key in expected)
    assert torch.equal(inside["again"]["running_mean"], model[1].running_mean)
    assert not (tmp_path / "ran").exists()


def test_a_trusted_file_may_hold_the_whole_module_or_fail_with_one_message(tmp_path):
    torch.save(nn.Linear(2, 3), tmp_path / "module.pth")
    assert set(read(tmp_path / "module.pth", trust_pickle=True).content) == {"weight", "bias"}
    torch.save({"a": Call(int, "no number")}, tmp_path / "fails.pth")
    with pytest.raises(WeightsError, match=r"unpickling .* failed: ValueError"):
        read(tmp_path / "fails.pth", trust_pickle=True)


@pytest.mark.parametrize("container", ["zip", "legacy", "pkl"])
def test_one_opcode_cannot_take_all_memory(tmp_path, container):
    stub = b"cevil\nThing\n0"  # the safe reader of torch stops here, and the restricted one goes on
    for opcode in (b"]r" + struct.pack("<I", 2**26), b"\x96" + struct.pack("<Q", 2**30)):
        path = tmp_path / "w.bin"
        path.write_bytes(containers(b"\x80\x05" + stub + opcode + b"0}.")[container])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with contextlib.suppress(WeightsError):
            read(path)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kilobytes; it asks for 1 GB"


def test_a_zip_archive_that_says_it_is_compressed_and_is_not_is_refused(tmp_path, files):
    damaged = bytearray(files["zip"])
    entry = damaged.index(b"PK\x01\x02")
    damaged[entry + 10] = 8  # the method of its first member: deflated
    path = tmp_path / "w.bin"
    path.write_bytes(damaged)
    with pytest.raises(WeightsError, match="is damaged"):
        read(path)


def test_one_number_fits_whether_it_has_a_dimension_or_not(tmp_path):
    tensors = Tiny().state_dict()
    torch.save(tensors | {"norm.num_batches_tracked": torch.tensor([7])}, tmp_path / "w.pth")
    assert outcome(tmp_path / "w.pth") == "read"
