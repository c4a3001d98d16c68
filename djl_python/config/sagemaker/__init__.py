"""SageMaker's side of the configuration, read in the front end: what its variables mean, and its secure mode.

- `variables`: the settings that SageMaker's variables stand for.
- `secure_mode`: what a model may not have where the platform forbids it.
"""
