"""Print the JSON Schema of the config file, for editors to complete and check it.

    tfdist schema > tfdist.schema.json

and as the first line of a config: `# yaml-language-server: $schema=tfdist.schema.json`
"""

import json

from tfdist.cli._flags_from_signature import run
from tfdist.trainer.config import json_schema


def main() -> None:
    """Print the schema."""
    print(json.dumps(json_schema(), indent=2))


if __name__ == "__main__":
    run(main)
