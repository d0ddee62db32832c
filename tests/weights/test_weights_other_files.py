"""Pickles, numpy's files, the oldest torch's archives and VISSL's checkpoints in parts: read, or refused by name."""

import dataclasses
import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch

from sslbench.errors import WeightsError
from sslbench.weights.reading.files import read

ARRAYS = {"conv1_w": np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2), "conv1_b": np.array([1.5, -2], np.float32)}


def equal(tensors, arrays):
    return tensors.keys() == arrays.keys() and all(np.array_equal(tensors[k].numpy(), arrays[k]) for k in arrays)


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_every_protocol_are_read(tmp_path, protocol):
    path = tmp_path / "w.pkl"
    path.write_bytes(pickle.dumps({"blobs": ARRAYS, "model_iter": 7}, protocol=protocol))
    file = read(path)
    assert file.container == "pickle" and equal(file.content["blobs"], ARRAYS) and file.content["model_iter"] == 7
    assert file.stubbed == file.suspicious == ()


@dataclasses.dataclass
class Called:
    """Value that pickle makes by a call of a builtin."""

    builtin: type
    items: list

    def __reduce__(self):
        return self.builtin, (self.items,)


@pytest.mark.parametrize("protocol", [2, 4])  # of Python 2's names of the builtins, and of today's
def test_containers_that_a_pickle_makes_by_calls_are_read(tmp_path, protocol):
    others = {kind.__name__: Called(kind, ["a"]) for kind in (tuple, list, set, frozenset)}
    made = {"blobs": Called(dict, list(ARRAYS.items())), **others}
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(made, protocol=protocol))
    file = read(tmp_path / "w.pkl")
    assert equal(file.content["blobs"], ARRAYS) and file.stubbed == file.suspicious == ()


def test_a_pickle_of_python_2_and_an_old_numpy_is_read(tmp_path):
    # {'w': array([1., 2.])}, as Python 2 writes it: byte strings, and numpy.core where numpy._core is today
    numbers = struct.pack("<2f", 1, 2)
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
    dtype = b"cnumpy\ndtype\n(U\x02f4K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K\x02\x85" + dtype + b"\x89U" + bytes([len(numbers)]) + numbers + b"tb"
    (tmp_path / "w.pkl").write_bytes(b"\x80\x02}U\x01w" + array + state + b"s.")
    assert torch.equal(read(tmp_path / "w.pkl").content["w"], torch.tensor([1.0, 2.0]))


def test_arrays_of_another_byte_order_or_layout_are_read(tmp_path):
    odd = {"big": np.arange(3, dtype=">f4"), "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3))}
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(odd))
    np.savez(tmp_path / "w.npz", **odd)
    for name in ("w.pkl", "w.npz"):
        assert equal(read(tmp_path / name).content, odd)


def test_an_npy_file_that_holds_a_dict_is_read_without_numpys_unpickler(tmp_path, monkeypatch):
    np.save(tmp_path / "w.npy", ARRAYS, allow_pickle=True)
    monkeypatch.setattr(np, "load", None)
    file = read(tmp_path / "w.npy")
    assert file.container == "npy" and equal(file.content, ARRAYS)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files_are_read(tmp_path, save):
    save(tmp_path / "w.npz", **ARRAYS)
    file = read(tmp_path / "w.npz")
    assert file.container == "npz" and equal(file.content, ARRAYS)


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def evil(kind, path, marker):
    if kind == "pkl":
        path.write_bytes(pickle.dumps({"w": Payload(marker)}))
    elif kind == "pkl, protocol 0":
        path.write_bytes(pickle.dumps({"w": Payload(marker)}, protocol=0))
    elif kind == "npy":
        np.save(path.open("wb"), {"w": Payload(marker)}, allow_pickle=True)
    elif kind == "npz":
        np.savez(path.open("wb"), w=np.array([Payload(marker)], dtype=object))
    else:
        write_tar(path, {"storages": pickle.dumps(Payload(marker)), "tensors": b"", "pickle": b""})


