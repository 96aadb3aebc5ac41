"""`python -m labelquorum` is the command `labelquorum`."""

from labelquorum.cli import main

if __name__ == "__main__":
    main()
