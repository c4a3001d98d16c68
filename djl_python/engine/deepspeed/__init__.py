"""DeepSpeed as an engine: it places a model's weights, and the built-in engine's batch runs the model.

`row` is read in every process; `options` and `configuration` read DeepSpeed's settings, and import nothing of it;
`opening`, `placing` and the modules below it run in an engine process whose interpreter has DeepSpeed, and only
`placing`, `partitioning` and `extensions` import it.
"""
