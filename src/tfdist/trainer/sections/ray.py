"""The section `engine.ray` of the config."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = ["Placement", "RaySection"]

Placement = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
_Amount = Annotated[float, Meta(ge=0)]


class RaySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the job of `tfdist submit ray`."""

    address: Annotated[
        str | None,
        Meta(
            description="The address of the head's dashboard, such as http://head:8265;"
            " by default RAY_ADDRESS."
        ),
    ] = None
    resources: Annotated[
        dict[str, dict[str, _Amount]],
        Meta(
            description="What each task of a role needs, by Ray's names, such as worker: {CPU: 8, GPU: 1}."
            " By default one CPU. A task uses as many threads as it has CPUs."
        ),
    ] = {}  # msgspec copies it
    placement: Annotated[
        Placement, Meta(description="Ray's strategy of placement: on few nodes or on many.")
    ] = "PACK"
    max_failures: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(description="How often lost tasks are started again without a new checkpoint in between."),
    ] = 3
    runtime_env: Annotated[
        dict[str, Any],
        Meta(description="Ray's runtime environment, such as working_dir: . or pip: [tfdist]."),
    ] = {}
