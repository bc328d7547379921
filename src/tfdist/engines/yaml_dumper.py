"""Write YAML for people: texts of several lines as blocks, and no anchors."""

from typing import Any

import yaml


class Dumper(yaml.SafeDumper):
    """Write each value out, and a text of several lines as a block where YAML can."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return whether a value that occurs twice is written twice."""
        return True

    def text(self, text: str) -> yaml.Node:
        """Return the node of a text."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, Dumper.text)
