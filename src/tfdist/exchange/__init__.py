"""Carry tensors from task to task over TCP connections of one's own, in place of TensorFlow's gRPC.

Mirrored workers are a ring (see `ring`), and workers have lines to parameter servers (see `post`). All know
each other by a secret (see `lines`), and those of one machine may share memory (see `shared`).
"""

from tfdist.exchange.ends import named, open_post
from tfdist.exchange.freight import Manifest
from tfdist.exchange.joining import join_ring
from tfdist.exchange.lines import Broken, Unmet
from tfdist.exchange.memory import Fusion
from tfdist.exchange.narrowing import Narrowing, WireType
from tfdist.exchange.post import Post, written_addresses
from tfdist.exchange.ring import Ring, Whole
from tfdist.exchange.secret import SECRET, SECRET_FILE, find_secret

__all__ = [
    "SECRET",
    "SECRET_FILE",
    "Broken",
    "Fusion",
    "Manifest",
    "Narrowing",
    "Post",
    "Ring",
    "Unmet",
    "Whole",
    "WireType",
    "find_secret",
    "join_ring",
    "named",
    "open_post",
    "written_addresses",
]
