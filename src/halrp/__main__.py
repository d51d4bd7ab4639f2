"""`python -m halrp` is the `halrp` command."""

from halrp.cli import main

if __name__ == "__main__":
    main()
