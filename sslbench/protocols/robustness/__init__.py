"""Robustness of a classifier of frozen features: corruptions, other test sets, unknown classes, geometry.

The classifier is that of the protocol linear, trained once on the unchanged training images, or the one in the weights
file (a supervised head, a finetuned network), as it is. Nothing is chosen on any of the sets that are scored. The
outcome on test holds:

- corruptions (Hendrycks and Dietterich, ICLR 2019) of the test images, at the size that the backbone takes: the
  error of each corruption and severity, their mean, and with the errors of a reference classifier mCE and relative mCE.
  They are means over test images, so that each has the interval of such a mean;
- rotations, scales and crops of the test images: the cosine similarity of changed and unchanged features, beside that
  of different images, below which a change hides more than the identity of the image;
- detection of images of unknown classes: softmax probability, energy, Mahalanobis distance, distance to neighbours;
- stability over the frames of videos of perturbed images (ImageNet-P);
- the accuracy on further test sets, each of which has a record of its own, too.
"""

from sslbench.errors import DataError, UsageError
from sslbench.protocols.linear import cost as linear_cost
from sslbench.protocols.protocol import Cost, OnSets, Protocol, Shapes
from sslbench.protocols.robustness.classifier import file_classifier, linear_settings, used_part
from sslbench.protocols.robustness.scores import open_sets, score
from sslbench.protocols.robustness.settings import Settings
from sslbench.targets.classes import Classes
from sslbench.targets.target import Target


def check(settings: Settings, train: Target) -> None:
    """Refuse settings that cannot work, before any image is decoded."""
    if not isinstance(train, Classes):
        raise DataError(
            f"robustness: errors need one class per sample, and these samples have {train.title}",
            "Name the column of classes with --label-col.",
        )
    if settings.measures_nothing:
        raise UsageError("robustness: nothing is left to measure", "Name corruptions, sets, videos or unknown images.")
    if settings.unknown and settings.neighbours > len(train):
        raise UsageError(
            f"robustness: there are {len(train)} training images, fewer than neighbours={settings.neighbours}"
        )


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the classifier and the metrics on test; scores of further sets are little beside them."""
    if settings.classifier != "linear":
        return Cost(scores=4.0 * shapes.test * shapes.classes)
    return linear_cost(linear_settings(settings), shapes)


def of_a_set(settings: Settings) -> Settings:
    """Return the settings that the record of one set depends on: those of the classifier."""
    kept = ("classifier", "class_names", "c", "holdout")
    own = {name: getattr(settings, name) for name in kept}
    return Settings(corrupt=(), rotations=(), scales=(), crops=(), **own)


PROTOCOL = Protocol(
    version=4,
    summary="Robustness of a classifier: corruptions, other test sets, unknown classes, geometry.",
    settings=Settings,
    kind=OnSets(
        check,
        score,
        cost=cost,
        takes=(Classes,),
        own_metric=True,
        part=used_part,
        open_sets=open_sets,
        of_a_set=of_a_set,
        file_classifier=file_classifier,
    ),
)
