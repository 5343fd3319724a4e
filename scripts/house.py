"""What the house weighs: lines, functions, repetition, public names, what an import loads.

``python scripts/house.py`` prints a table; continuous integration shows it, so that growth is seen.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parents[1]
RUN, TOO_COMMON = 6, 8  # lines that make a repetition, and places where it is a habit and no copy


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def lines(folder: str) -> int:
    return sum(len(path.read_text().splitlines()) for path in files(folder))


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a source, parsed once for all counts."""
    return ast.parse(path.read_text())


def functions_of(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def functions(folder: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [one for path in files(folder) for one in functions_of(tree_of(path))]


def docstring_lines(folder: str) -> int:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = (node for path in files(folder) for node in ast.walk(tree_of(path)))
    texts = (node.body[0] for node in nodes if isinstance(node, kinds) and ast.get_docstring(node))
    return sum(text.end_lineno - text.lineno + 1 for text in texts)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a body without its docstring."""
    body = function.body[ast.get_docstring(function) is not None :]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    named = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(named) - (named[:1] in (["self"], ["cls"]))


def refusals(folder: str) -> int:
    """Count what makes a PlanError: calls, and sentences that `raise_first` makes one of."""
    made = 0
    for path in files(folder):
        source = path.read_text()
        made += source.count("PlanError(")
        rules = [f for f in functions_of(tree_of(path)) if "raise_first" in source]
        sentences = (f for f in rules if f.returns and ast.unparse(f.returns) == "Iterator[str]")
        made += sum(isinstance(node, ast.Yield) for f in sentences for node in ast.walk(f))
    return made


def normalised(path: Path) -> list[str]:
    """Return the lines of a file that say something: no imports, comments or lone brackets."""
    source = path.read_text()
    imports = {
        line
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    rows = (
        " ".join(line.split())
        for number, line in enumerate(source.splitlines(), start=1)
        if number not in imports
    )
    return [row for row in rows if re.search(r"\w\w", row) and not row.startswith("#")]


def repetitions(folder: str) -> int:
    """Return the pairs of files, or files with themselves, that share six equal lines.

    What stands in more than eight places is a habit of the house and no copy.
    """
    places = defaultdict(list)
    for path in files(folder):
        rows = normalised(path)
        for start in range(len(rows) - RUN + 1):
            places["\n".join(rows[start : start + RUN])].append((path, start))
    return len(
        {
            (one, other)
            for found in places.values()
            if len(found) <= TOO_COMMON
            for (one, a), (other, b) in combinations(found, 2)
            if one != other or b - a >= RUN
        }
    )


def loaded(statement: str) -> list[str]:
    """Return the modules of ours that a statement loads."""
    code = f"import sys; {statement}; print(*(m for m in sys.modules if m.startswith('cloister')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def table() -> dict[str, object]:
    product = functions("src/cloister")
    bodies = [body_lines(function) for function in product]
    plan = loaded("from cloister.protocol.plan import Plan")
    public = "import cloister; print(len(cloister.__all__))"
    names = subprocess.run(
        [sys.executable, "-c", public], capture_output=True, text=True, check=True
    )
    return {
        "lines of src/cloister": lines("src/cloister"),
        "of them docstrings": docstring_lines("src/cloister"),
        "lines of lab/src": lines("lab/src"),
        "lines of tests, the lab's too": lines("tests") + lines("lab/tests"),
        "functions of src": len(product),
        "body of a function, median and 90th percentile": (
            f"{median(bodies):g}, {quantiles(bodies, n=10)[-1]:g}"
        ),
        "functions with 8 or more parameters": sum(parameters(f) >= 8 for f in product),
        "places that make a PlanError": refusals("src/cloister"),
        "pairs of files that share six equal lines": repetitions("src/cloister"),
        "public names of cloister": names.stdout.strip(),
        "modules that `import cloister` loads": len(loaded("import cloister")),
        "task modules that `import Plan` loads": sum(m.startswith("cloister.tasks") for m in plan),
    }


if __name__ == "__main__":
    found = table()
    width = max(map(len, found))
    for name, value in found.items():
        sys.stdout.write(f"{name:{width}}  {value}\n")
