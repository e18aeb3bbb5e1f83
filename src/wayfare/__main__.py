"""`python -m wayfare`: the command line where the script is not on the path."""

from wayfare.cli.app import main

if __name__ == "__main__":
    main()
