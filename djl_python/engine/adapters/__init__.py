"""A model's LoRA adapters, whichever runner computes them. Runs in the engine process.

- `targets`: which modules of a model an adapter may change, and their shapes.
- `peft_files`: reads what peft saves, and refuses what can't be computed, before its tensors take memory.
- `table`: the adapters of an engine by name, with numbers that are never used again; those in memory.

`batch.adapter_slots` decides which of them a runner holds.
"""
