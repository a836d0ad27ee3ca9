"""The code uses Ray, MLflow and others by their public names; the few exceptions have their reason here."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
           for folder in ("pipeline", "analysis", "tests") for path in sorted((ROOT / folder).rglob("*.py"))}
IMPORTS = {
    # Only Ray itself knows which files `ray up` takes, and has no public way to ask.
    ("tests/sweep/test_cluster_files.py", "ray.autoscaler._private.util"),
}
OF_ANYTHING = {"_replace", "_asdict"}  # documented, of named tuples
ATTRIBUTES = {
    ("pipeline/terminal.py", "os._exit"),  # documented
    # Of this project's own classes.
    ("pipeline/learning/model.py", "model._current_network"), ("pipeline/sweep/recorder.py", "other._ended"),
    ("pipeline/trials/config.py", "trial._compose"),
    # MLflow computes an epoch's metrics anew at each public access.
    ("pipeline/tracking/artifacts.py", "run.data._metric_objs"),
    # Torch has integer products, its operators and a tensor's hooks nowhere else.
    ("pipeline/learning/integers/products.py", "torch._int_mm"),
    ("pipeline/learning/own/graph.py", "aten._unsafe_view"),
    ("pipeline/learning/own/operators.py", "aten._to_copy"), ("pipeline/learning/own/operators.py", "torch._ops"),
    ("pipeline/learning/own/ways.py", "parameter._backward_hooks"),
    ("pipeline/learning/own/ways.py", "parameter._post_accumulate_grad_hooks"),
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imported(tree: ast.AST) -> set[str]:
    """All modules that are imported, and names from them, `module.name`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_nothing_private_of_ray_or_mlflow_is_imported_nor_the_grpc_inside():
    private = {(file, name) for file, tree in SOURCES.items() for name in imported(tree)
               if (name.split(".")[0] in ("ray", "mlflow") and any(map(is_private, name.split("."))))
               or name.split(".")[0] == "grpc"}
    assert {(file, name.rpartition(".")[0]) for file, name in private} <= IMPORTS


def test_private_attributes_are_those_of_the_object_itself():
    found = set()
    for file, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in OF_ANYTHING:
                found.add((file, ast.unparse(node)))
    own = ("self.", "cls.", "super().")
    assert {(file, text) for file, text in found
            if not file.startswith("tests/") and not text.startswith(own)} <= ATTRIBUTES


def test_private_names_are_found():
    """Or the tests above would hold whatever the code does."""
    tree = ast.parse("import ray._private.state\nfrom ray._private import worker\nimport grpc\nray._raylet.x")
    assert imported(tree) == {"ray._private.state", "ray._private.worker", "grpc"}
    assert [is_private(name) for name in ("_private", "__init__", "ray")] == [True, False, False]
