"""Parts shared by the readers of several formats: archive members, byte ranges, rows of large JSON, names."""
