"""Objects in images: boxes, classes and masks, their rows in memory or in files, crops of them."""
