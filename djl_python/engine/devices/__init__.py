"""The devices that a model runs on. Runs in the engine process.

`device` picks one and knows what it computes well; `free_memory` is that of the machine or the container; `transfers`
copies numbers without waiting; `tensor_parallel` says how many devices share a model, and has them find one another;
`pipeline_parallel` has them have groups of its layers; `placement` is where a model's weights go, and
`offloading` where accelerate lays them out.
"""
