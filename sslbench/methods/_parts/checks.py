"""What methods ask of a run: one message when a method is built instead of an error in the middle of training."""

from sslbench.errors import UsageError
from sslbench.train.method import Setup


def need_views(setup: Setup, count: int, *, method: str) -> None:
    """Refuses augmentations with another number of views.

    Args:
        setup: its sizes are counted.
        count: of views.
        method: its name, which is also the name of the published augmentation.

    Raises:
        UsageError: naming both numbers.
    """
    if len(setup.sizes) != count:
        raise UsageError(
            f"{method} takes {'one view' if count == 1 else f'{count} views'} of every image, "
            f"the augmentation makes {len(setup.sizes)}",
            f"The published one is augment={method}; the list is augment.views.",
        )


def need_several_images(setup: Setup, *, method: str) -> None:
    """Refuses forward passes over one image where a method normalises over the images of a batch.

    Raises:
        UsageError: naming batch_size.
    """
    if setup.batch_size < 2:
        raise UsageError(
            f"{method} normalises over the images of a batch, but a forward pass has one image",
            "Raise batch_size (or lower accumulate) so that every process has at least 2 images in a pass.",
        )


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
