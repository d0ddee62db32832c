"""Parts of methods: draws, heads, masks, queues."""

import math

import numpy as np
import pytest
import torch
from helpers import runs
from helpers.training_samples import network
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sslbench.methods import mae
from sslbench.methods._parts import masks
from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.masks import image_generators, update_generator, view_by_view
from sslbench.methods._parts.memory import sums_of
from sslbench.methods._parts.momentum import copy_of, cosine_momentum, update
from sslbench.methods._parts.networks import Prototypes, encode, mlp
from sslbench.methods._parts.vision_transformers import drop_samples, embed, initialise, run_blocks
from sslbench.train.method import Batch, Step


def test_a_copy_gets_no_gradient_no_noise_and_is_independent():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    copy = copy_of(module)
    assert not any(p.requires_grad for p in copy.parameters())
    assert all(p.requires_grad for p in module.parameters())
    x = torch.randn(4, 3)
    assert torch.equal(copy(x), copy(x))
    assert module[1].p == 0.5
    with torch.no_grad():
        module[0].weight.zero_()
    assert copy[0].weight.any()


def test_an_update_moves_parameters_and_leaves_buffers():
    module, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    with torch.no_grad():
        other.weight.fill_(5)
        other.running_mean.fill_(7)
    update(module, other, 0.75)
    assert module.weight.tolist() == [2, 2, 2]
    assert module.running_mean.tolist() == [0, 0, 0]
    update(nn.Flatten(), nn.Flatten(), 0.5)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_momentum_goes_from_start_to_end_along_a_cosine(start, end, where):
    assert cosine_momentum(start, end, 0) == pytest.approx(start)
    assert cosine_momentum(start, end, 1) == pytest.approx(end)
    assert cosine_momentum(start, end, 0.5) == pytest.approx((start + end) / 2)
    assert cosine_momentum(start, end, where) == pytest.approx(
        1 - (1 - start) * (math.cos(math.pi * where) + 1) / 2 if end == 1 else cosine_momentum(start, end, where)
    )
    assert min(start, end) - 1e-12 <= cosine_momentum(start, end, where) <= max(start, end) + 1e-12


@pytest.mark.parametrize("on_gpu", [False, True])
def test_sums_by_place_are_the_same_on_either_device_and_allowed_in_deterministic_runs(on_gpu):
    class OnGpu(torch.Tensor):
        is_cuda = True  # the way of a GPU, on the processor

    rows, place = torch.randn(50, 3), torch.randint(4, (50,))
    expected = torch.stack([rows[place == i].sum(dim=0) for i in range(5)])
    torch.use_deterministic_algorithms(True)
    try:
        found = [sums_of(rows.as_subclass(OnGpu) if on_gpu else rows, place, 5) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0].as_subclass(torch.Tensor), expected)


def test_losses_leave_autocast_and_half_precision():
    @in_float32
    def product(x, *, others, named):
        assert not torch.is_autocast_enabled("cpu")
        return x @ others[0], others[1][0].dtype, named["a"].dtype, named["n"]

    half, double = torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, dtype, other, number = product(half, others=[torch.ones(2, 2), (double,)], named={"a": half, "n": 3})
        assert torch.is_autocast_enabled("cpu")
    assert (value.dtype, dtype, other, number) == (torch.float32, torch.float64, torch.float32, 3)


@pytest.mark.parametrize("separate", [False, True])
def test_vision_transformers_begin_with_xaviers_distribution(separate):
    vit = network("timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=1,embed_dim=96,num_heads=3")
    initialise(vit, class_token_std=0.5, separate_qkv=separate)
    fans = {"attn.qkv": (96, 96 if separate else 288), "attn.proj": (96, 96), "mlp.fc1": (96, 384)}
    for name, (fan_in, fan_out) in fans.items():
        layer = vit.blocks[0].get_submodule(name)
        bound = math.sqrt(6 / (fan_in + fan_out))
        assert 0.98 * bound < layer.weight.abs().max() <= bound
        assert not layer.bias.any()
    projection = vit.patch_embed.proj
    assert 0.98 < projection.weight.abs().max() / math.sqrt(6 / (3 * 64 + 96)) <= 1
    assert 0.3 < vit.cls_token.std() < 0.7


def test_a_run_counts_started_epochs_and_completed_ones_before_an_update():
    assert [Step(0, total, 10).epochs for total in (1, 10, 11, 20)] == [1, 1, 2, 2]
    assert [Step(index, 20, 10).epoch for index in (0, 9, 10, 19)] == [0, 0, 1, 1]
    assert [Step(index, 20, 10).where for index in (0, 10, 19)] == [0, 0.5, 0.95]


