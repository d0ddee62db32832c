"""Detection: recipes, detectors on a backbone, pictures of what they find."""
