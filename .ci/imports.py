#!/usr/bin/env python3
"""Checks that imports have one direction. In each crate and each client, the modules of a folder must not import each
other in a circle. In the library, no import may go up in the layers that ARCHITECTURE.md lists.

The modules of a folder are its files, and its folders with all their contents. A parent and its children may import
each other. An import of only types counts. Tests do not count. With --floors, prints each folder's modules from top to
bottom.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A comment, a string or a character.
LEXEMES = re.compile(
    r"//[^\n]*|/\*.*?\*/|b?r(#*)\".*?\"\1|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\.[^']*|[^\\'])'", re.DOTALL
)
TEST_ITEM = re.compile(r"#\[cfg\((?:(?:all|any)\()?(?:test|fuzzing)\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?")
MODULE = re.compile(r"\bmod\s+(\w+)\s*;")
USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
PATH = re.compile(r"(?<![\w:])((?:crate|self|super)(?:::\w+)+)")


def end_of_block(text, start):
    depth = 0
    for at in range(start, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at + 1
    return len(text)


def without_tests(text):
    """Returns the code without comments, strings and the items that are compiled only for tests or fuzzing, and the
    names of the modules among these items. Lines keep their numbers."""
    text = LEXEMES.sub(lambda found: (" " if found[0].startswith("/") else '""') + lines_of(found[0]), text)
    test_modules = set()
    while found := TEST_ITEM.search(text):
        rest = text[found.end():]
        if module := MODULE.match(rest):
            test_modules.add(module[1])
        ends = [at for at in (rest.find(";"), rest.find("{")) if at >= 0]
        end = min(ends, default=len(rest))
        if end < len(rest) and rest[end] == "{":
            end = end_of_block(rest, end)
            # `use a::{b};`
            if rest[end:end + 1] == ";":
                end += 1
        else:
            end += 1
        text = text[:found.start()] + lines_of(found[0] + rest[:end]) + rest[end:]
    return text, test_modules


def lines_of(text):
    return "\n" * text.count("\n")


def leaves(tree):
    """Returns the paths of a use tree: `a::{b, c::d}` gives `a::b` and `a::c::d`."""
    tree = re.sub(r"\s+as\s+\w+", "", tree).strip()
    start = tree.find("{")
    if start < 0:
        return [tree]
    prefix, inner = tree[:start], tree[start + 1:tree.rindex("}")]
    parts, depth, last = [], 0, 0
    for at, char in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(inner[last:at])
            last = at + 1
    parts.append(inner[last:])
    return [prefix + leaf for part in parts if part.strip() for leaf in leaves(part)]


class Crate:
    def __init__(self, source):
        self.code = {}
        self.files = {}
        self.reexports = {}
        root = next(path for path in (source / "lib.rs", source / "main.rs") if path.exists())
        self.read(root, (), source)

    def read(self, path, module, folder):
        text, test_modules = without_tests(path.read_text())
        self.code[module] = text
        self.files[module] = path.relative_to(ROOT)
        for name in MODULE.findall(text):
            below = folder / name
            inside = next((p for p in (folder / f"{name}.rs", below / "mod.rs") if p.exists()), None)
            if inside and name not in test_modules:
                self.read(inside, (*module, name), below)

    def absolute(self, module, path):
        names = [name.strip() for name in path.split("::")]
        at = list(module)
        if names[0] == "crate":
            at, names = [], names[1:]
        elif names[0] == "self":
            names = names[1:]
        elif names[0] == "super":
            while names and names[0] == "super":
                at, names = at[:-1], names[1:]
        elif (*module, names[0]) not in self.code:
            return None
        return (*at, *names)

    def home(self, path):
        """Returns the module that `path` is in. Follows re-exports."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.code:
                if length < len(path):
                    further = self.reexports.get((path[:length], path[length]))
                    if further and further != path:
                        return self.home(further)
                return path[:length]
        return ()

    def imports(self):
        for module, text in self.code.items():
            for public, tree in USE.findall(text):
                for leaf in leaves(tree):
                    path = self.absolute(module, leaf)
                    if public and path:
                        self.reexports[module, path[-1]] = path
        for module, text in self.code.items():
            paths = [(leaf, found) for found in USE.finditer(text) for leaf in leaves(found[2])]
            others = USE.sub(lambda found: " " * len(found[0]), text)
            paths += [(found[1], found) for found in PATH.finditer(others)]
            for path, found in paths:
                if absolute := self.absolute(module, path):
                    line = text.count("\n", 0, found.start()) + 1
                    yield module, self.home(absolute), f"{path} ({self.files[module]}:{line})"


