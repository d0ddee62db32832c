"""Label maps, a class for every pixel: files, classes, pairing with images, statistics."""
