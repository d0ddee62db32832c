import numpy as np
import pytest
import torch
from helpers.training_samples import batch_of, network, random_rows, setup_for, step_of

from sslbench.errors import UsageError
from sslbench.methods import rotnet


def test_label_k_is_k_quarter_turns_counter_clockwise():
    images = random_rows(3, 2, 4, 4)
    turned, labels = rotnet.rotations(torch.from_numpy(images))
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    for i, (label, image) in enumerate(zip(labels.tolist(), turned.numpy(), strict=True)):
        wanted = images[i % 3]
        for _ in range(label):  # the right column becomes the top row
            wanted = np.stack([channel.T[::-1] for channel in wanted])
        np.testing.assert_array_equal(image, wanted)


def test_accuracy_counts_what_the_head_names():
    setup = setup_for(network(), sizes=(32,))
    method = rotnet.Method(network(), rotnet.Config(), setup).eval()
    with torch.no_grad():
        method.head.weight.zero_()
        method.head.bias.copy_(torch.tensor([0.0, 0.0, 9.0, 0.0]))
    loss = method(batch_of(setup), step_of(0, setup))
    assert loss.parts["accuracy"].item() == 25
    wanted = np.log(3 + np.exp(9)) - 9 / 4
    assert loss.value.item() == pytest.approx(wanted, rel=1e-5)


def test_two_views_are_refused():
    backbone = network()
    with pytest.raises(UsageError, match="rotnet takes one view"):
        rotnet.Method(backbone, rotnet.Config(), setup_for(backbone))
