"""The Detectron2 backend: the same recipe trained and run by Detectron2, found at run time."""
