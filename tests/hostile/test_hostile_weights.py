"""Weights files that are damaged or made to harm are read or refused: no code of theirs runs, and no memory is lost."""

from hostile import weights_cases
from hostile.campaign import LONG, failures, report

MEMORY = 3 << 30


def test_weights(tmp_path):
    report(failures(weights_cases.weights_cases(n=LONG), tmp_path, memory=MEMORY))
