"""Print the versions, the machine and the variables that a bug report needs.

    tfdist env [--json]

It loads no TensorFlow, so it works where TensorFlow fails to load. It does not print the secret of a cluster.
"""

import json as json_format
from typing import Annotated

from tfdist.cli._flags_from_signature import GIVEN_ENVIRONMENT, Flag, run
from tfdist.diagnostics.environment import describe_environment


def main(*, json: Annotated[bool, Flag("Print JSON.")] = False) -> None:
    """Print one line for each fact, or one JSON object."""
    facts = describe_environment(GIVEN_ENVIRONMENT)
    if json:
        print(json_format.dumps(facts, indent=2))
        return
    print("Copy these lines into your bug report:\n")
    for name, value in facts.items():
        print(f"- {name}: {value if value.isprintable() else repr(value)}")


if __name__ == "__main__":
    run(main)
