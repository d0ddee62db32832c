"""Small data set of scikit-learn, for the tests that run over every format; see `sample_data`."""

LABELS = "single"
WRITE = {}  # its images are arrays


def make(root):
    return "sklearn:digits"
