"""Parts in which networks are sharded."""

import numpy as np
import timm
import torch
from helpers import two_processes
from torch.distributed.fsdp import FSDPModule  # noqa: TID251

from sslbench.backbones.build import build
from sslbench.distributed.parallel import blocks, whole, wrap
from sslbench.methods._parts.vision_transformers import drop_samples, embed, give_blocks, run_blocks

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
