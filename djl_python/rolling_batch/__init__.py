"""DJL's rolling batches: what a handler subclasses to batch by itself. Runs in the worker.

The built-in engine is none of them (`engine.interface`): these are for code written for DJL.
"""
