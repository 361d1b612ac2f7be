"""`python -m coordinator` is the command `stepwire`."""

from coordinator.cli import main

if __name__ == "__main__":
    main()
