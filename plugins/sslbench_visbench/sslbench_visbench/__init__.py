"""Plug-in of sslbench: low-level signals, orientation of structures, relative pose of two cameras."""
