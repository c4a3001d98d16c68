"""The batch: its sequences, which of them compute what in a step, and where their keys and values lie."""
