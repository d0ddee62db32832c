"""Losses of lightly, where it is installed, that `tests/golden` has no recorded values of."""

import pytest
import torch
from helpers.training_samples import made

from sslbench.methods import aim, emp_ssl, lejepa, mmcr, smog, vicregl, wmse

losses = pytest.importorskip("lightly.loss", reason="lightly is not installed: pip install lightly")


def same_value_and_gradient(inputs, ours, theirs):
    found = []
    for loss in (ours, theirs):
        x = inputs.clone().requires_grad_()
        value = loss(x).squeeze()
        value.backward()
        found.append((value.detach(), x.grad))
    torch.testing.assert_close(*(value for value, _ in found), rtol=1e-6, atol=0)
    torch.testing.assert_close(*(gradient for _, gradient in found), rtol=0, atol=1e-6 * float(found[0][1].abs().max()))


@pytest.fixture
def views():
    """Embeddings of 3 views of 24 images."""
    return torch.randn(3, 24, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_wmse(views):
    theirs = losses.WMSELoss(embedding_dim=8, w_size=24, num_samples=3)
    whole = torch.arange(24)[None]
    same_value_and_gradient(views, lambda x: wmse.whitening_loss(x, whole), lambda x: theirs(x.flatten(0, 1)))


def test_lejepa(views):
    theirs = losses.LeJEPALoss(lambda_param=0.02, sigreg_num_vectors=16)
    torch.manual_seed(0)
    directions = torch.randn(8, 16, dtype=torch.float64)
    directions = directions / directions.norm(dim=0)

    def ours(x):
        return 0.98 * lejepa.prediction_loss(x, 2) + 0.02 * lejepa.sigreg(x, directions)

    def lightly(x):
        torch.manual_seed(0)
        return theirs(global_proj=x[:2], local_proj=x[2:])

    same_value_and_gradient(views, ours, lightly)


def test_vicregl_of_views(views):
    theirs = losses.VICRegLLoss(alpha=1)
    places, grids = torch.zeros(3, 24, 3, 3, 8, dtype=torch.float64), torch.zeros(3, 24, 3, 3, 2)

    def ours(x):
        invariance, variance, covariance = vicregl.view_terms(tuple(x), 2)
        return 25 * invariance + 25 * variance + covariance

    def lightly(x):
        pairs = list(zip(x, places, strict=True))
        return theirs(pairs[:2], list(grids[:2]), pairs[2:], list(grids[2:]))

    same_value_and_gradient(views, ours, lightly)


def test_vicregl_of_places(views):
    """Only the invariance: variances are taken over the images, and lightly sorts the pairs of each by distance.

    All places are paired, as lightly keeps no more pairs by embedding than by position.
    """
    generator = torch.Generator().manual_seed(1)
    places = torch.randn(2, 24, 3, 3, 8, dtype=torch.float64, generator=generator)
    boxes = 32 * torch.rand(2, 24, 4, dtype=torch.float64, generator=generator)
    centres = tuple(vicregl.place_centres(each, (3, 3)) for each in boxes)
    grids = [each.view(24, 3, 3, 2) for each in centres]
    theirs = losses.VICRegLLoss(alpha=0, mu_param=0, nu_param=0, num_matches=(9, 9))
    same_value_and_gradient(
        places,
        lambda x: 25 * vicregl.place_terms(tuple(x.flatten(2, 3)), centres, (9, 9))[0],
        lambda x: theirs(list(zip(views[:2], x, strict=True)), grids),
    )


def test_mmcr(views):
    """lightly takes embeddings as they are, so they have length 1."""
    x, targets = torch.nn.functional.normalize(views, dim=2), torch.nn.functional.normalize(views.flip(0), dim=2)
    theirs = losses.MMCRLoss(lmda=0.0)
    found = theirs(x.transpose(0, 1), targets.transpose(0, 1))
    torch.testing.assert_close(mmcr.mmcr_loss(x, targets), found)


def test_emp_ssl(views):
    """lightly adds the coding rate where the authors' code subtracts it."""
    z = torch.nn.functional.normalize(views, dim=2)
    theirs, rate = losses.EMPSSLLoss(tcr_eps=0.2, inv_coef=20.0), losses.EMPSSLLoss(tcr_eps=0.2, inv_coef=0.0)
    wanted = theirs(list(z)) - 2 * rate(list(z))
    torch.testing.assert_close(emp_ssl.emp_ssl_loss(z, invariance_weight=20.0, epsilon=0.2), wanted)


def test_groups_of_smog():
    heads = pytest.importorskip("lightly.models.modules.heads")
    rows = torch.randn(3, 24, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z, start, predictions = (
        torch.nn.functional.normalize(rows[0], dim=1),
        torch.nn.functional.normalize(rows[1][:5]),
        rows[2],
    )
    theirs = heads.SMoGPrototypes(start.clone(), beta=0.9)
    labels = theirs.assign_groups(z)
    assert torch.equal(smog.group_of(z, start), labels)

    def ours(z):
        return smog.group_loss(predictions, smog.moved_groups(start, z, 0.9), labels, 0.1)

    def lightly(z):
        logits = theirs(predictions, theirs.get_updated_group_features(z), temperature=0.1)
        return torch.nn.functional.cross_entropy(logits, labels)

    same_value_and_gradient(z, ours, lightly)


def test_aim():
    """The network and its head by lightly, with the same weights; lightly has no loss of it."""
    from lightly.models.modules import AIMPredictionHead, MaskedCausalVisionTransformer

    plain = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": 3, "class_token": False}
    name = f"timm:vit_tiny_patch16_224,{','.join(f'{key}={value}' for key, value in plain.items())}"
    settings = aim.Config(head_dim=32, head_depth=2)
    method, _, batch = made(aim, settings, sizes=(32,), backbone=f"{name},global_pool=avg,fc_norm=False")
    network = MaskedCausalVisionTransformer(**plain, global_pool="avg", fc_norm=False, num_classes=0, qk_norm=False)
    network.load_state_dict(method.backbone.state_dict())
    head = AIMPredictionHead(48, 192, 32, 2)
    head.load_state_dict(dict(zip(head.state_dict(), method.decoder.state_dict().values(), strict=True)))
    for norm in (module for module in head.modules() if isinstance(module, torch.nn.LayerNorm)):
        norm.eps = 1e-6

    prefixes = torch.arange(1, 9)
    theirs = head(network.forward_features(batch.views[0], mask=torch.arange(16) >= prefixes[:, None]))
    ours = method.decoder(method._tokens(batch.views[0], prefixes))
    torch.testing.assert_close(ours, theirs)
    for outputs in (ours, theirs):
        outputs.square().sum().backward()
    torch.testing.assert_close(method.backbone.blocks[0].attn.qkv.weight.grad, network.blocks[0].attn.qkv.weight.grad)
