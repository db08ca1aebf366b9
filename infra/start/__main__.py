"""Run an application in this process: `python -m headgate.infra.start [-m] application ...`."""

from __future__ import annotations

import os
import runpy
import sys
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pkgutil import get_importer
from types import ModuleType

from .session_hook import close_at_exit, install

_MODULE, _MAIN = "-m", "__main__"


def main() -> None:
    """Run the application as Python would, with the sessions that it makes attached.

    Its `__main__` stays in `sys.modules`, for the threads and exit functions that run after it.
    """
    as_module = sys.argv[1] == _MODULE
    sys.argv = sys.argv[2:] if as_module else sys.argv[1:]
    application = sys.argv[0]
    install(by_default=True, tells=True)
    module = sys.modules[_MAIN] = ModuleType(_MAIN)
    vars(module)["__builtins__"] = sys.modules["builtins"]
    try:
        _run(application, as_module, module)
    except KeyboardInterrupt:
        close_at_exit()  # now: code that runs later can let Python forget to exit with SIGINT
        raise
    except ModuleNotFoundError as exc:
        if exc.name == "pyspark":
            exc.add_note("headgate run needs a PySpark: pip install 'pyspark-headgate[spark]'")
        raise


def _run(application: str, as_module: bool, module: ModuleType) -> None:
    if as_module:
        _replace_first_path(os.getcwd())
        vars(runpy)["_run_module_as_main"](application)
    elif get_importer(application) is not None:  # a folder or a zip file
        if sys.flags.safe_path:
            sys.path.insert(0, "")
        sys.path[0] = os.path.abspath(application)
        vars(runpy)["_run_module_as_main"](_MAIN, False)
    else:
        _replace_first_path(os.path.dirname(os.path.realpath(application)))
        _run_file(os.path.abspath(application), module)


def _replace_first_path(path: str) -> None:
    """Replace the path that Python has put first for us, if it has."""
    if not sys.flags.safe_path:
        sys.path[0] = path


def _run_file(path: str, module: ModuleType) -> None:
    kind = SourcelessFileLoader if path.endswith(".pyc") else SourceFileLoader
    loader = module.__loader__ = kind(_MAIN, path)
    vars(module).update(__file__=path, __cached__=None)
    if isinstance(loader, SourceFileLoader):  # its compiled code is never stored
        exec(loader.source_to_code(loader.get_data(path), path), vars(module))
    else:
        exec(loader.get_code(_MAIN) or "", vars(module))


if __name__ == "__main__":
    main()
