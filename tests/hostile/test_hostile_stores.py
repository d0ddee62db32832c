"""Damaged feature stores are mended or named, and never give features of another shape or type."""

import numpy as np
import pytest
from hostile import child, store_cases, text_cases
from hostile.campaign import LONG, failures, report


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder of photos, and the store of their features."""
    folder = tmp_path_factory.mktemp("sound")
    text_cases.photos(folder)
    outcome = child.run(store_cases.EXTRACT, folder)
    assert outcome.code == 0, outcome.err
    return folder


def test_stores(sound, tmp_path):
    (file,) = (sound / "store").glob("*/*.npy")
    whole = np.load(file)

    def other_features(outcome, folder):
        """Complain of other features after a run that ended well."""
        if outcome.code:
            return ""
        found = np.load(folder / file.relative_to(sound))
        same = found.shape == whole.shape and found.dtype == whole.dtype and np.allclose(found, whole, atol=1e-5)
        return "" if same else f"other features, {found.dtype} {found.shape}"

    report(failures(store_cases.store_cases(sound, n=LONG), tmp_path, judges=(other_features,)))


def test_half_done_features_are_completed_whatever_was_damaged(sound, tmp_path):
    (file,) = (sound / "store").glob("*/*.npy")
    whole = np.load(file)

    def other_values(outcome, folder):
        if outcome.code:
            if outcome.code != 1 or "Run the same command again" not in outcome.err:
                return "not continued"
            again = child.run(store_cases.EXTRACT, folder)
            if again.code:
                return f"the second run ends with exit {again.code}: {again.err.strip()[-200:]}"
        found = np.load(folder / file.relative_to(sound))
        return "" if found.shape == whole.shape and np.allclose(found, whole, atol=1e-5) else "other values"

    cases = [case for case in store_cases.store_cases(sound, n=LONG) if case[0].startswith("half done")]
    report(failures(cases, tmp_path, judges=(other_values,)))
