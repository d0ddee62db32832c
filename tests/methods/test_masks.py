"""Masks of patches, and vision transformers that get them."""

import numpy as np
import pytest
import torch
from helpers.training_samples import network
from hypothesis import given
from hypothesis import strategies as st

from sslbench.methods._parts import masks
from sslbench.methods._parts.vision_transformers import drop_samples, embed, run_blocks

VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


@given(rows=st.integers(3, 20), columns=st.integers(3, 20), share=st.floats(0, 0.9), seed=st.integers(0, 1000))
def test_masks_of_blocks_never_exceed_their_count(rows, columns, share, seed):
    torch.manual_seed(seed)
    counts = [share * rows * columns, 0, rows * columns / 2]
    found = masks.block_masks((rows, columns), counts, smallest=4, largest=rows * columns / 2)
    assert found.shape == (3, rows * columns)
    # A mask may end at the next whole patch: rectangles are added while it has less than its count.
    assert (found.sum(1) <= torch.tensor([np.ceil(c) for c in counts])).all()


def test_masks_of_blocks_nearly_reach_their_count():
    torch.manual_seed(0)
    found = masks.block_masks((14, 14), [80.0] * 500, smallest=4, largest=98).sum(1).float()
    assert found.mean() > 76
    assert found.max() <= 80


def test_a_mask_of_one_rectangle_is_a_rectangle():
    torch.manual_seed(0)
    for mask in masks.block_masks((14, 14), [30.0] * 50, smallest=29, largest=30).view(-1, 14, 14):
        first = mask.nonzero()[0]
        assert mask[tuple(first)]
    single = masks._add_block(mask.zero_(), 40, 30, 40, masks.random_numbers())
    rows, columns = mask.any(1), mask.any(0)
    assert mask.sum() == rows.sum() * columns.sum() == single


def test_the_masks_follow_from_the_state_of_torchs_generator():
    found = []
    for _ in range(2):
        torch.manual_seed(7)
        found.append(masks.block_masks((14, 14), [50.0] * 4, smallest=4, largest=98))
    assert torch.equal(*found)
    assert not torch.equal(found[0], masks.block_masks((14, 14), [50.0] * 4, smallest=4, largest=98))


def test_single_patches_are_masked_alike():
    torch.manual_seed(0)
    found = masks.random_masks(16, [4] * 4000)
    assert (found.sum(1) == 4).all()
    assert found.float().mean(0).numpy() == pytest.approx(np.full(16, 0.25), abs=0.03)


@pytest.mark.parametrize(
    "options", ["", ",dynamic_img_size=True", ",reg_tokens=2", ",class_token=False,global_pool=avg"]
)
def test_tokens_without_a_mask_are_those_of_the_network(options):
    vit = network(VIT + options).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(run_blocks(vit, embed(vit, images)), vit.fc_norm(vit.forward_features(images)))
        token = torch.full((1, 48), 3.0)
        none = torch.zeros(2, 16, dtype=torch.bool)
        assert torch.equal(embed(vit, images, none, token), embed(vit, images))
        mask = none.clone()
        mask[1, 5] = True
        changed = (embed(vit, images, mask, token) != embed(vit, images)).any(-1)
        assert changed.nonzero().tolist() == [[1, vit.num_prefix_tokens + 5]]


def test_dropped_samples_skip_a_branch_and_the_others_are_scaled():
    block = network(VIT + ",init_values=0.1").blocks[0].eval()
    x = torch.randn(10, 5, 48)
    with torch.no_grad():
        torch.testing.assert_close(drop_samples(block, x, 0.0), block(x))
        block.ls2 = torch.nn.Module()
        block.ls2.forward = lambda branch: branch * 0
        y = drop_samples(block, x, 0.35)  # 6 of 10 images
        branch = block.ls1(block.attn(block.norm1(x)))
    kept = (y != x).flatten(1).any(1)
    assert kept.sum() == 6
    torch.testing.assert_close(y[kept], (x + branch * 10 / 6)[kept])


def test_dropping_samples_keeps_the_mean():
    torch.manual_seed(0)
    block = network(VIT).blocks[0].eval()
    x = torch.randn(8, 3, 48)
    with torch.no_grad():
        attended = x + block.attn(block.norm1(x))
        block.mlp = torch.nn.Module()
        block.mlp.forward = torch.zeros_like
        mean = torch.stack([drop_samples(block, x, 0.5) for _ in range(3000)]).mean(0)
    assert (mean - attended).abs().mean() < 0.03 * (attended - x).abs().mean()
