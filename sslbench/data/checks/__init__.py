"""Checks of a data set before it costs a day: labels, copies, boxes, label maps; the page and sheets that show them."""
