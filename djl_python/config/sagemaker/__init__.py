"""SageMaker's variables and its secure mode. Runs in the front end.

- `variables`: the settings that SageMaker's variables stand for.
- `secure_mode`: the restrictions on models that the platform may demand.
"""
