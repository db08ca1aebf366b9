"""`python -m headgate` is the `headgate` command."""

from .infra.cli.app import main

if __name__ == "__main__":
    main()
