"""The devices that a model runs on. Runs in the engine process.

`device` picks one and knows its fast number formats; `free_memory` measures the machine or the container; `transfers`
copies numbers without waiting; `pages` maps memory and gives it back; `tensor_parallel` says how many devices share a
model, and connects them; `pipeline_parallel` divides its layers among them; `placement` places a model's weights, and
`offloading` has accelerate distribute them.
"""
