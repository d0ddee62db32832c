"""One file per method; the file name is the method's name. Names with an underscore are shared parts."""
