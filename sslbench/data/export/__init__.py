"""Writing any source as a kwcoco manifest, with the images that lie inside containers as files."""
