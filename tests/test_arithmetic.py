"""Rounding of float32 arithmetic: exact in evaluations, whatever a user has chosen by either interface of torch."""

import numpy as np
import pytest
import torch

from sslbench.arithmetic import arithmetic, float32_rounding
from sslbench.solvers.neighbours import nearest

CHOICES = {
    "nothing": lambda: None,
    "old, products": lambda: torch.set_float32_matmul_precision("high"),
    "old, bf16 on processors": lambda: torch.set_float32_matmul_precision("medium"),
    "old, convolutions off": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "new, products": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "new, all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "new, convolutions": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "new, processors": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
}


def switches():
    """What torch says of both interfaces, errors too."""
    backends = torch.backends
    read = {
        "products": torch.get_float32_matmul_precision,
        "convolutions": lambda: backends.cudnn.allow_tf32,
        "cuda": lambda: backends.cuda.matmul.fp32_precision,
        "cudnn": lambda: (backends.cudnn.conv.fp32_precision, backends.cudnn.rnn.fp32_precision),
        "mkldnn": lambda: (backends.mkldnn.matmul.fp32_precision, backends.mkldnn.conv.fp32_precision),
    }
    found = {}
    for name, each in read.items():
        try:
            found[name] = each()
        except (RuntimeError, AttributeError) as error:
            found[name] = type(error).__name__
    return found


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_is_overruled_and_restored(choice):
    if choice.startswith("new") and not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("torch before 2.9 has one interface")
    with arithmetic("cpu"):  # restores what the test changes
        torch.backends.cudnn.allow_tf32 = True
        CHOICES[choice]()
        before = switches()
        for device, tf32, expected in (("cuda", False, "ieee"), ("cuda", True, "tf32"), ("cpu", True, "ieee")):
            with arithmetic(device, tf32=tf32):
                assert float32_rounding() == expected or choice == "new, processors"
                assert "RuntimeError" not in switches().values(), "a compiler reads both interfaces"
            assert switches() == before
        eye = np.eye(4, dtype=np.float32)
        assert nearest(eye, eye, 1, metric="cosine", max_memory=0.1)[1].ravel().tolist() == [0, 1, 2, 3]
        if hasattr(torch.backends, "fp32_precision"):
            torch.backends.fp32_precision = "none"
