"""Decoding: from an encoded file or an array to a picture, by routed handlers, and the evaluation transform."""
