"""Make the tf.distribute.Strategy that fits a cluster: `make_strategy(cluster)`."""
