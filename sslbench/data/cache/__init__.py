"""What is found once in a large container and kept in the cache folder: its index, the digests of its images."""
