"""Small real images on disk, each with content of its own."""

import itertools
import json
import multiprocessing

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import dataloader


@pytest.fixture(scope="session", autouse=True)
def deaths_are_seen_soon():
    """torch asks every five seconds for workers that died, which every test of a death would wait for."""
    ask = dataloader._MultiProcessingDataLoaderIter._try_get_data
    assert ask.__defaults__ == (5.0,)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ask, "__defaults__", (0.5,))
        yield


@pytest.fixture
def decoding_processes():
    """`decoding_processes()` is those that the test has started and that still run."""
    before = {child.pid for child in multiprocessing.active_children()}
    return lambda: [child for child in multiprocessing.active_children() if child.daemon and child.pid not in before]


@pytest.fixture
def picture():
    """`picture(path)` writes a 6 x 5 image that no other call writes; `picture(path, 7)` always the same one."""
    numbers = itertools.count(1000)

    def write(path, seed=None):
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(next(numbers) if seed is None else seed)
        Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)).save(path)
        return path

    return write


@pytest.fixture
def class_folders(picture):
    """`class_folders(root, cat=3, dog=2)` writes so many images into root/cat and root/dog."""

    def write(root, **counts):
        for name, n in counts.items():
            (root / name).mkdir(parents=True, exist_ok=True)
            for i in range(n):
                picture(root / name / f"{i}.png")
        return root

    return write


@pytest.fixture
def manifest(picture):
    """`manifest(path, {"a.png": [1], ...})` writes a COCO file with those categories and the images beside it."""

    def write(path, categories_of, names=("cat", "dog", "eel"), **image_keys):
        images, annotations = [], []
        for i, (file, categories) in enumerate(categories_of.items()):
            picture(path.parent / file)
            images.append({"id": i + 1, "file_name": file, **{k: v[i] for k, v in image_keys.items()}})
            for category in categories:
                marks = category if isinstance(category, dict) else {"category_id": category}
                annotations.append({"id": len(annotations) + 1, "image_id": i + 1, "bbox": [0, 0, 2, 2], **marks})
        categories = [{"id": i + 1, "name": name} for i, name in enumerate(names)]
        path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
        return path

    return write
