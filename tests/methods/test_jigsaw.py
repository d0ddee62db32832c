import numpy as np
import pytest
import torch
from helpers.training_samples import batch_of, network, setup_for, step_of

from sslbench.errors import UsageError
from sslbench.methods import jigsaw
from sslbench.methods._parts.masks import image_generators

SIZES = (16,) * 9
SMALL = {"permutations": 6, "hidden": 12}


def test_the_loss_is_the_cross_entropy_of_the_order():
    setup = setup_for(network(), sizes=SIZES, images=4)
    method = jigsaw.Method(network(), jigsaw.Config(**SMALL), setup).eval()
    batch = batch_of(setup)
    with torch.no_grad():
        found = method(batch, step_of(0, setup))
        generators = image_generators(0, batch, step_of(0, setup))
        labels = [int(torch.randint(6, (), generator=each)) for each in generators]
        terms, right = [], 0
        for i, label in enumerate(labels):
            order = method.permutations[label].tolist()
            layers = [method.patch_head(method.backbone(batch.views[k][i : i + 1])) for k in order]
            logits = method.classifier(torch.cat(layers, dim=1))[0].numpy().astype(np.float64)
            terms.append(np.log(np.exp(logits).sum()) - logits[label])
            right += int(logits.argmax() == label)
    assert found.value.item() == pytest.approx(np.mean(terms), rel=1e-5)
    assert found.parts["accuracy"].item() == pytest.approx(25 * right)


def test_permutations_are_different_orders_that_follow_from_the_seed():
    setup = setup_for(network(), sizes=SIZES)
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(jigsaw.Method(network(), jigsaw.Config(**SMALL), setup).permutations)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(found[0].sort(dim=1).values, torch.arange(9).expand(6, 9))
    distances = (found[0][:, None] != found[0]).sum(dim=2)
    assert distances[~torch.eye(6, dtype=torch.bool)].min() >= 8


@pytest.mark.parametrize("sizes", [(32,), (32, *SIZES), (16,) * 8])
def test_other_views_are_refused(sizes):
    with pytest.raises(UsageError, match="jigsaw takes the 9 patches of a 3 x 3 grid"):
        jigsaw.Method(network(), jigsaw.Config(), setup_for(network(), sizes=sizes))
