"""Detectors on a backbone: C4, feature pyramid, simple feature pyramid; the parts they share."""
