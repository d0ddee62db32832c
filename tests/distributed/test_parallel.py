"""Several processes: messages, folders that the first lists for all, wrappers of networks."""

import contextlib
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers import runs, two_processes
from PIL import Image
from torch import distributed  # noqa: TID251
from torch.distributed.fsdp import FSDPModule  # noqa: TID251

from sslbench.backbones.build import build
from sslbench.data.formats import folder
from sslbench.data.open import open_data
from sslbench.distributed import messages
from sslbench.distributed.collectives import barrier, process_group_if_known, subgroup
from sslbench.distributed.messages import show_once, shown_elsewhere
from sslbench.distributed.parallel import blocks, whole, wrap
from sslbench.errors import DataError
from sslbench.evaluation import Request, RunSettings, encode, make_task, opening
from sslbench.methods._parts.vision_transformers import drop_samples, embed, give_blocks, run_blocks
from sslbench.pretraining.networks import with_sync_bn
from sslbench.train.state import moving_average

SYNCHRONISED = runs.settings("simclr", sync_bn=True, sync_bn_group=2)
VIT = {"img_size": 32, "patch_size": 8, "depth": 3, "embed_dim": 24, "num_heads": 2}


def test_blocks_of_transformers_and_of_residual_networks():
    vit = timm.create_model("vit_tiny_patch16_224", **VIT)
    assert set(blocks(vit)) == set(vit.blocks)
    resnet = build("resnet18w0.125", seed=0).module
    found = blocks(resnet)
    assert {block for stage in (resnet.layer1, resnet.layer2, resnet.layer3, resnet.layer4) for block in stage} <= set(
        found
    )
    assert found.index(resnet.layer1[0]) < found.index(resnet.layer1) if resnet.layer1 in found else True


