"""`python -m undertow`: the command line, for where the script `undertow` is not on the path."""

from undertow.cli import main

if __name__ == "__main__":
    main()
