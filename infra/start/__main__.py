"""Run an application in this process: `python -m headgate.infra.start [-m] application ...`."""

from __future__ import annotations

import os
import runpy
import sys

from .session_hook import close_all, install

_MODULE = "-m"


def main() -> None:
    """Run the application as Python would, with the sessions that it makes attached."""
    as_module = sys.argv[1] == _MODULE
    sys.argv = sys.argv[2:] if as_module else sys.argv[1:]
    application = sys.argv[0]
    sys.path[0] = os.getcwd() if as_module else os.path.dirname(os.path.abspath(application))
    install(by_default=True)
    try:
        if as_module:
            runpy.run_module(application, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(application, run_name="__main__")
    finally:
        close_all()


if __name__ == "__main__":
    main()
