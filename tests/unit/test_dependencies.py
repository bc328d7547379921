"""Every package that tfdist imports is one that it declares, or that one of those is sure to bring."""

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BROUGHT = {"numpy", "google"}  # by every build of TensorFlow: its arrays, and google.protobuf


def declared():
    """Return the names of the packages in pyproject.toml, dependencies and extras."""
    text = (ROOT / "pyproject.toml").read_text()
    lists = text[text.index("\ndependencies = [") : text.index("[project.scripts]")]
    return {
        name.lower().replace("_", "-")
        for name in re.findall(r'"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?[<>=~"]', lists)
    }


def imported():
    """Return the top modules that the source imports, each with a file that does."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            found |= {name.partition(".")[0]: path.name for name in names}
    return {name: file for name, file in found.items() if name not in {*sys.stdlib_module_names, "tfdist"}}


def test_what_is_imported_is_declared():
    packages, known = importlib.metadata.packages_distributions(), declared()
    missing = {
        name: file
        for name, file in imported().items()
        if not {each.lower().replace("_", "-") for each in packages.get(name, [name])} & known
    }
    assert missing.keys() <= BROUGHT, missing
