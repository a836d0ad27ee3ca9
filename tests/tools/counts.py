"""Counts of the code, of the working tree or of a revision: `python tests/tools/counts.py [REVISION] [--list]`.

    statements    nodes of the syntax tree that are statements, docstrings left out
    floors        modules on the longest chain of imports inside a package; a circle counts with all its modules
    comparisons   places where code asks for a mechanism, an algorithm, ... by its name: `==`, `!=`, `in`, `not in`,
                  `isin`, cases of `match`, and look-ups in dictionaries by such names
    outside       comparisons, except those in the module that declares the name as a part of its own

Names come from the code that is counted: from `choices=` of the settings, and from `@part(slot, name)`. The words
`none` and `file` mean other things, too; they count where the other side is a slot, such as `trial.mechanism`.

Last, in how many modules a setting is named: where it is declared, or stands as an attribute, a keyword or a string.
Other things of the same name count, too.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import subprocess
import sys
import tarfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLOTS = {name: name for name in ("mechanism", "algorithm", "sampler", "optimizer", "projector", "network", "features")}
SLOTS["feedback"] = "algorithm"  # one slot by two names
AMBIGUOUS = ("none", "file")
DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict)


def read(revision=None):
    """Syntax trees and texts by path, of pipeline/ and analysis/."""
    if revision:
        packed = subprocess.run(["git", "archive", "--format=tar", revision, "pipeline", "analysis"], cwd=ROOT,
                                capture_output=True)
        if packed.returncode:
            sys.exit(f"REVISION: must be one that git can read, got {revision!r} ({packed.stderr.decode().strip()})")
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            texts = {name: archive.extractfile(name).read().decode()
                     for name in archive.getnames() if name.endswith(".py")}
    else:
        texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
                 for package in ("pipeline", "analysis") for path in (ROOT / package).rglob("*.py")}
    return {path: ast.parse(texts[path]) for path in sorted(texts)}, texts


def package(path):
    """`pipeline/trials` of a path in it; `pipeline` of a module beside the packages."""
    return "/".join(path.split("/")[:-1][:2])


def module(path):
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def statements(tree):
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = sum(isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
                     for node in ast.walk(tree))
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - docstrings


def running(node):
    """The nodes below, except those under `if TYPE_CHECKING`."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from running(child)


def imported(tree):
    """(local name, module, name in it or None) of every import."""
    for node in running(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, node.module, alias.name) for alias in node.names)


def floors(trees):
    """Modules on the longest chain of imports between these."""
    homes = {module(path): path for path in trees}
    uses = {path: {homes.get(f"{home}.{name}", homes.get(home)) for _, home, name in imported(tree)} - {path, None}
            for path, tree in trees.items()}
    reached = {path: {path} for path in trees}
    for _ in trees:
        for path in trees:
            reached[path] = reached[path].union(*(reached[below] for below in uses[path]))
    circle = {path: frozenset(other for other in reached[path] if path in reached[other]) for path in trees}
    height = {}
    for path in sorted(trees, key=lambda path: len(reached[path])):  # what a module imports reaches less, or is with it
        below = [height[circle[other]] for member in circle[path] for other in uses[member] - circle[path]]
        height[circle[path]] = len(circle[path]) + max(below, default=0)
    return max(height.values(), default=0)


class Names:
    """The names of choices, by slot, and the collections of them, by module and by their own name."""

    def __init__(self, trees):
        self.bound = {module(path): {local: (home, name) for local, home, name in imported(tree)}
                      for path, tree in trees.items()}
        self.values = {(module(path), target.id): node.value for path, tree in trees.items() for node in tree.body
                       if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
                       for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                       if isinstance(target, ast.Name)}
        self.local = {}
        self.slots, self.own = defaultdict(set), defaultdict(set)
        for path, tree in trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.AnnAssign) and (slot := self.slot(node.target)):
                    chosen = [k.value for k in getattr(node.value, "keywords", ()) if k.arg == "choices"]
                    self.slots[slot].update(*(self.strings(value, module(path)) for value in chosen))
                for made in getattr(node, "decorator_list", ()):
                    if isinstance(made, ast.Call) and ast.unparse(made.func).split(".")[-1] == "part":
                        slot, name = (argument.value for argument in made.args[:2])
                        if slot in SLOTS:
                            self.slots[SLOTS[slot]].add(name)
                            self.own[path].add(name)
        self.all = set().union(*self.slots.values())

    def strings(self, node, home, seen=()):
        """Texts in a collection, keys of a dictionary; none where it cannot be told."""
        if node is None or node in seen:
            return set()
        parts, texts = [], set()
        if isinstance(node, DISPLAYS):
            keys = node.keys if isinstance(node, ast.Dict) else node.elts
            texts = {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
            parts = [element.value for element in keys if isinstance(element, ast.Starred)]
            parts += [value for key, value in zip(keys, getattr(node, "values", ()), strict=False) if key is None]
        elif isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Call):  # dict.fromkeys(x, ...), tuple(x), and whatever else x is handed to
            parts = node.args[:1]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            above, name = self.bound[home].get(node.value.id, (None, None))
            home = f"{above}.{name}" if name else above
            parts = [self.values.get((home, node.attr))]
        elif isinstance(node, ast.Name):
            parts = [self.local.get(node.id) or self.values.get((home, node.id))]
            if parts == [None]:
                home, name = self.bound[home].get(node.id, (home, ""))
                parts = [self.values.get((home, name))]
        return texts.union(*(self.strings(part, home, (*seen, node)) for part in parts))

    def slot(self, node):
        """The slot that an expression is the value of, or empty: `c.mechanism`, `row["mechanism"]`, `mechanism`."""
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get" and node.args:
            name = getattr(node.args[0], "value", None)
        elif isinstance(node, ast.Subscript):
            name = getattr(node.slice, "value", None)
        else:
            name = getattr(node, "attr", getattr(node, "id", None))
        return SLOTS.get(name, "") if isinstance(name, str) else ""

    def asked(self, node, other, home):
        """The names for which a side of a comparison stands, beside what it is compared with."""
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        texts = {node.value} if is_text else self.strings(node, home)
        names = texts & (self.all - set(AMBIGUOUS) | self.slots.get(self.slot(other), set()))
        return names if 2 * len(texts & self.all) >= len(texts) else set()