class Python:
    def __init__(self, source):
        self.code = {}
        for path in sorted(source.rglob("*.py")):
            module = path.relative_to(source).with_suffix("").parts
            self.code[module[:-1] if module[-1] == "__init__" else module] = path

    def imports(self):
        for module, path in self.code.items():
            package = module if path.name == "__init__.py" else module[:-1]
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ImportFrom) or node.level == 0:
                    continue
                base = package[:len(package) - node.level + 1] + tuple(filter(None, (node.module or "").split(".")))
                for name in node.names:
                    home = (*base, name.name) if (*base, name.name) in self.code else base
                    yield module, home, f"{'.' * node.level}{node.module or ''} ({name.name})"


class Files:
    """A client whose imports are paths of files, relative to the file that imports."""

    def __init__(self, source, suffix, imported):
        self.source = source
        self.imported = re.compile(imported, re.MULTILINE)
        self.code = {path.relative_to(source).with_suffix("").parts: path for path in sorted(source.rglob(f"*{suffix}"))}

    def imports(self):
        for module, path in self.code.items():
            for found in self.imported.findall(path.read_text()):
                home = (path.parent / found).resolve().relative_to(self.source).with_suffix("").parts
                if home in self.code:
                    yield module, home, found


def typescript(source):
    return Files(source, ".ts", r"\b(?:from|import)\s*\(?\s*\"(\.[^\"]*)\"")


def ruby(source):
    return Files(source, ".rb", r"^\s*require_relative \"([^\"]*)\"")


def sources():
    for pattern, reader in (
        ("crates/*/src", Crate),
        ("examples/*/src", Crate),
        ("clients/python/src/*/", Python),
        ("clients/typescript/src", typescript),
        ("clients/ruby/lib", ruby),
    ):
        found = [path for path in sorted(ROOT.glob(pattern)) if path.is_dir() and path.name != "__pycache__"]
        assert found, f"no folder {pattern}"
        for source in found:
            yield source, reader(source)


def circles(arrows):
    """Returns the strongly connected components (Tarjan 1972)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            component, stack[at:] = stack[at:], []
            found.append(component)

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


def folders(crate):
    """Returns, for each folder, which of its modules import which others, and the imports."""
    found = {}
    for module in crate.code:
        if module:
            found.setdefault(module[:-1], {}).setdefault(module[-1], {})
    for module, home, path in crate.imports():
        shared = 0
        while shared < min(len(module), len(home)) and module[shared] == home[shared]:
            shared += 1
        if shared < len(module) and shared < len(home):
            imports = found[module[:shared]][module[shared]]
            imports.setdefault(home[shared], set()).add(f"{'::'.join(module)} uses {path}")
    return found


def layers():
    """Returns the layer of each module in the list in ARCHITECTURE.md, as (number, text). The first line is the highest
    layer. On the last line, each module is a layer: it may import those to its right."""
    section = (ROOT / "ARCHITECTURE.md").read_text().split("## Layers of the library\n")[1].split("\n## ")[0]
    lines = [re.findall(r"(\w+)(?:\.rs|/)(?=[,\s]|$)", line) for line in section.splitlines() if line.startswith("    ")]
    floors = lines[:-1] + [[module] for module in lines[-1]]
    return {module: (number, ", ".join(floor)) for number, floor in enumerate(floors, 1) for module in floor}


def upward(arrows):
    """Yields the problems of the library's imports, one line for each import that goes up. `arrows` says which module
    imports which."""
    layer = layers()
    for one, imports in sorted(arrows.items()):
        for other, uses in sorted(imports.items()):
            if not {one, other} <= layer.keys():
                yield f"{one} imports {other}, and ARCHITECTURE.md has no layer for one of them: {min(uses)}"
            elif layer[one][0] >= layer[other][0]:
                (low, low_text), (high, high_text) = layer[one], layer[other]
                yield from (f"layer {low} ({low_text}) imports layer {high} ({high_text}): {use}" for use in sorted(uses))
    for module in sorted(layer.keys() - arrows.keys()):
        yield f"ARCHITECTURE.md has a layer for {module}, which is not there"


def main():
    show_floors = "--floors" in sys.argv
    bad = False
    for source, package in sources():
        for folder, arrows in sorted(folders(package).items()):
            if source == ROOT / "crates/leasehold/src" and folder == ():
                for problem in upward(arrows):
                    bad = True
                    print(f"crates/leasehold/src: {problem}")
            place = "/".join([str(source.relative_to(ROOT)), *folder])
            components = circles(arrows)
            if show_floors and len(components) > 1:
                print(f"{place}: {' | '.join(' '.join(sorted(component)) for component in reversed(components))}")
            for circle in components:
                if len(circle) > 1:
                    bad = True
                    print(f"{place}: these modules import each other in a circle: {', '.join(sorted(circle))}")
                    for one in sorted(circle):
                        for other in sorted(set(circle) & set(arrows[one]) - {one}):
                            uses = sorted(arrows[one][other])
                            print(f"  {one} -> {other}: {'; '.join(uses[:6])}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
