"""Turns of requests on a busy model: whose they are, how urgent, and a queue in their order. Every process."""
