"""Partial features: their writes as file servers need them."""

import os

import numpy as np

from sslbench.features import partial


def test_rows_are_written_as_clients_of_nfs_need_it(tmp_path, monkeypatch):
    """Files that are open for reading too, or written later, go back in whole pages, with rows of other machines."""
    complete, flags = tmp_path / "x.npy", []
    partial.create(complete, (6, 4), np.dtype(np.float32))
    own = os.open
    monkeypatch.setattr(os, "open", lambda path, flag, *rest: flags.append(flag) or own(path, flag, *rest))
    for alone in (True, False):
        flags.clear()
        layer = partial.opened(complete, 6, np.dtype(np.float32), alone=alone)
        layer.write(np.arange(3), np.ones((3, 4), np.float32))
        layer.flush()
        writing = [flag for flag in flags if flag & os.O_ACCMODE != os.O_RDONLY]
        assert len(writing) >= 3 and all(flag & os.O_ACCMODE == os.O_WRONLY for flag in writing)
        assert all(bool(flag & os.O_DSYNC) is not alone for flag in writing)
    assert layer.verify(np.arange(6)) == 0 and layer.states().tolist() == [1, 1, 1, 0, 0, 0]
