"""The user's files: finding them, reading them without running them, loading them; and batches for their handlers."""
