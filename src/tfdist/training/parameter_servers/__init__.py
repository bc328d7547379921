"""Train with variables on parameter servers: run steps on workers, each at its own pace."""
