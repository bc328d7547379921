"""Own the tasks of a local cluster, as a process between them and the launcher.

It takes a process of its own, because only that

- outlives a SIGKILL of the launcher, and can end the tasks then;
- may adopt what the tasks leave behind (PR_SET_CHILD_SUBREAPER) and end it, without mistaking other children
  of the user's process for it;
- has one thread, without which the kernel lets nobody into a user namespace, and fork is not safe.

The launcher starts it with the standard library alone; so what is in here imports nothing but that, and by
relative names each other.

They talk over a socket, one JSON value a line. The launcher sends the plan, then `"end"` (SIGTERM, and
SIGKILL after the grace), `"kill"`, or `{"kill": "worker:1"}` for one task; the end of the stream means that
it is dead, and counts as `"kill"`. The warden tells what happens, in its order: `network`, `started` or
`unstartable`, `exited`, `asked`, `ended`; and of the logs `unwritable` and `large`.
"""
