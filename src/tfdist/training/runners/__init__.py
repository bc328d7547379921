"""Run the executions of an epoch: on replicas in step, or on asynchronous workers."""
