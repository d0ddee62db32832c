"""Detection: recipes, detectors on a backbone, their training and scores, pictures of what they find."""

VERSION = 2
"""Of the protocol `detection`: grows whenever a number would change for the same input."""
