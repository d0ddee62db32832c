"""Tracking of objects, parts and joints by propagation of the labels of the first frame, without training.

Each cell of a frame takes the mean of the labels of the most similar cells of the first frame and of a few frames
before (`solvers.propagation`; Jabri et al. 2020, Caron et al. 2021). The kind of the data decides the score:

- Masks of objects (DAVIS 2017, Pont-Tuset et al.): region similarity J and boundary measure F of every object, averaged
  over its frames without the first and the last one, and over all objects. Objects are the ids that occur in the first
  frame; later ones count as background.
- Masks of classes of parts (VIP): IoU of each class over the pixels of all frames of all videos together, mean over the
  classes that occur, background among them.
- Joints (JHMDB): share of all frames but the first of each clip in which a joint is within 0.1 and 0.2 of the person's
  size, mean over joints.

Soft labels of masks are brought to the size of the true masks by bilinear interpolation, and the object or class of the
largest value is the prediction of the pixel. A joint lies at the weighted mean of its largest cells. Intervals resample
videos.

Beside the score stand the labels of the first frame kept in every frame (as chance), the pixels of the cells, and the
untrained network. Patches of 8 pixels score about 8 points more than patches of 16 of the same method: compare at one
grid only.

Memory: features of 1 + `previous` frames, whatever the length of the video. Time: that of the matrix products, see
`solvers.propagation`.
"""

from sslbench.errors import DataError, UsageError
from sslbench.protocols._parts.untrained import MapRun, maps_of_layers, without_training
from sslbench.protocols.protocol import NotEstimated, Protocol
from sslbench.protocols.tracking.settings import Settings
from sslbench.results import Outcome
from sslbench.targets.target import Target
from sslbench.targets.videos import Parts, Poses, Tracks, Videos

_OF_MASKS, _OF_JOINTS = ("first", "scaled"), ("peak", "lost")


def check_settings(settings: Settings) -> None:
    """Refuse settings that are out of their range or have no effect, whatever the data.

    Raises:
        UsageError: one is.
    """
    least_of = {"short": 0, "side": 0, "multiple": 0, "previous": 0, "topk": 1, "peak": 1, "radius": 0.0}
    for name, least in least_of.items():
        if getattr(settings, name) < least:
            raise UsageError(f"tracking: {name} must be at least {least}, not {getattr(settings, name)}")
    for name in ("temperature", "max_memory"):
        if not getattr(settings, name) > 0:
            raise UsageError(f"tracking: {name} must be positive, not {getattr(settings, name)}")
    if settings.side and settings.short:
        raise UsageError("tracking: short has no effect beside side", "Give one of the two.")
    if settings.multiple and not settings.short:
        raise UsageError("tracking: multiple has no effect on frames of their own size", "Give short= as well.")
    if not settings.radius and (settings.window != Settings().window or not settings.window_on_first):
        raise UsageError("tracking: without a radius there is no window", "Leave window and window_on_first out.")


def check(settings: Settings, labels: Target) -> None:
    """Refuse settings and data that cannot work or have no effect, before any frame is decoded.

    Raises:
        UsageError: a setting is out of its range, or has no effect.
        DataError: the data are no videos with masks or joints.
    """
    if not isinstance(labels, Videos):
        raise DataError(f"tracking needs videos with masks or joints, and these samples have {labels.title}")
    check_settings(settings)
    for name in _OF_MASKS if isinstance(labels, Poses) else _OF_JOINTS:
        if getattr(settings, name) != (usual := getattr(Settings(), name)):
            raise UsageError(
                f"tracking: {name}={getattr(settings, name)} has no effect on {labels.title}",
                f"Leave it out, or give {name}={usual} beside a preset that has it.",
            )


def score(run: MapRun[Settings]) -> dict[str, Outcome]:
    """Track the objects, parts or joints of the videos of the test part; see `scores.score`."""
    from sslbench.protocols.tracking import scores

    return scores.score(run)


WORK = NotEstimated("the number of frames is known when the videos are read")

PROTOCOL = Protocol(
    version=2,
    summary="Tracking of objects, parts and joints by propagation of the first labels, without training.",
    settings=Settings,
    kind=without_training(check, maps_of_layers, score, work=WORK, takes=(Tracks, Parts, Poses)),
    check_settings=check_settings,
)
