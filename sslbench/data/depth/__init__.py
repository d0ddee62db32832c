"""Depth and surface normals of every pixel: folders, lists, tables, NYUv2's labelled file and a stereo pair."""
