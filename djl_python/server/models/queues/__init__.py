"""Calls of a model that wait for a worker: interactive ones, queries, and those of batches. Front end."""
