import pytest
from sample_record import sample


@pytest.fixture
def result():
    return sample()
