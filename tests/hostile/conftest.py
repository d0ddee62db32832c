"""What the children of hostile tests share: modules that were imported once, before they are forked."""

import pytest
from hostile import child, text_cases


@pytest.fixture(scope="session", autouse=True)
def heavy_modules(tmp_path_factory):
    """Import here what commands import: a child then begins in milliseconds."""
    folder = tmp_path_factory.mktemp("first")
    data = text_cases.photos(folder)
    eval_network = (
        "eval",
        "knn",
        "--weights",
        "random",
        "--backbone",
        "resnet18w0.25",
        "--no-floors",
        "--workers",
        "0",
    )
    for words in (
        [*text_cases.PIXELS, "--data", str(data)],
        [*eval_network, "k=1", "--resize", "32", "--crop", "32", "--data", str(data)],
        ["check-data", str(data)],
        ["leaderboard", "results"],
    ):
        outcome = child.run(words, folder, seconds=300)
        assert outcome.code == 0, outcome.err
        child.preload(outcome.modules)
