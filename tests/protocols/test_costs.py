"""The library that searches neighbours is the faster one of the machine, if the search is long."""

import pytest

from sslbench.protocols._parts import costs
from sslbench.runtime.cost import Cost
from sslbench.runtime.machine import Speed
from sslbench.solvers.neighbours import Engine


@pytest.mark.parametrize(
    ("search", "operations", "library"), [(40e9, 1e12, "torch"), (130e9, 1e12, "faiss"), (40e9, 1e9, "faiss")]
)
def test_a_slow_faiss_is_passed_over_in_a_long_search(search, operations, library, monkeypatch):
    monkeypatch.setattr(costs, "speed", lambda: Speed(single=150e9, double=75e9, search=search, traffic=1e10))
    assert costs.fastest_engine("cpu", operations) == Engine(library)
    assert costs.fastest_engine("cuda:1", operations) == Engine("torch", "cuda:1")


def test_estimates_follow_the_choice():
    slow, fast = (Speed(single=150e9, double=75e9, search=search, traffic=1e10) for search in (40e9, 130e9))
    assert slow.seconds(Cost(search=1e12)) == pytest.approx(10) and fast.seconds(Cost(search=1.3e12)) == pytest.approx(
        10
    )
