"""Metrics and their uncertainty: pure functions on arrays."""
