"""Checks of a data set: labels, duplicates, boxes, label maps; the report page and contact sheets."""
