"""The worker process: one replica of one model."""
