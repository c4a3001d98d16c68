"""What flows through the system, what can go wrong, and the smallest helpers: no I/O."""
