"""Label maps, a class for every pixel: files, classes, layouts, and the formats that hold nothing else."""