def found(node, names, home):
    """Sets of names, one for each comparison that a node makes."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
                yield names.asked(left, right, home) | names.asked(right, left, home)
    elif isinstance(node, ast.match_case):
        yield set().union(*(names.asked(part.value, node.subject, home) for part in ast.walk(node.pattern)
                            if isinstance(part, ast.MatchValue)))
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield names.asked(node.value, node.slice, home) if not isinstance(node.value, ast.Constant) else set()
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "get" and node.args:
            yield names.asked(node.func.value, node.args[0], home)
        elif node.func.attr == "isin":
            yield names.asked(node.args[0], node.func.value, home)


def comparisons(trees):
    """(path, line, whether it is outside the module that declares the names) of every comparison by name."""
    names = Names(trees)

    def walk(node, path):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Match):
                for case in child.cases:
                    case.subject, case.lineno = child.subject, case.pattern.lineno
            yield from ((path, child.lineno, bool(asked - names.own[path]))
                        for asked in found(child, names, module(path)) if asked)
            before = names.local
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                names.local = before | {n.targets[0].id: n.value for n in ast.walk(child) if isinstance(n, ast.Assign)
                                        and isinstance(n.targets[0], ast.Name) and isinstance(n.value, DISPLAYS)}
            yield from walk(child, path)
            names.local = before

    return [place for path, tree in trees.items() for place in walk(tree, path)]


def mentions(trees):
    """Modules by setting: those that declare it or name it."""
    settings, places = set(), defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.value or node).startswith("setting("):
                settings.add(node.target.id)
                places[node.target.id].add(path)
            name = {ast.Attribute: "attr", ast.keyword: "arg", ast.Constant: "value"}.get(type(node))
            if name and isinstance(text := getattr(node, name), str):
                places[text].add(path)
    return {name: places[name] for name in sorted(settings)}


def main():
    parser = argparse.ArgumentParser(description="Count statements, floors, and comparisons by name.")
    parser.add_argument("revision", nargs="?", help="of git; by default the working tree")
    parser.add_argument("--list", action="store_true", help="list the comparisons, with their lines")
    options = parser.parse_args()
    trees, texts = read(options.revision)
    places = comparisons(trees)
    if options.list:
        for path, line, _ in sorted(places):
            print(f"{path}:{line}: {texts[path].splitlines()[line - 1].strip()}")
    groups = {name: [path for path in trees if package(path) == name] for name in sorted(map(package, trees))}
    groups |= {f"all of {top}": [path for path in trees if path.startswith(top)] for top in ("pipeline", "analysis")}
    print(f"{'package':<24}{'modules':>9}{'statements':>12}{'floors':>8}{'comparisons':>13}{'outside':>9}")
    for name, paths in groups.items():
        outside = [is_outside for path, _, is_outside in places if path in paths]
        print(f"{name:<24}{len(paths):>9}{sum(statements(trees[path]) for path in paths):>12}"
              f"{floors({path: trees[path] for path in paths}):>8}{len(outside):>13}{sum(outside):>9}")
    named = {name: len(paths) for name, paths in mentions(trees).items()}
    most = max(named, key=named.get)
    print(f"modules that name a setting: median {statistics.median(named.values()):g}, most {named[most]} ({most}), of "
          f"{len(named)} settings")


if __name__ == "__main__":
    main()
