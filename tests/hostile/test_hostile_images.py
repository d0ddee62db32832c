"""Odd images are decoded, or named and left out: never a crash, a hang or more memory than a picture needs."""

from hostile import image_cases
from hostile.campaign import LONG, failures, report

MEMORY = 3 << 30


def test_images(tmp_path):
    report(failures(image_cases.image_cases(n=LONG), tmp_path, memory=MEMORY))
