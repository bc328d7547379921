"""Exchange gradients over TCP connections of one's own, in place of TensorFlow's collectives over gRPC.

The tasks that train are a ring (see `ring`), whose neighbours know each other by a secret (see `lines`).
"""

from tfdist.exchange.joining import join_ring
from tfdist.exchange.lines import Unmet
from tfdist.exchange.memory import Fusion
from tfdist.exchange.narrowing import Narrowing, WireType
from tfdist.exchange.ring import Broken, Ring, Whole
from tfdist.exchange.secret import SECRET, SECRET_FILE, find_secret

__all__ = [
    "SECRET",
    "SECRET_FILE",
    "Broken",
    "Fusion",
    "Narrowing",
    "Ring",
    "Unmet",
    "Whole",
    "WireType",
    "find_secret",
    "join_ring",
]
