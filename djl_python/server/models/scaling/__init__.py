"""The number of a model's workers follows its load. Runs in the front end's event loop.

`scaling` decides when a model gets another worker and when a spare one goes, `autoscaler` has that done.
"""
