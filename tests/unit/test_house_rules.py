"""The house rules that no other tool checks: sizes, doors, names, imports."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import headgate

ROOT = Path(__file__).parents[2]
ROOMS = ("src", "control", "storage", "connectors", "infra", "testing")
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
PUBLIC_NAMES_MAX = 13

FOLDER_FILES_MAX = 12
PATH = re.compile(r"`((?:src|control|storage|connectors|infra|testing|tests|docs)/[\w/.]*)`")
PRIVATE_SPARK = {"_jvm", "_jdf", "_jsparkSession"}
BEHIND_THE_DOOR = ("connectors/spark/jvm/", "connectors/spark/queries/")

STARTS_JOBS = {"execute", "executeCollect", "prepare", "cachedColumnBuffers", "collect"}
STARTS_JOBS_OF = {"runs", "runJob", "collectAsync", "collectPartitions"}
ASKS_FOR_SETTINGS = {"require_carried", "executing", "carried"}
START_NO_JOBS = ("connectors/spark/patches/", "connectors/spark/tasks/")

QUESTIONS = {"What", "Whether", "Of", "How", "Where", "Whoever"}
EMPTY = {"found", "one", "held", "told", "said"}
OF_THE_WHOLE = {"house", "packaging", "suites"}
FORBIDDEN = {"manager", "helper", "util", "data", "info", "process", "misc"}
PLURALS = {f"{word}s" for word in FORBIDDEN}
PLAIN = set(Path(__file__).with_name("plain_words.txt").read_text().split())
WORDS_OF_THE_DESIGN = {"PartitionInfo", "update_partition_infos"}


@cache
def sources() -> tuple[Path, ...]:
    """Return every Python file of the repository, tracked or not."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = {ROOT / line for line in listed.stdout.splitlines()}
    return tuple(sorted(path for path in paths if path.exists()))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def product() -> list[Path]:
    return [path for path in sources() if path.relative_to(ROOT).parts[0] in ROOMS]


def files_of_tests() -> list[Path]:
    return [path for path in sources() if path.relative_to(ROOT).parts[0] == "tests"]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def never_run(path: Path) -> set[ast.AST]:
    """Return the nodes under `if TYPE_CHECKING:`."""
    return {
        below
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for below in ast.walk(statement)
    }


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the modules that a file imports when it runs, each with its number of leading dots."""
    for node in set(ast.walk(tree(path))) - never_run(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level


def attributes(path: Path) -> set[str]:
    return {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}


def words(name: str) -> set[str]:
    """Return the parts of a snake_case or CamelCase name."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def test_there_is_something_to_check() -> None:
    """The list of files has the product and the tests."""
    assert {"control/model/decide.py", "storage/reading/gate.py"} <= set(map(name_of, product()))
    assert "tests/unit/test_house_rules.py" in map(name_of, files_of_tests())


def test_files_are_short() -> None:
    """No file is longer than 500 lines."""
    lengths = {name_of(p): len(p.read_text().splitlines()) for p in sources()}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX} == {}


def test_functions_are_short() -> None:
    """No function is longer than 70 lines."""
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in sources()
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_folders_are_small() -> None:
    """A folder of the product has at most 12 files, and never a single one, besides its
    `__init__`."""
    files = Counter(path.parent for path in product() if path.name != "__init__.py")
    sizes = {folder.relative_to(ROOT).as_posix(): count for folder, count in files.items()}
    assert {name: count for name, count in sizes.items() if count > FOLDER_FILES_MAX} == {}
    assert [
        name
        for name, count in sizes.items()
        if count == 1 and "/" in name and name != "src/headgate"
    ] == []


def test_private_spark_has_one_door() -> None:
    """Only the files behind the private door use Spark's private names."""
    users = {name_of(p) for p in product() if attributes(p) & PRIVATE_SPARK}
    assert [name for name in users if not name.startswith(BEHIND_THE_DOOR)] == []


def test_jobs_start_with_settings() -> None:
    """A function that may start a job of Spark's asks for the settings that the job carries. The
    actions of a DataFrame carry them themselves."""
    wrong = []
    for path in product():
        if "connectors/" not in (name := name_of(path)) or name.startswith(START_NO_JOBS):
            continue
        for function in functions(path):
            called = {
                (getattr(node.func, "attr", getattr(node.func, "id", "")), not node.args)
                for node in ast.walk(function)
                if isinstance(node, ast.Call)
            }
            names = {each for each, _ in called}
            starts = any((each, True) in called for each in STARTS_JOBS) or names & STARTS_JOBS_OF
            if starts and not names & ASKS_FOR_SETTINGS:
                wrong.append(f"{name}:{function.lineno} {function.name}")
    assert wrong == []


def test_docstrings_are_sentences() -> None:
    """No docstring is an indirect question."""
    questions = [
        f"{name_of(path)}:{getattr(node, 'lineno', 1)}"
        for path in sources()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and (text := ast.get_docstring(node))
        and text.split()[0].rstrip(",:;") in QUESTIONS
    ]
    assert questions == []


