"""Print docs/configuration.md: the keys of a config, and the commands.

python docs/_configuration.py > docs/configuration.md
"""

import json
from typing import Any

from tfdist.cli.commands import COMMANDS
from tfdist.trainer.config import json_schema


def configuration() -> str:
    """Return a table of the keys of each section, from the JSON Schema of the config."""
    definitions = json_schema()["$defs"]
    lines = [
        "# Configuration",
        "",
        "The keys of a config file. `tfdist schema` prints the schema for editors.",
    ]
    _add_section(lines, definitions, "", definitions["Config"])
    lines += ["", "## Commands", "", "| command | |", "|---|---|"]
    return "\n".join([*lines, *(f"| `tfdist {name}` | {text} |" for name, text in COMMANDS.items())])


def _add_section(lines: list[str], definitions: Any, name: str, definition: Any) -> None:
    sections, rows = [], []
    for key, value in definition.get("properties", {}).items():
        section = definitions.get(_reference(value), {})
        text, default = value.get("description", ""), value.get("default")
        if "properties" in section:
            path = f"{name}.{key}".lstrip(".")
            sections.append((path, section))
            link = f"[section](#{path.replace('.', '')})"
            rows.append(f"| `{key}` | {link} | | {text or section.get('description', '')} |")
            continue
        shown = "" if default is None else f"`{json.dumps(default)}`"
        rows.append(f"| `{key}` | {_type(value)} | {shown} | {text} |")
    lines += ["", f"## `{name}`" if name else "## Sections", "", definition.get("description", ""), ""]
    lines += ["| key | type | default | meaning |", "|---|---|---|---|", *rows]
    for section in sections:
        _add_section(lines, definitions, *section)


def _reference(value: Any) -> str:
    parts = [value, *value.get("anyOf", []), *value.get("allOf", [])]
    return next((part["$ref"].rpartition("/")[2] for part in parts if "$ref" in part), "")


def _type(value: Any) -> str:
    if "enum" in value:
        return ", ".join(f"`{json.dumps(word)}`" for word in value["enum"])
    if "anyOf" in value:
        return " or ".join(filter(None, map(_type, value["anyOf"])))
    return "mapping" if "$ref" in value else str(value.get("type", ""))


if __name__ == "__main__":
    print(configuration())
