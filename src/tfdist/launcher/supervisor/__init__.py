"""Start, watch and end the tasks of a local cluster, in a process between them and the launcher.

It must be a separate process, because only such a process

- outlives a SIGKILL of the launcher, and can then end the tasks;
- may adopt processes that the tasks leave behind (PR_SET_CHILD_SUBREAPER) and end them, and not confuse
them with other children of the user's process;
- has a single thread, which the kernel requires to enter a user namespace, and which makes fork safe.

The launcher starts it with the standard library alone. So its modules import only the standard library, and
each other by relative names.

The two talk over a socket, one JSON value per line. The launcher sends the plan, and later `"end"`
(SIGTERM, and SIGKILL after the grace period), `"kill"`, or `{"kill": "worker:1"}` for one task. The end of
the stream means that the launcher is dead, and counts as `"kill"`. The supervisor reports events in this
order: `network`, `started`, `lost` or `unstartable`, `exited`, `asked`, `ended`; and for the logs
`unwritable` and `large`.
"""
