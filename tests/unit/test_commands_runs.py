"""Applications run as Python runs them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

MAIN = ["-m", "headgate.infra.start"]
SHOWN = """
import pickle, sys, threading
import __main__
class Row: pass
def later(main=threading.main_thread()):
    main.join()
    print(pickle.loads(pickle.dumps(Row())).__class__ is Row)
names = "__name__", "__file__", "__package__", "__cached__", "__doc__", "__builtins__"
print(*(repr(globals().get(name, "no")) for name in names), __main__.__dict__ is globals())
print(type(__loader__).__name__, __spec__ and __spec__.name, sys.argv, sys.path)
threading.Thread(target=later).start()
"""


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "link", "folder", "zip", "module", "package"])
def test_an_application_sees_what_it_sees_in_plain_python(tmp_path: Path, kind: str) -> None:
    """Its module, path and arguments are the same, also for a thread that outlives its main."""
    place = tmp_path / "a place"
    (place / "p").mkdir(parents=True)
    for name in ("app.py", "p/__main__.py", "p/__init__.py"):
        (place / name).write_text(SHOWN if "init" not in name else "")
    (tmp_path / "link.py").symlink_to(place / "app.py")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as packed:
        packed.writestr("__main__.py", SHOWN)
    words, folder = {
        "file": (["a place/app.py"], tmp_path),
        "link": (["link.py"], tmp_path),
        "folder": (["a place/p"], tmp_path),
        "zip": (["app.zip"], tmp_path),
        "module": (["-m", "app"], place),
        "package": (["-m", "p"], place),
    }[kind]
    plain, ours = (run([*start, *words, "-m", "x y"], folder) for start in ([], MAIN))
    assert (ours.stdout, ours.returncode) == (plain.stdout, 0), ours.stderr
    assert plain.stdout.endswith("True\n"), plain.stderr


@pytest.mark.parametrize(("module", "noted"), [("pyspark", True), ("another", False)])
def test_the_error_of_an_application_without_pyspark(
    tmp_path: Path, module: str, noted: bool
) -> None:
    """The last line says which extra is missing, if PySpark is the module that is not there."""
    (tmp_path / "app.py").write_text(f"import sys; sys.modules['pyspark'] = None; import {module}")
    done = run([*MAIN, "app.py"], tmp_path)
    assert done.returncode == 1
    assert ("pip install 'pyspark-headgate[spark]'" in done.stderr.splitlines()[-1]) == noted


@pytest.mark.slow
@pytest.mark.parametrize("named", ["", "/opt/python"])
def test_workers_run_the_python_of_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """A kernel whose environment is not activated finds another Python on PATH."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if named:
        monkeypatch.setenv("PYSPARK_PYTHON", named)
    load = "import headgate, os; headgate.load_ipython_extension(0)"
    shown = run(["-c", f"{load}; print(os.environ['PYSPARK_PYTHON'])"], tmp_path)
    assert f"{named or sys.executable}\n" == shown.stdout
