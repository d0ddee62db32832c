"""Folders of torch.distributed.checkpoint: whole tensors from the pieces of all ranks, and nothing from others."""

import io
import os
import pickle

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: TID251
from torch.distributed.checkpoint.metadata import (  # noqa: TID251
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from sslbench.errors import WeightsError
from sslbench.weights.reading.files import read

WHOLE = {"conv1.weight": torch.arange(24.0).reshape(4, 3, 2, 1), "bn1.num_batches_tracked": torch.tensor(7)}


def write(folder, ranks=2):
    """Write the folder as `ranks` processes do: each has a part of the rows, the first alone has the number."""
    folder.mkdir()
    described, stored, planned = {"epoch": BytesStorageMetadata()}, {}, {"epoch": ("epoch",)}
    files = [io.BytesIO() for _ in range(ranks)]
    for key, tensor in WHOLE.items():
        for outer in ("model", "optim"):
            name = f"{outer}.{key}"
            planned[name] = (outer, key)
            parts = tensor.chunk(ranks) if tensor.ndim else [tensor]
            chunks = []
            for rank, part in enumerate(parts):
                offset = torch.Size([rank * len(part), 0, 0, 0] if tensor.ndim else [])
                chunks.append(ChunkStorageMetadata(offset, part.shape))
                start = files[rank].tell()
                torch.save(part.clone(), files[rank])
                info = _StorageInfo(f"__{rank}_0.distcp", start, files[rank].tell() - start)
                stored[MetadataIndex(name, offset, rank)] = info
            described[name] = TensorStorageMetadata(TensorProperties(tensor.dtype), tensor.shape, chunks)
    for rank, file in enumerate(files):
        (folder / f"__{rank}_0.distcp").write_bytes(file.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata(described, planned, stored)))
    return folder


def test_pieces_of_all_ranks_make_whole_tensors_without_those_of_optimizers(tmp_path):
    file = read(write(tmp_path / "saved"))
    assert (file.container, file.content.keys(), len(file.sha256)) == ("distributed checkpoint", {"model"}, 64)
    assert all(torch.equal(file.content["model"][key], tensor) for key, tensor in WHOLE.items())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_writes_is_read(tmp_path):
    import torch.distributed.checkpoint as saving  # noqa: TID251

    saving.save({"model": dict(WHOLE), "epoch": 3}, checkpoint_id=tmp_path / "saved", no_dist=True)
    content = read(tmp_path / "saved").content
    assert all(torch.equal(content["model"][key], tensor) for key, tensor in WHOLE.items())


def test_a_folder_with_missing_or_damaged_files_is_refused_with_the_file(tmp_path):
    folder = write(tmp_path / "saved")
    part, about = folder / "__1_0.distcp", folder / ".metadata"
    data = part.read_bytes()
    changed = data.replace(WHOLE["conv1.weight"].chunk(2)[1].numpy().tobytes(), bytes(48))
    assert changed != data
    for content, message in (
        (changed, "checksum"),
        (data[:200], r"__1_0\.distcp"),
        (None, r"__1_0\.distcp, which is missing"),
    ):
        part.write_bytes(content) if content else part.unlink()
        with pytest.raises(WeightsError, match=message):
            read(folder)
    about.write_bytes(about.read_bytes()[:200])
    with pytest.raises(WeightsError, match=r"\.metadata cannot be read"):
        read(folder)
    about.unlink()
    part.write_bytes(data)
    with pytest.raises(WeightsError, match=r"no complete checkpoint: it has no \.metadata"):
        read(folder)


def test_pieces_that_do_not_fill_a_tensor_are_refused(tmp_path):
    folder = write(tmp_path / "saved")
    metadata = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 - written above
    index = next(index for index in metadata.storage_data if index.fqn == "model.conv1.weight")
    del metadata.storage_data[index]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(WeightsError, match=r"the pieces of 'model\.conv1\.weight' do not fit together"):
        read(folder)


def test_bytes_that_are_named_again_and_again_are_not_read(tmp_path):
    folder = write(tmp_path / "saved")
    metadata = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 - written above
    index, info = next(iter(metadata.storage_data.items()))
    metadata.storage_data |= {MetadataIndex(index.fqn, torch.Size([i, 0, 0, 0]), i): info for i in range(2, 99)}
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(WeightsError, match=r"__0_0\.distcp has fewer bytes than the pieces in it"):
        read(folder)


def test_files_outside_the_folder_are_not_opened(tmp_path):
    folder = write(tmp_path / "saved")
    metadata = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 - written above
    for info in metadata.storage_data.values():
        info.relative_path = "../" + info.relative_path
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(WeightsError, match="which is missing"):
        read(folder)


class Attack:
    def __reduce__(self):
        return os.system, ("echo attacked",)


def test_the_pickle_of_a_folder_is_not_run(tmp_path):
    folder = write(tmp_path / "saved")
    (folder / ".metadata").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(WeightsError, match=r"\.metadata: the file asks to call '(posix|nt)\.system'"):
        read(folder)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_one_file_of_a_folder_names_the_folder(tmp_path, name):
    folder = write(tmp_path / "saved")
    with pytest.raises(WeightsError, match="one file of a checkpoint of torch") as caught:
        read(folder / name)
    assert caught.value.remedy == f"Give the folder: {folder}"
    with pytest.raises(WeightsError, match="is a folder") as caught:
        read(tmp_path)
    assert caught.value.remedy == f"Did you mean {folder}?"


def test_networks_in_lists_are_read(tmp_path):
    torch.save([dict(WHOLE), {"lr": 0.1}], tmp_path / "list.pth")
    content = read(tmp_path / "list.pth").content
    assert torch.equal(content["0"]["conv1.weight"], WHOLE["conv1.weight"]) and content["1"] == {"lr": 0.1}
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    with pytest.raises(WeightsError, match="holds a list, not a dict of tensors"):
        read(tmp_path / "list.pth")
