"""Scores of whole videos as DAVIS defines them, from the masks of all frames."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from sslbench.metrics.dense import video


def objects_of(truth):
    """Ids in the first true frame, without void."""
    objects = video.objects_in(truth[:1])
    return objects[objects != 255]


def semi_supervised(truth, found, *, boundary=video.BOUNDARY):
    """J and F of the objects of the first frame, whose masks were given, in all frames but the first and the last."""
    objects = objects_of(truth)
    frames = [
        video.frame_scores(*maps, objects, boundary=boundary) for maps in zip(truth[1:-1], found[1:-1], strict=True)
    ]
    return video.VideoScores(*(np.stack(frames, axis=2) if frames else np.zeros((2, len(objects), 0))))


def unsupervised(truth, found):
    """J and F of the objects with their proposals, assigned so that the mean of both is largest (Caelles et al. 2019).

    An object without a proposal is scored against empty masks. Void pixels are left out.
    """
    objects, proposals = objects_of(truth), video.objects_in(found)
    absent = max(0, len(objects) - len(proposals))
    proposals = np.append(proposals, int(found.max(initial=0)) + 1 + np.arange(absent))
    scores = np.zeros((2, len(objects), len(proposals), len(truth)))
    for t, (true, own) in enumerate(zip(truth, np.where(truth == 255, 0, found), strict=True)):
        for i, j in np.ndindex(scores.shape[1:3]):
            masks = true == objects[i], own == proposals[j]
            scores[:, i, j, t] = video.region_similarity(*masks), video.boundary_measure(*masks)
    return video.VideoScores(*scores[:, *linear_sum_assignment(-scores.mean(axis=(0, 3)))])
