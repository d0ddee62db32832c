import functools

import pytest
import torch
from helpers.training_samples import made, step_of
from torch.nn import functional

from sslbench.errors import UsageError
from sslbench.methods import aim
from sslbench.methods._parts.masks import image_generators, patchify

CONFIG = aim.Config(head_dim=32, head_depth=2)
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"
PATCHES_ONLY = f"{VIT},class_token=False,global_pool=avg,fc_norm=False"


make = functools.partial(made, aim, CONFIG, sizes=(32,), backbone=PATCHES_ONLY)


def prefixes_of(batch, step):
    return [int(torch.randint(1, 16, (1,), generator=each)) for each in image_generators(0, batch, step)]


def attended(query, key, value, prefix):
    """Attention of each token in turn to those that it may see: (heads, n, d) each."""
    rows = []
    for i in range(query.shape[1]):
        seen = [j for j in range(query.shape[1]) if j <= i or j < prefix]
        weights = torch.softmax(query[:, i : i + 1] @ key[:, seen].mT / query.shape[-1] ** 0.5, dim=-1)
        rows.append(weights @ value[:, seen])
    return torch.cat(rows, 1)


@pytest.mark.parametrize("backbone", [PATCHES_ONLY, VIT])
def test_the_loss_is_that_of_predictions_patch_by_patch_from_those_before(backbone):
    """A class token comes first and belongs to the prefix."""
    method, setup, batch = make(backbone=backbone)
    step, terms = step_of(0, setup), []
    with torch.no_grad():
        ours = method(batch, step).value
        vit = method.backbone
        extra = vit.num_prefix_tokens
        for image, prefix in zip(batch.views[0], prefixes_of(batch, step), strict=True):
            patches = patchify(image[None], (8, 8))[0]
            errors = []
            for target in range(prefix, 16):
                x = vit._pos_embed(vit.patch_embed(image[None]))[0, : extra + target]  # later ones do not exist
                for block in vit.blocks:
                    qkv = block.attn.qkv(block.norm1(x)).view(len(x), 3, 3, 16).permute(1, 2, 0, 3)
                    mixed = attended(*qkv, extra + prefix).permute(1, 0, 2).reshape(len(x), 48)
                    x = x + block.attn.proj(mixed)
                    x = x + block.mlp(block.norm2(x))
                predicted = method.decoder(vit.norm(x[-1]) + method.positions[0, target - 1])
                pixels = patches[target]
                wanted = (pixels - pixels.mean()) / (pixels.var() + 1e-6).sqrt()
                errors.append(functional.mse_loss(predicted, wanted))
            terms.append(torch.stack(errors).mean())
    torch.testing.assert_close(ours, torch.stack(terms).mean(), rtol=1e-4, atol=1e-6)


def test_a_token_depends_on_no_later_patch():
    method, _, batch = make()
    images = batch.views[0].clone().requires_grad_()
    tokens = method._tokens(images, torch.full((8,), 3))
    tokens[:, 6, 0].sum().backward()
    touched = patchify(images.grad, (8, 8)).abs().sum(-1) > 0
    assert touched[:, :7].all() and not touched[:, 7:].any()


def test_prefixes_are_of_every_length_but_never_the_whole_image():
    method, setup, batch = make()
    drawn = [prefix for index in range(40) for prefix in prefixes_of(batch, step_of(index, setup))]
    assert set(drawn) == set(range(1, 16))
    assert not method.backbone.pos_embed.requires_grad


@pytest.mark.parametrize(("backbone", "message"), [
    ("resnet18w0.125", "aim needs a plain vision transformer"),
    (PATCHES_ONLY.replace("patch_size=8", "patch_size=32"), "the views have one patch"),
    (PATCHES_ONLY.replace("embed_dim=48", "embed_dim=42"), "no multiple of 4"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, message):
    with pytest.raises(UsageError, match=message):
        make(backbone=backbone)
