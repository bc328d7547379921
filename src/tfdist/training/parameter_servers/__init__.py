"""Read and write variables on parameter servers, whole, in shards or by rows, and count what is applied."""
