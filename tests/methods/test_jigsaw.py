import numpy as np
import pytest
import torch
from helpers import runs
from helpers.training_samples import batch_of, network, setup_for, step_of

from sslbench.errors import UsageError
from sslbench.methods import jigsaw
from sslbench.methods._parts.masks import image_generators

SIZES = (16,) * 9
ORDERS = np.array([[8, 7, 6, 5, 4, 3, 2, 1, 0], [1, 0, 3, 2, 5, 4, 7, 8, 6], [4, 5, 3, 1, 2, 0, 8, 6, 7]])
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


def with_file(path, values, permutations=3, **changes):
    np.save(path, values)
    config = jigsaw.Config(permutations=permutations, hidden=12, permutation_file=str(path), **changes)
    return jigsaw.Method(network(), config, setup_for(network(), sizes=SIZES)).permutations


@pytest.mark.parametrize("values", [ORDERS, ORDERS + 1, (ORDERS + 1).astype(np.uint8), ORDERS.astype(float)])
def test_published_orders_count_from_0_or_1(values, tmp_path):
    found = with_file(tmp_path / "orders.npy", values)
    assert found.dtype == torch.int64 and np.array_equal(found.numpy(), ORDERS)


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        (ORDERS[:2], {}, r"has 2 orders, and permutations is 3\nSet method.permutations=2."),
        (ORDERS[[0, 1, 0]], {}, "has an order twice"),
        (
            np.add(ORDERS, [[0], [1], [0]]),
            {},
            "row 1 of .* is no order of the numbers 0 to 8 or 1 to 9: 2 1 4 3 6 5 8 9 7",
        ),
        (ORDERS + 0.5, {}, "row 0 of .* is no order"),
        (ORDERS + 2, {}, "row 0 of .* is no order"),
        (ORDERS * np.nan, {}, "row 0 of .* is no order"),
        (ORDERS[:, :8], {}, r"holds int64 \(3, 8\), not numbers \(orders, 9\)"),
        (ORDERS.astype(str), {}, "holds <U21"),
        (np.array([{}], dtype=object), {}, "cannot be read as an array of orders"),
        (ORDERS, {"distance": "min"}, "distance=min has no effect on the orders of permutation_file"),
    ],
)
def test_files_of_other_things_than_orders_are_refused(values, changes, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        with_file(tmp_path / "orders.npy", values, **changes)


def test_a_damaged_archive_of_orders_is_refused(tmp_path):
    path = tmp_path / "orders.npz"
    path.write_bytes(b"PK\x03\x04" + bytes(40))
    config = jigsaw.Config(permutations=3, hidden=12, permutation_file=str(path))
    with pytest.raises(UsageError, match="cannot be read as an array of orders"):
        jigsaw.Method(network(), config, setup_for(network(), sizes=SIZES))


def test_a_run_is_not_continued_with_other_orders_of_a_file(tmp_path):
    path = tmp_path / "orders.npy"
    method = {"name": "jigsaw", "permutations": 3, "permutation_file": str(path), "hidden": 12}
    np.save(path, ORDERS)
    runs.run("jigsaw", tmp_path / "run", epochs=1, schedule={}, method=method)
    np.save(path, ORDERS + 1)  # other bytes; orders in a checkpoint would be continued with in silence
    with pytest.raises(UsageError, match=r"method\.permutation_file: [0-9a-f]{16}, now [0-9a-f]{16}"):
        runs.run("jigsaw", tmp_path / "run", epochs=1, schedule={}, method=method)
