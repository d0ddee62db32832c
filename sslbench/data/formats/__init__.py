"""Data formats, a module or package each with a `FORMAT` (`sslbench.data.format`); its file name is its name."""