def shards(rank):
    """Names of the units, types of parameters in a forward pass, and sizes of what a process holds."""
    torch.manual_seed(0)
    vit = timm.create_model("vit_tiny_patch16_224", **VIT)
    whole = sum(p.numel() for p in vit.parameters())
    wrap(vit, torch.device("cpu"), "fsdp", dtype=torch.bfloat16)
    seen = {}
    block = vit.blocks[1]
    block.attn.qkv.register_forward_pre_hook(
        lambda m, _: seen.update(linear=m.weight.dtype, others=vit.blocks[2].attn.qkv.weight)
    )
    block.norm1.register_forward_pre_hook(lambda m, _: seen.update(norm=m.weight.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vit(torch.zeros(2, 3, 32, 32)).sum().backward()
    return {
        "units": sorted(name for name, module in vit.named_modules() if isinstance(module, FSDPModule)),
        "types": (str(seen["linear"]), str(seen["norm"]), str(block.attn.qkv.weight.dtype)),
        "gradient": str(block.attn.qkv.weight.grad.dtype),
        "next block is sharded": hasattr(seen["others"], "device_mesh"),
        "share": sum(p.to_local().numel() for p in vit.parameters()) / whole,
    }


def test_one_block_is_whole_at_a_time_and_its_norms_stay_in_float32():
    for found in two_processes.run(shards):
        assert {"", "blocks.0", "blocks.1", "blocks.2"} <= set(found["units"])
        assert found["types"] == ("torch.bfloat16", "torch.float32", "torch.float32")
        assert found["gradient"] == "torch.float32"
        assert found["next block is sharded"]
        assert 0.49 < found["share"] < 0.51


def grouped(rank):
    """Sum over the group of this process, and the processes that share the statistics of a norm and of its average."""
    torch.manual_seed(0)
    alone = torch.tensor([rank + 1.0])
    distributed.all_reduce(alone, group=subgroup(1))
    method = with_sync_bn(torch.nn.Sequential(torch.nn.BatchNorm1d(3)), torch.device("cuda"), SYNCHRONISED, world=2)
    average = moving_average(method)
    ranks = [distributed.get_process_group_ranks(each[0].process_group) for each in (method, average)]
    return alone.item(), ranks, average[0].weight is not method[0].weight


def test_norms_share_statistics_in_groups_and_so_do_their_averages():
    for rank, found in enumerate(two_processes.run(grouped)):
        assert found == (rank + 1.0, [[0, 1], [0, 1]], True)


def dropped(rank):
    """Gradients of a network whose blocks leave out branches, sharded and whole, and whether another block is whole."""
    found, seen = [], []
    for strategy in ("fsdp", None):
        torch.manual_seed(0)
        vit = timm.create_model("vit_tiny_patch16_224", **VIT)
        give_blocks(vit, drop_samples)
        vit.forward = lambda images, vit=vit: run_blocks(vit, embed(vit, images), drop_path=0.4)
        if strategy:
            wrap(vit, torch.device("cpu"), strategy, block_methods=("drop_samples",))
            vit.blocks[1].attn.register_forward_hook(
                lambda *_, vit=vit: seen.append(hasattr(vit.blocks[2].mlp.fc1.weight, "device_mesh"))
            )
        torch.manual_seed(1)  # the same images and draws in both processes
        vit(torch.rand(6, 3, 32, 32)).square().sum().backward()
        found.append({name: whole(p.grad).numpy() for name, p in vit.named_parameters() if p.grad is not None})
    return found, seen


def test_blocks_that_are_called_by_another_method_are_sharded_too():
    for (sharded, expected), others in two_processes.run(dropped):
        assert others == [True]
        assert sharded.keys() == expected.keys() and any("blocks.2.mlp" in name for name in sharded)
        for name, gradient in sharded.items():
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


@contextlib.contextmanager
def patient():
    """Wait for a slow process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "_WAIT_SECONDS", 600.0)
        patch.setattr(messages, "_LINGER_SECONDS", 600.0)
        yield


def shown(rank, texts, first):
    """Messages that this process shows; `first` has the message before the other one, or None."""
    seen, text = [], texts[rank]
    with patient():
        if first == 1 - rank:
            barrier()
            show_once(text, lambda: seen.append(text))
        else:
            show_once(text, lambda: (rank == first and barrier(), seen.append(text)))
    return seen


@pytest.mark.parametrize("first", [None, 0, 1])
def test_the_same_text_is_shown_by_one(first):
    shown_first, shown_second = two_processes.run(shown, ["no such file"] * 2, first)
    assert shown_first + shown_second == ["no such file"]


def test_different_texts_are_all_shown():
    first, second = two_processes.run(shown, ["of the first", "of the second"], None)
    assert (first, second) == (["of the first"], ["of the second"])


def silent(rank):
    """Answer of the second process, and whether it came before the first one had shown its error."""
    with patient():
        if rank == 0:
            barrier()
            return show_once("of the first", lambda: None)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(shown_elsewhere()))
        thread.start()
        thread.join(0.3)
        early = list(answers)
        barrier()
        thread.join()
        return answers, early


def test_a_silent_process_stays_until_the_error_is_shown():
    assert two_processes.run(silent)[1] == ([True], [])


def test_without_other_processes_it_is_shown(monkeypatch):
    seen = []
    show_once("alone", lambda: seen.append(1))
    assert not shown_elsewhere()
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "2")  # contradictory
    show_once("alone", lambda: seen.append(2))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    show_once("no address", lambda: seen.append(3))
    assert seen == [1, 2, 3]


def mistaken(rank):
    """Exit code of a command with a mistake, and what it prints."""
    from sslbench.cli.main import main

    with patient(), contextlib.redirect_stderr(io.StringIO()) as printed, pytest.raises(SystemExit) as ended:
        main(["pretrain", "simclir"])
    return ended.value.code, printed.getvalue()


def test_a_mistake_is_printed_once():
    (first, one), (second, other) = two_processes.run(mistaken, join=False)
    assert (first, second) == (2, 2) and (one + other).count("there is no method called 'simclir'") == 1


@pytest.mark.long  # in short: test_a_mistake_is_printed_once
def test_torchrun_prints_a_mistake_once():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run([*launcher, "-m", "sslbench", "pretrain", "simclir"], capture_output=True, text=True)
    assert done.stderr.count("there is no method called 'simclir'") == 1
    assert "exitcode  : 2" in done.stderr and done.returncode == 1  # that of torchrun itself


ODD = os.fsdecode(b"odd \xff.png")
"""Name that is not UTF-8."""


@pytest.fixture
def images(tmp_path):
    for name in ("train/a/1.png", "train/b/2.png", f"train/b/{ODD}", "val/a/3.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path, "png")
    return tmp_path / "photos"


def seen(spec, **options):
    """What a process sees of each split."""
    return {
        name: (
            part.ids,
            part.target.classes,
            part.target.values.tolist(),
            part.notes,
            part.images.read(len(part.ids) - 1),
        )
        for name, part in open_data(spec, **options).items()
    }


def opened(rank, path, spec="{0}"):
    """Splits as a process sees them, and folders that it listed."""
    listed, walk = [], folder._walk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "_walk", lambda root, *rest: (listed.append(Path(root).name), walk(root, *rest)))
        return seen(spec.format(path), together=True), listed


def test_a_folder_is_listed_once(images):
    (first, listed), (second, others) = two_processes.run(opened, images)
    assert first == second == seen(str(images))
    assert listed == ["train", "val"] and others == []


def test_folders_of_several_sources_are_listed_once(images):
    (first, listed), (second, others) = two_processes.run(opened, images, "several:one={0},two={0}")
    assert first == second and len(first["train"][0]) == 6
    assert listed == ["train", "val"] * 2 and others == []


def evaluated(rank, path):
    """Ids that an evaluation and an extraction open, folders that a process listed, and groups that were joined."""
    listed, walk, joined = [], folder._walk, []
    request, run = Request("random", str(path), (make_task("knn", {}),), backbone="resnet18"), RunSettings(device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "_walk", lambda root, *rest: (listed.append(Path(root).name), walk(root, *rest)))
        for module in (opening, encode):
            patch.setattr(
                module, "process_group_if_known", lambda device: joined.append(device) or process_group_if_known(device)
            )
        data = opening.open_train_test(request, run)
        parts = encode._parts_to_encode(request, run, None)
    return [data.train.ids, data.test.ids, *(part.ids for part in parts.values())], listed, len(joined)


def test_evaluations_and_extractions_list_once(images):
    (first, listed, joined), (second, others, also) = two_processes.run(evaluated, images)
    assert first == second and len(first[0]) == 3
    assert listed == ["train", "val"] * 2 and others == []
    assert joined == also == 2  # the group is there while the data are opened


def failing(rank, path):
    try:
        open_data(str(path), together=True)
    except DataError as error:
        return str(error), error.printed_by_rank_0


def test_an_error_of_the_one_is_that_of_all(tmp_path):
    (first, printed), (second, silent) = two_processes.run(failing, tmp_path)
    assert first == second and "has no image" in first
    assert (printed, silent) == (False, True)
