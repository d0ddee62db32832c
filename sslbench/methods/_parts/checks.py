"""Requirements of methods, checked before a method is built."""

from sslbench.errors import UsageError
from sslbench.train.method import Setup


def need_views(setup: Setup, count: int, *, method: str) -> None:
    """Require a number of views."""
    if len(setup.sizes) != count:
        raise UsageError(
            f"{method} takes {'one view' if count == 1 else f'{count} views'} of every image, "
            f"the augmentation makes {len(setup.sizes)}",
            f"Set augment={method} (published), or change the list augment.views.",
        )


def need_several_images(setup: Setup, *, method: str) -> None:
    """Require at least two images per forward pass, for methods that normalise over a batch."""
    if setup.batch_size < 2:
        raise UsageError(
            f"{method} normalises over the images of a batch, but a forward pass has one image",
            "Raise batch_size (or lower accumulate) so that every process has at least 2 images in a pass.",
        )


def need_view_pairs(setup: Setup, *, method: str) -> None:
    """Require at least two views."""
    if len(setup.sizes) < 2:
        raise UsageError(
            f"{method} compares views of one image, but the augmentation makes {len(setup.sizes)}",
            f"Set augment={method} (published), or change the list augment.views.",
        )


def need_teacher_views(setup: Setup, count: int, *, method: str) -> None:
    """Require views of a teacher, which come first and have one size, and another view for each."""
    if not 1 <= count <= len(setup.sizes) or len(setup.sizes) < 2 or len(set(setup.sizes[:count])) > 1:
        raise UsageError(
            f"{method} compares {count} teacher views of one size with others, the augmentation makes views of "
            f"{', '.join(str(size) for size in setup.sizes)} pixels",
            f"Set augment={method} (published), or method.teacher_views.",
        )


def need_negatives(setup: Setup, *, method: str) -> None:
    """Require at least two images in the forward passes of all processes, for methods that contrast images."""
    if setup.batch_size * setup.world < 2:
        raise UsageError(
            f"{method} compares the images of a batch with each other, but a forward pass has one image",
            "Raise batch_size (or lower accumulate) so that every pass has at least 2 images.",
        )
