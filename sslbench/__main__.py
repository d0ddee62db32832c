"""`python -m sslbench` is the command `sslbench`."""

from sslbench.cli.main import main

if __name__ == "__main__":
    main()
