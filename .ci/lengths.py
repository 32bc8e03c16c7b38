"""Fails when a Python file or function is too long, or torch's private API is used elsewhere.

Files stop at 500 lines, functions at 50; private API lives in `jitney/torch_api/` alone: dotted
names below torch, and attributes of its objects (``op._schema``).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 500
FUNCTION_LINES = 50
# A dotted name below torch with a part that begins with an underscore; not ``__version__``, and
# not the ops, whose names are ATen's.
PRIVATE = re.compile(r"torch\.(?!ops\.)(\w+\.)*_[A-Za-z]")
ROOMS = re.compile(r"(^|/)(utils?|core|common|helpers?|misc)(/|\.py$)")
# Functions of an object and the name of its attribute.
ASKING = ("getattr", "hasattr", "setattr", "delattr", "getattr_static", "__setattr__")
# Objects whose attributes are this project's: a method's own, and its bases'.
OURS = ("self", "cls", "super()")
# What ATen's ops hang below.
OPS = re.compile(r"aten|torch\.ops\.\w+")
# Attributes that are nothing of torch's, by how the expression ends.
ALLOWED = {
    "_fields": "a named tuple's",
    "_replace": "a named tuple's",
    "_is_protocol": "a class's, of `typing.Protocol`",
    "_orig_mod": "our compiled modules', by the name that programs know from torch's",
    "original._parameters": "an `inspect.Signature`'s",
}


def tracked() -> list[Path]:
    """The Python files that git knows, of this tree."""
    out = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True)
    return [Path(p) for p in out.stdout.split() if Path(p).exists()]


def complaints(path: Path) -> list[str]:
    """What is wrong with one file, a line each."""
    text = path.read_text()
    lines = text.splitlines()
    tree = ast.parse(text)
    found = []
    if len(lines) > FILE_LINES:
        found.append(f"{path}: {len(lines)} lines, at most {FILE_LINES}")
    if ROOMS.search(str(path)):
        found.append(f"{path}: a name that says nothing")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                found.append(f"{path}:{node.lineno} {node.name}: {length} lines")
    if path.parts[0] == "jitney" and path.parts[1] != "torch_api":
        uses = dict.fromkeys((*private_names(tree), *private_attributes(tree)))
        found += [f"{path}:{line}: {name}, outside jitney/torch_api" for line, name in uses]
    return found


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines, and the private dotted names below torch there."""
    for node in ast.walk(tree):
        for name in names_of(node):
            if PRIVATE.match(name):
                yield node.lineno, name  # type: ignore[attr-defined]


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


def private_attributes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines, and the private attributes of objects there that neither this file nor the standard
    library made."""
    own, modules = own_attributes(tree), standard_modules(tree)
    for node in ast.walk(tree):
        owner, name = attribute_of(node)
        if owner is None or not re.match("_[A-Za-z]", name) or name in own:
            continue
        of, text = ast.unparse(owner), f"{ast.unparse(owner)}.{name}"
        if of in OURS or OPS.fullmatch(of) or of.split(".")[0] in modules:
            continue
        if not any(f".{text}".endswith(f".{end}") for end in ALLOWED):
            yield owner.lineno, text


def attribute_of(node: ast.AST) -> tuple[ast.expr | None, str]:
    """An object and the name of the attribute that an expression takes of it, or gives it; None
    where it does neither."""
    match node:
        case ast.Attribute(owner, name):
            return owner, name
        case ast.Call(
            ast.Name(function) | ast.Attribute(attr=function),
            [owner, ast.Constant(str(name)), *_],
        ) if function in ASKING:
            return owner, name
    return None, ""


def own_attributes(tree: ast.AST) -> set[str]:
    """Members of the file's classes, and attributes that their methods set."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Store()) | ast.Call(ast.Attribute(attr="__setattr__")):
                owner, name = attribute_of(node)
                if owner is not None and ast.unparse(owner) in OURS:
                    found.add(name)
            case ast.ClassDef(body=members):
                found.update(name for member in members for name in defined_by(member))
    return found


def defined_by(member: ast.stmt) -> list[str]:
    """The names that a statement in a class gives it."""
    match member:
        case ast.FunctionDef(name) | ast.AnnAssign(ast.Name(name)):
            return [name]
        case ast.Assign(targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def standard_modules(tree: ast.AST) -> set[str]:
    """Names by which the file knows modules of the standard library."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    aliases = [alias for node in imports for alias in node.names]
    known = [a for a in aliases if a.name.split(".")[0] in sys.stdlib_module_names]
    return {(a.asname or a.name).split(".")[0] for a in known}


def main() -> int:
    """Prints every complaint; 1 if there was one."""
    found = [line for path in tracked() for line in complaints(path)]
    print("\n".join(found) or "lengths: fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
