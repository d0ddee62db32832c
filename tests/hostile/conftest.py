"""What most commands import and keep, before the first case."""

import pytest
from hostile import child, text_cases


@pytest.fixture(scope="session", autouse=True)
def sound_command(tmp_path_factory):
    """Run one command without the limits of the cases, which are meant for what it does after its imports."""
    folder = tmp_path_factory.mktemp("first")
    child.prepare([*text_cases.PIXELS, "--data", str(text_cases.photos(folder))], folder)
