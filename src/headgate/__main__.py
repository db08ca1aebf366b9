"""Run the `headgate` command as `python -m headgate`."""

from .infra.cli.app import main

if __name__ == "__main__":
    main()