def test_locals_say_what_they_hold() -> None:
    """No variable of the product or of a test is called after having been found or held."""
    empty = [
        f"{name_of(path)}:{getattr(node, 'lineno', 1)} {name}"
        for path in (*product(), *files_of_tests())
        for node in set(ast.walk(tree(path))) - fields(path)
        for name in bound(node) & EMPTY
    ]
    assert sorted(empty) == []


def fields(path: Path) -> set[ast.AST]:
    """Return the names of the fields that classes declare, which are no variables."""
    return {
        statement.target
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }


def bound(node: ast.AST) -> set[str]:
    """Return the name that a node gives to a value, if it gives one."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    return {node.arg} if isinstance(node, ast.arg) else set()


def test_names_say_what_things_are() -> None:
    """No file, class or function has a name that contains a forbidden word."""
    named = [
        (path.stem, name_of(path))
        for path in product()
        if not (path.stem == "__init__" or path.stem in WORDS_OF_THE_DESIGN)
    ]
    for path in product():
        named += [
            (node.name, f"{name_of(path)}:{node.lineno} {node.name}")
            for node in ast.walk(tree(path))
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name not in WORDS_OF_THE_DESIGN
        ]
    assert [where for name, where in named if words(name) & (FORBIDDEN | PLURALS)] == []


def classes() -> dict[str, list[str]]:
    """Return the public classes of the product, each with the files that define it."""
    where: dict[str, list[str]] = {}
    for path in product():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(name_of(path))
    return where


def test_no_two_classes_have_one_name() -> None:
    """Every public class has a name of its own, except that the error `Lost` is named after its
    event."""
    assert {"Lost"} == {name for name, paths in classes().items() if len(paths) > 1}


def test_words_of_the_domain_are_explained() -> None:
    """Every word in a class name is in the glossary, or is a word that every developer knows."""
    rows = (ROOT / "docs/glossary.md").read_text().splitlines()
    explained = words(" ".join(row.split("|")[1] for row in rows if row.startswith("| ")))
    unknown = {word for name in classes() for word in words(name) - PLAIN - explained}
    assert sorted(word for word in unknown if word.removesuffix("s") not in explained) == []


def test_rooms_import_each_other_relatively() -> None:
    """Product code imports its own modules relatively, so that no file is loaded twice."""
    ours = {"headgate", *ROOMS}
    absolute = [
        f"{name_of(path)}: {module}"
        for path in product()
        for module, level in imports(path)
        if not level and module.split(".")[0] in ours
    ]
    assert absolute == []


def test_tests_import_the_package() -> None:
    """Tests import product modules from the package, as users do."""
    bare = set(ROOMS) - {"src"}
    wrong = [
        f"{name_of(path)}: {module}"
        for path in files_of_tests()
        for module, level in imports(path)
        if not level and module.split(".")[0] in bare
    ]
    assert wrong == []


def test_tests_are_named_after_modules() -> None:
    """A unit or property test of a module begins with its name, so that it can be found."""
    modules = {path.stem for path in sources() if not path.stem.startswith("test_")}
    wrong = [
        name_of(path)
        for path in sources()
        if name_of(path).startswith(("tests/unit/test_", "tests/property/test_"))
        and not any(f"{path.stem}_".startswith(f"test_{name}_") for name in modules | OF_THE_WHOLE)
    ]
    assert wrong == []


def test_pages_name_files_that_exist() -> None:
    """A file that was moved is found under its new name."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    named = {
        (page.name, path)
        for page in pages
        for path in PATH.findall(page.read_text())
        if page.name != "CHANGELOG.md"
    }
    assert len(named) > 20
    assert [(page, path) for page, path in sorted(named) if not (ROOT / path).exists()] == []


def test_tests_share_doubles_only() -> None:
    """No test imports another: `tests/doubles` has the parts that several tests need."""
    wrong = [
        f"{name_of(path)}: {module}"
        for path in files_of_tests()
        for module, _ in imports(path)
        if module.split(".")[-1].startswith("test_")
    ]
    assert wrong == []


def test_tests_hurry_by_a_pace() -> None:
    """Tests replace no private wait of a module: they give the part another `Pace`."""
    patched = re.compile(r'setattr\(\w+, "_[A-Z_]+_(?:S|MS|TURNS)(?:_MAX|_MIN)?"')
    assert [] == [name_of(path) for path in files_of_tests() if patched.search(path.read_text())]


def test_the_front_door_is_small() -> None:
    """The package exports few names, and each of them exists."""
    names = list(headgate.__all__)
    assert len(names) <= PUBLIC_NAMES_MAX
    assert sorted(set(names)) == sorted(names)
    assert [name for name in names if not hasattr(headgate, name)] == []
