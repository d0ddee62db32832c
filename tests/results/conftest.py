import pytest
from helpers.sample_record import sample


@pytest.fixture
def result():
    return sample()
