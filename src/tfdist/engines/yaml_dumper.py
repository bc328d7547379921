"""Write YAML for people: texts of several lines as blocks, and no anchors."""

import re
from typing import Any

import yaml

_NUMBER = re.compile(r"[-+]?(\.?[0-9][0-9_.]*(e[-+]?[0-9]+)?|0[box][0-9a-f_]+)", re.IGNORECASE)


class Dumper(yaml.SafeDumper):
    """Write each value out, and a text of several lines as a block where YAML can."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return whether a value that occurs twice is written twice."""
        return True

    def text(self, text: str) -> yaml.Node:
        """Return the node of a text; one that any version of YAML reads as a number is quoted."""
        style = "|" if "\n" in text else "'" if _NUMBER.fullmatch(text) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, Dumper.text)
