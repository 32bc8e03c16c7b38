"""Fails when a Python file or function is too long, or torch's private API is named elsewhere.

Files stop at 500 lines, functions at 50; private API lives in `jitney/torch_api/` alone.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

FILE_LINES = 500
FUNCTION_LINES = 50
# A dotted name below torch with a part that begins with an underscore; not ``__version__``, and
# not the ops, whose names are ATen's.
PRIVATE = re.compile(r"torch\.(?!ops\.)(\w+\.)*_[A-Za-z]")
ROOMS = re.compile(r"(^|/)(utils?|core|common|helpers?|misc)(/|\.py$)")


def tracked() -> list[Path]:
    """The Python files that git knows, of this tree."""
    out = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True)
    return [Path(p) for p in out.stdout.split() if Path(p).exists()]


def complaints(path: Path) -> list[str]:
    """What is wrong with one file, a line each."""
    text = path.read_text()
    lines = text.splitlines()
    found = []
    if len(lines) > FILE_LINES:
        found.append(f"{path}: {len(lines)} lines, at most {FILE_LINES}")
    if ROOMS.search(str(path)):
        found.append(f"{path}: a name that says nothing")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                found.append(f"{path}:{node.lineno} {node.name}: {length} lines")
    if path.parts[0] == "jitney" and path.parts[1] != "torch_api":
        found += [
            f"{path}:{node.lineno}: {name}, outside jitney/torch_api"
            for node in ast.walk(ast.parse(text))
            for name in names_of(node)
            if PRIVATE.match(name)
        ]
    return found


def names_of(node: ast.AST) -> list[str]:
    """Modules that a statement imports; the dotted name that an expression is, or a text."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Attribute):
        return [ast.unparse(node)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.split() if "torch._" in node.value and "``" not in node.value else []
    return []


def main() -> int:
    """Prints every complaint; 1 if there was one."""
    found = [line for path in tracked() for line in complaints(path)]
    print("\n".join(found) or "lengths: fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
