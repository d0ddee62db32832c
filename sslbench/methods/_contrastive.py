"""Requirements of methods that compare views and images with each other, checked when a method is built."""

from sslbench.errors import UsageError
from sslbench.train.method import Setup


def need_view_pairs(setup: Setup, *, method: str) -> None:
    """Refuses augmentations with a single view.

    Raises:
        UsageError: there is one view of every image.
    """
    if len(setup.sizes) < 2:
        raise UsageError(
            f"{method} compares views of one image, but the augmentation makes {len(setup.sizes)}",
            f"The published one is augment={method}; the list is augment.views.",
        )


def need_negatives(setup: Setup, *, method: str) -> None:
    """Refuses forward passes over a single image: there is nothing to contrast it with.

    Raises:
        UsageError: all processes together see one image at a time.
    """
    if setup.batch_size * setup.world < 2:
        raise UsageError(
            f"{method} compares the images of a batch with each other, but a forward pass has one image",
            "Raise batch_size (or lower accumulate) so that every pass has at least 2 images.",
        )
