"""Parts that readers of several formats share: members of archives, slices of files, rows of large JSON, names."""
