"""Parts in which networks are sharded."""

import timm
import torch
import two_processes
from torch.distributed.fsdp import FSDPModule  # noqa: TID251

from sslbench.backbones.build import build
from sslbench.distributed.parallel import blocks, wrap

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