@pytest.mark.parametrize("kind", ["pkl", "pkl, protocol 0", "npy", "npz", "tar"])
def test_none_of_these_files_runs_anything(tmp_path, kind):
    marker, path = tmp_path / "ran", tmp_path / "evil.bin"
    evil(kind, path, marker)
    with pytest.raises(WeightsError, match=r"evil\.bin: the file asks to call '\w+\.system'.*nothing was run"):
        read(path)
    assert not marker.exists()


def test_a_plain_pickle_is_run_only_with_trust(tmp_path):
    marker = tmp_path / "ran"
    (tmp_path / "w.pkl").write_bytes(pickle.dumps({"w": ARRAYS["conv1_w"], "x": Payload(marker)}))
    assert "w" in read(tmp_path / "w.pkl", trust_pickle=True).content and marker.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.pkl", pickle.dumps(ARRAYS)[:-20], "cannot be read as a pickle file"),
        ("w.pkl", pickle.dumps([1, 2]), "holds a list, not a dict"),
        ("w.npy", b"\x93NUMPY\x01\x00v\x00{'descr'", "cannot be read as a npy file"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        read(tmp_path / name)


def write_tar(path, members):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def oldest_torch(sizes=(2, 3), strides=(3, 1), offset=1, count=8):
    """The archive that torch.save wrote before 0.1.10: {'w': a view of a storage of 8 numbers}."""

    def dump(value):
        return pickle.dumps(value, protocol=2)

    kind = b"\x80\x02(K\x05U\x03cpuctorch\nFloatStorage\nt."
    storages = dump(1) + kind + struct.pack("<q", count) + np.arange(count, dtype="<f4").tobytes() + dump([])
    tensor = b"\x80\x02(K\x09K\x05ctorch\nFloatTensor\nt."
    geometry = struct.pack(f"<ii{len(sizes)}q{len(strides)}qq", len(sizes), 0, *sizes, *strides, offset)
    pickled = b"\x80\x02}U\x01wU\x019Qs."
    return {"sys_info": dump({}), "storages": storages, "tensors": dump(1) + tensor + geometry, "pickle": pickled}


def test_an_archive_of_the_oldest_torch_is_read(tmp_path):
    write_tar(tmp_path / "w.pth", oldest_torch())
    file = read(tmp_path / "w.pth")
    assert file.container == "torch tar"
    assert torch.equal(file.content["w"], torch.arange(8.0)[1:7].reshape(2, 3))
    transposed = oldest_torch(sizes=(3, 2), strides=(1, 3), offset=0)
    write_tar(tmp_path / "w.pth", transposed)
    assert torch.equal(read(tmp_path / "w.pth").content["w"], torch.arange(6.0).reshape(2, 3).T)


@pytest.mark.parametrize("wrong", [{"offset": 3}, {"offset": -1}, {"sizes": (4, 3)}, {"strides": (-3, 1)}])
def test_a_tensor_outside_its_storage_is_refused(tmp_path, wrong):
    write_tar(tmp_path / "w.pth", oldest_torch(**wrong))
    with pytest.raises(WeightsError, match="lies outside its storage"):
        read(tmp_path / "w.pth")


def model(trunk, heads, **more):
    return {"classy_state_dict": {"base_model": {"model": {"trunk": trunk, "heads": heads}, **more}}}


def write_slices(folder, tensors, heads, name=lambda path: str(path)):
    parts = folder / "model_layers"
    parts.mkdir()
    listed = ({}, {})
    for number, (key, tensor) in enumerate([*tensors.items(), *heads.items()]):
        torch.save({"type": "slice", "weight": tensor}, parts / f"{number}.torch")
        listed[key in heads][key] = name(parts / f"{number}.torch")
    torch.save({"type": "slice_list", **model(*listed)}, folder / "model.torch")
    return folder / "model.torch"


TRUNK = {"_feature_blocks.conv1.weight": torch.arange(6.0).reshape(2, 3), "_feature_blocks.bn1.bias": torch.ones(2)}
HEADS = {"0.clf.0.weight": torch.full((2, 2), 3.0)}


@pytest.mark.parametrize("name", [str, lambda path: f"/another/machine/{path.parent.name}/{path.name}"])
def test_a_sliced_vissl_checkpoint_is_put_together_wherever_it_was_copied(tmp_path, name):
    found = read(write_slices(tmp_path, TRUNK, HEADS, name)).content["classy_state_dict"]["base_model"]["model"]
    assert found["trunk"].keys() == TRUNK.keys() and found["heads"].keys() == HEADS.keys()
    assert all(torch.equal(found["trunk"][key], TRUNK[key]) for key in TRUNK)


def test_a_missing_part_and_a_part_alone_are_named(tmp_path):
    path = write_slices(tmp_path, TRUNK, HEADS)
    with pytest.raises(WeightsError, match=r"1\.torch is one slice of a VISSL checkpoint, not the whole"):
        read(tmp_path / "model_layers" / "1.torch")
    (tmp_path / "model_layers" / "1.torch").unlink()
    with pytest.raises(WeightsError, match=r"lists '.*1\.torch', which exists neither at that path nor beside it"):
        read(path)


def write_shards(folder, world=3):
    """A conv and a bias flattened and cut into three; a head that is flattened by itself."""

    def cut(tensors):
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        size = -(-len(flat) // world)
        padded = torch.cat([flat, torch.full((size * world - len(flat),), -1.0)])
        pads = [max(0, min(size, size * (rank + 1) - len(flat))) for rank in range(world)]
        return padded.chunk(world), pads

    def meta(path, names, tensors, pad, buffers=()):
        flat = {"names": names, "shapes": [t.shape for t in tensors], "numels": [t.numel() for t in tensors]}
        entry = {"fsdp_path": path, "params": {"flat_param_0": {**flat, "padding": pad}}}
        entry |= {"no_broadcast_optim_state": False, "shared_param_info": []}
        return {"param_metadata": [entry], "buffer_names": list(buffers)}

    weight, bias, mean = torch.arange(10.0).reshape(5, 2), torch.tensor([20.0, 21.0]), torch.tensor([0.5])
    head = torch.tensor([[30.0, 31.0]])
    pieces, pads = cut([weight, bias])
    head_pieces, head_pads = cut([head])
    for rank in range(world):
        names = ["_fpw_module.conv1.weight", "bn1.bias"]
        base = {
            "model": {
                "trunk": {"_feature_blocks.flat_param_0": pieces[rank], "_feature_blocks.bn1.running_mean": mean},
                "heads": [{"flat_param_0": head_pieces[rank]}],
            },
            "meta": {
                "trunk": meta(
                    "_feature_blocks", names, [weight, bias], pads[rank], ["_feature_blocks.bn1.running_mean"]
                ),
                "heads": [meta("", ["clf.0.weight"], [head], head_pads[rank])],
            },
        }
        torch.save({"type": "shard", "classy_state_dict": {"base_model": base}}, folder / f"model_shard{rank}.torch")
    shards = [f"model_shard{rank}.torch" for rank in range(world)]
    torch.save({"type": "shard_list", "shards": shards}, folder / "model.torch")
    return {"conv1.weight": weight, "bn1.bias": bias, "bn1.running_mean": mean}, {"0.clf.0.weight": head}


@pytest.mark.parametrize("world", [1, 3])
def test_a_sharded_vissl_checkpoint_is_put_together_without_fairscale(tmp_path, world):
    trunk, heads = write_shards(tmp_path, world)
    found = read(tmp_path / "model.torch").content["classy_state_dict"]["base_model"]["model"]
    assert found["trunk"].keys() == {f"_feature_blocks.{key}" for key in trunk}
    assert all(torch.equal(found["trunk"][f"_feature_blocks.{key}"], tensor) for key, tensor in trunk.items())
    assert found["heads"].keys() == heads.keys() and torch.equal(
        found["heads"]["0.clf.0.weight"], heads["0.clf.0.weight"]
    )


def test_shards_that_do_not_fit_each_other_are_refused(tmp_path):
    write_shards(tmp_path)
    shard = torch.load(tmp_path / "model_shard1.torch")
    shard["classy_state_dict"]["base_model"]["model"]["trunk"]["_feature_blocks.flat_param_0"] = torch.ones(1)
    torch.save(shard, tmp_path / "model_shard1.torch")
    with pytest.raises(WeightsError, match=r"the parts of .*model\.torch cannot be put together") as caught:
        read(tmp_path / "model.torch")
    assert "convert_sharded_checkpoint.py" in caught.value.remedy