def numbers(seed, indices, index):
    batch = Batch((), None, torch.tensor(indices))
    return [torch.rand(2, generator=each).tolist() for each in image_generators(seed, batch, Step(index, 20, 10))]


def test_an_image_has_the_same_numbers_wherever_it_stands():
    assert numbers(0, [5, 3, 8], 4) == [numbers(0, [image], 4)[0] for image in (5, 3, 8)]


def test_images_updates_and_seeds_have_their_own_numbers():
    rows = [*numbers(0, [5, 3], 4), *numbers(0, [5, 3], 5), *numbers(1, [5, 3], 4), *numbers(0, [5], -10)]
    assert len({tuple(row) for row in rows}) == 7
    shared = [torch.rand(1, generator=update_generator(0, Step(index, 20, 10))).item() for index in (4, 4, 5)]
    assert shared[0] == shared[1] != shared[2]


@pytest.mark.parametrize("views", [1, 2])
def test_rows_of_views_stand_as_the_views_do(views):
    images = [torch.randn(4, 3) for _ in range(views)]
    assert torch.equal(view_by_view(torch.stack(images).unbind(1)), torch.cat(images))


def test_the_seed_of_a_run_is_that_of_its_draws(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(mae, "image_generators", lambda seed, *rest: seen.append(seed) or image_generators(seed, *rest))
    runs.run("mae", tmp_path / "run", limit=16, seed=7, epochs=1)
    assert set(seen) == {7}


@pytest.mark.parametrize(
    ("widths", "options", "wanted"),
    [
        ((4, 2), {}, ["Linear"]),
        ((4, 3, 2), {}, ["Linear", "ReLU", "Linear"]),
        ((4, 3, 2), {"activation": nn.GELU}, ["Linear", "GELU", "Linear"]),
        ((4, 3, 3, 2), {"norm": True}, ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear"]),
        ((4, 2), {"norm": True, "last_norm": "plain"}, ["Linear", "BatchNorm1d"]),
    ],
)
def test_layers_of_an_mlp(widths, options, wanted):
    head = mlp(widths, **options)
    assert [type(layer).__name__ for layer in head] == wanted
    assert head(torch.zeros(5, widths[0])).shape == (5, widths[-1])


def test_biases_and_the_last_norm():
    head = mlp((4, 3, 2), norm=True, last_norm="plain", bias=False, last_bias=True)
    first, _, _, last, norm = head
    assert first.bias is None
    assert last.bias is not None
    assert not norm.affine
    assert mlp((4, 2), last_norm="affine")[1].affine


def test_prototypes_side_by_side():
    prototypes = Prototypes(4, (3, 5))
    assert [scores.shape for scores in prototypes(torch.zeros(2, 4))] == [(2, 3), (2, 5)]
    prototypes.normalize_()
    for parameter in prototypes.parameters():
        torch.testing.assert_close(parameter.norm(dim=1), torch.ones(len(parameter)))


def test_views_are_encoded_in_order_with_one_pass_per_run_of_one_size():
    views = [torch.full((2, 1, size, size), float(i)) for i, size in enumerate((4, 4, 2, 4))]
    seen = []

    def network(images):
        seen.append(tuple(images.shape))
        return images.mean(dim=(2, 3))

    outputs = encode(network, views)
    assert [output.flatten().tolist() for output in outputs] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert seen == [(4, 1, 4, 4), (2, 1, 2, 2), (2, 1, 4, 4)]


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


def test_masks_of_blocks_are_those_drawn_patch_by_patch():
    """The oracle marks single patches of a grid; the masks themselves are numbers with a bit for each patch."""

    def drawn(rows, columns, count, numbers):
        grid, failures = np.zeros((rows, columns), bool), 0
        while failures < 10 and grid.sum() < count:
            area = numbers.uniform(4, min(count - grid.sum(), 30))
            aspect = np.exp(numbers.uniform(np.log(0.3), -np.log(0.3)))
            height, width = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
            failures += 1
            if height < rows and width < columns:
                top, left = numbers.randint(0, rows - height), numbers.randint(0, columns - width)
                inside = np.zeros_like(grid)
                inside[top : top + height, left : left + width] = True
                if 0 < (inside & ~grid).sum() <= count - grid.sum():
                    grid, failures = grid | inside, 0
        return grid.ravel()

    for seed in range(100):
        numbers = masks.random_numbers(torch.Generator().manual_seed(seed))
        wanted = np.stack([drawn(5, 9, count, numbers) for count in (0, 7.5, 40)])
        generator = torch.Generator().manual_seed(seed)
        found = masks.block_masks((5, 9), [0, 7.5, 40], smallest=4, largest=30, generator=generator)
        np.testing.assert_array_equal(found.numpy(), wanted)


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
