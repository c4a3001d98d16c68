"""Turns prepared prompts into the parts of an answer: sequences, beams, budgets and deadlines.

Runs in the worker's event loop, between the client of the engine and a formatter. A handler calls `sequences.generate`.
"""
