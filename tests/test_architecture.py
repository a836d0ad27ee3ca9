"""Data flows one way and imports point the other: who may import whom, read from the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Every module may import those before it.
ORDER = """datasets records settings shapes choices combinations config unused exhibits stopping plugins experiment
packs accounting.finite_precision
accounting.epsilon accounting.photonic accounting.curves accounting.column accounting.label accounting.leekifer
accounting.gaussian accounting.selection accounting.audit accounting.noise accounting.certified
accounting.evaluations accounting accounting.check
rounded_gaussian randomness layers networks sampling download data inputs projection
feedback mechanisms.base mechanisms.none mechanisms.fixed_point mechanisms.optics mechanisms.photonic
mechanisms.gaussian mechanisms
scores canaries disclosure evaluation
alignment training api state attacks low_order_bits release estimate
artifacts audit backend patience tracking ui lock checkpoints status resources progress worker recorder cluster tuning
sweep
cli""".split()
LIBRARIES = {"ray": ("cluster", "sweep", "tuning"), "mlflow": ("backend",), "lightonml": ("projection",)}
# These know configurations and records, and nothing of how an algorithm works.
IGNORANT = {**dict.fromkeys(("backend", "tracking", "cluster", "tuning", "analysis"), set()), "sweep": {"projection"}}
ALGORITHMS = {"randomness", "layers", "networks", "sampling", "data", "projection", "feedback", "mechanisms",
              "alignment", "training"}


def modules():
    for path in sorted([*ROOT.glob("pipeline/**/*.py"), *ROOT.glob("analysis/**/*.py")]):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        yield name, path


def imports(path):
    """Dotted names of all imports, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_point_one_way(name, path):
    short = name.removeprefix("pipeline.")
    for target in imports(path):
        library = target.split(".")[0]
        if library in LIBRARIES:
            assert short in LIBRARIES[library], f"{name} imports {target}; only {LIBRARIES[library]} do"
        if library == "analysis":
            assert name.startswith("analysis") or short == "cli", f"{name} imports {target}"
        if not target.startswith("pipeline."):
            continue
        used = target.removeprefix("pipeline.")
        if name not in ("pipeline", "analysis") and name.startswith("pipeline."):
            assert ORDER.index(used) < ORDER.index(short), f"{name} imports {target}, which comes after it"
        room = name.split(".")[0] if name.startswith("analysis") else short
        if room in IGNORANT and used.split(".")[0] in ALGORITHMS:
            assert used in IGNORANT[room], f"{name} imports {target}"


def test_every_module_has_its_place():
    assert {name.removeprefix("pipeline.") for name, _ in modules()
            if name.startswith("pipeline.")} == set(ORDER)
