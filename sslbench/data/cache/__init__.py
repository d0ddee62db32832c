"""Cached facts about large containers: the index of their entries and the digests of their images."""
