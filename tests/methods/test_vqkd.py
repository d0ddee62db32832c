import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
from helpers.training_samples import gradient, made, network, random_rows, setup_for, step_of, train
from torch.nn import functional

from sslbench.errors import UsageError
from sslbench.methods import vqkd
from sslbench.methods._parts.tokenizers import read_tokenizer
from sslbench.weights.heads import METADATA, head_tensors, layer_kinds
from sslbench.weights.save import save

VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"
COARSE = VIT.replace("patch_size=8", "patch_size=16")
CONFIG = vqkd.Config(teacher="random", teacher_backbone=VIT, codes=12, code_dim=6, decoder_depth=1)

make = functools.partial(made, vqkd, CONFIG, sizes=(32,), backbone=VIT)


def length(row):
    return row / np.linalg.norm(row)


def test_the_losses_agree_with_loops_and_their_gradients_with_differences():
    rows, wanted, codes = random_rows(3, 4), random_rows(3, 4, seed=1), random_rows(3, 4, seed=2)

    def reproduction(x):
        return np.mean([1 - length(a) @ length(b) for a, b in zip(x, wanted, strict=True)])

    def commitment(x):
        return np.mean([(length(a) - b) ** 2 for a, b in zip(x, codes, strict=True)])

    cases = {vqkd.reproduction_loss: (wanted, reproduction), vqkd.commitment_loss: (codes, commitment)}
    for loss, (other, oracle) in cases.items():
        value, ours = gradient(lambda x, loss=loss, other=other: loss(x, torch.from_numpy(other)), rows)
        assert value == pytest.approx(oracle(rows), rel=1e-12)
        for index in np.ndindex(rows.shape):
            step = np.zeros_like(rows)
            step[index] = 1e-6
            difference = (oracle(rows + step) - oracle(rows - step)) / 2e-6
            assert ours[index] == pytest.approx(difference, abs=1e-7)


def test_codes_move_to_the_directions_of_their_rows():
    codes = torch.from_numpy(np.array([length(row) for row in random_rows(4, 3)]))
    rows = np.array([length(row) for row in random_rows(9, 3, seed=1)])
    numbers = np.array([0, 0, 0, 2, 2, 3, 3, 3, 3])  # none of code 1
    sums = np.array([rows[numbers == code].sum(0) for code in range(4)])
    found = vqkd.moved_codes(codes, torch.from_numpy(sums), torch.tensor([3.0, 0.0, 2.0, 4.0]), 0.9).numpy()
    for code in range(4):
        mean = length(rows[numbers == code].mean(0)) if code != 1 else codes[1].numpy()
        assert found[code] == pytest.approx(length(0.9 * codes[code].numpy() + 0.1 * mean))


def test_the_loss_reproduces_the_teacher_from_codes_and_draws_rows_to_them():
    method, setup, batch = make()
    method.loss(batch, step_of(0, setup))  # sets the codes
    with torch.no_grad():
        ours = method.loss(batch, step_of(1, setup))
        images, codes = batch.views[0], method.codebook.weight
        rows = functional.normalize(method.projector(method.backbone.forward_features(images)[:, 1:]), dim=-1)
        nearest = codes[(rows[:, :, None] - codes).square().sum(-1).argmin(-1)]
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in (setup.normalisation.mean, setup.normalisation.std))
        teachers_images = (images * std + mean - 0.5) / 0.5  # the teacher's preprocessing
        wanted = method.teacher.forward_features(teachers_images)[:, 1:]
        cosines = functional.cosine_similarity(method.decoder(nearest), wanted, dim=-1)
    torch.testing.assert_close(ours.parts["reproduction"], 1 - cosines.mean())
    torch.testing.assert_close(ours.value, 1 - cosines.mean() + (rows - nearest).square().mean())


def test_a_code_passes_its_gradient_to_the_row_that_it_replaces():
    method, setup, batch = make()
    method.loss(batch, step_of(0, setup)).value.backward()
    assert method.projector[0].weight.grad.abs().max() > 0 and method.codebook.weight.grad is None
    assert all(parameter.grad is None for parameter in method.teacher.parameters())


def test_codes_start_from_clusters_of_the_first_batch_and_move_once_an_update():
    method, setup, batch = make()
    method.loss(batch, step_of(0, setup))
    start = method.codebook.weight.clone()
    method.loss(batch, step_of(0, setup))  # a second pass of the same update
    assert torch.equal(method.codebook.weight, start)
    with torch.no_grad():
        tokens = method.backbone.forward_features(batch.views[0])[:, 1:]
        rows = functional.normalize(method.projector(tokens), dim=-1).flatten(0, 1)
    assert (rows @ start.T).max(1).values.mean() > (rows @ rows[:12].T).max(1).values.mean() - 0.05
    torch.testing.assert_close(start.norm(dim=1), torch.ones(12))
    method.after_update(step_of(0, setup))
    assert not torch.equal(method.codebook.weight, start)


def test_a_teacher_is_reproduced_better_with_every_update():
    method, setup, batch = make()
    losses = train(method, batch, setup, 20)
    assert losses[-1] < 0.7 * losses[0]


def test_beitv2_reads_the_tokenizer_of_a_run(tmp_path):
    method, setup, batch = make()
    train(method, batch, setup, 3)
    heads = method.eval().heads("student")
    kinds = {name: " ".join(layer_kinds(head)) for name, head in heads.items()}
    tensors = {k: v for name, head in heads.items() for k, v in head_tensors(name, head, head.state_dict()).items()}
    metadata = {METADATA: kinds, "preprocessing": json.dumps(setup.normalisation.record())}
    save(tmp_path / "t.torch", method.backbone.state_dict(), backbone=VIT, metadata=metadata, heads=tensors)
    tokenizer = read_tokenizer(str(tmp_path / "t.torch"), network(VIT), setup, method="beitv2")
    with torch.no_grad():
        rows = method.projector(method.backbone.forward_features(batch.views[0])[:, 1:])
    wanted = (functional.normalize(rows, dim=-1) @ method.codebook.weight.T).argmax(-1)
    assert torch.equal(tokenizer(batch.views[0]), wanted)


@pytest.mark.parametrize(("backbone", "changes", "message"), [
    ("resnet18w0.125", {}, "vqkd needs a plain vision transformer"),
    (VIT, {"teacher_backbone": "resnet18w0.125"}, "which the teacher resnet18w0.125 is not"),
    (VIT, {"teacher_backbone": COARSE}, r"has 2 x 2 patches .* the backbone 4 x 4"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, changes, message):
    net = network(backbone)
    with pytest.raises(UsageError, match=message):
        vqkd.Method(net, dataclasses.replace(CONFIG, **changes), setup_for(net, sizes=(32,), backbone=backbone))
