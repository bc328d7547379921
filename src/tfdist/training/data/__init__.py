"""Distribute each example of the data to one replica, in an order that all workers share."""
