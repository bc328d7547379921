"""Define the values that several sections of the config have, and how keys are described."""

from typing import Annotated, Any

from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]
# A name, or a mapping of a name and arguments: {name: adamw, weight_decay: 0.01}.
Named = str | Annotated[dict[str, Any], Meta(extra_json_schema={"required": ["name"]})]


def doc(description: str, **constraints: Any) -> Meta:
    """Describe a key of the config, and constrain its values; both are in the JSON Schema."""
    return Meta(description=description, **constraints)


def name_and_arguments(value: Named) -> tuple[str, dict[str, Any]]:
    """Return the name in the config, and the arguments beside it."""
    if isinstance(value, str):
        return value, {}
    return value["name"], {key: argument for key, argument in value.items() if key != "name"}
