"""Facts of the import graph of a tree of the project, this one or another: `python tests/import_graph.py [TREE]`.

A side door is a question outside algorithms/ and data/ about what class a method or data set is (`isinstance`, a
comparison of types, a class in `case`), or a comparison with its name. `lint-imports` checks layers and cycles.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "fewsure"
OWNERS = ("algorithms", "data")


def main() -> None:
    """Print the facts."""
    root = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parents[1])
    files = modules(root / "src")
    trees = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in files.items()}
    top = sorted(path.name for path in (root / "src" / PACKAGE).glob("*.py"))
    classes, names = side_doors(trees)
    sizes = {name: lines(file) for name, file in files.items()}
    tests = sum(map(lines, (root / "tests").rglob("*.py")))
    print(f"modules at the top      {len(top)}: {', '.join(top)}")
    for kind, found in (("of classes", classes), ("of names", names)):
        print(f"side doors, {kind:<12}{len(found)}")
        for module, line in found:
            print(f"  {module}:{line}  {files[module].read_text(encoding='utf-8').splitlines()[line - 1].strip()}")
    print(f"lines of the package    {sum(sizes.values()):,} in {len(files)} modules")
    print(f"lines of the tests      {tests:,}")
    print(
        "largest modules",
        *(f"  {sizes[name]:>5} {name}" for name in sorted(sizes, key=sizes.__getitem__)[:-11:-1]),
        sep="\n",
    )


def modules(source: Path) -> dict[str, Path]:
    """The name of each module of the package, and its file."""
    found = {}
    for file in sorted((source / PACKAGE).rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def room(module: str) -> str:
    """The package or module at the top to which a module belongs."""
    return module.removeprefix(f"{PACKAGE}.").split(".")[0]


def side_doors(trees: Mapping[str, ast.Module]) -> list[list[tuple[str, int]]]:
    """Where modules outside algorithms/ and data/ ask for the class of a method or data set, and where for its name."""
    owned = {name: tree for name, tree in trees.items() if room(name) in OWNERS}
    classes = {node.name for tree in owned.values() for node in tree.body if isinstance(node, ast.ClassDef)}
    names = {name for tree in owned.values() for name in registered(tree)}
    others = {name: tree for name, tree in trees.items() if name not in owned}
    return [
        sorted(
            {(module, node.lineno) for module, tree in others.items() for node in ast.walk(tree) if asks(node, known)}
        )
        for asks, known in ((asks_for_class, classes), (asks_for_name, names))
    ]


def registered(tree: ast.Module) -> Iterator[str]:
    """The names in a registry: a dictionary at the top of a module from strings to classes."""
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Dict) and all(isinstance(one, ast.Name | ast.Call) for one in value.values):
            yield from (key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def asks_for_class(node: ast.AST, classes: set[str]) -> bool:
    """Whether an expression asks for one of these classes."""

    def mentions(part: ast.AST) -> bool:
        return any(getattr(at, "id", getattr(at, "attr", None)) in classes for at in ast.walk(part))

    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("isinstance", "issubclass") and mentions(node.args[1])
    if isinstance(node, ast.MatchClass):
        return mentions(node.cls)
    return isinstance(node, ast.Compare) and any(getattr(side, "id", None) in classes for side in sides(node))


def asks_for_name(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression compares something with one of these names, or with a collection that has one."""
    return isinstance(node, ast.Compare) and any(
        isinstance(one, ast.Constant) and one.value in names
        for side in sides(node)
        for one in (side.elts if isinstance(side, ast.Tuple | ast.Set | ast.List) else [side])
    )


def sides(node: ast.Compare) -> list[ast.expr]:
    """What is compared."""
    return [node.left, *node.comparators]


def lines(file: Path) -> int:
    """Of a file."""
    return len(file.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    main()
