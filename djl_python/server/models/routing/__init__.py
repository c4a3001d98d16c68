"""Which of a model's workers gets a call. Runs in the front end's event loop; knows neither HTTP nor processes.

`trail` says what is compared of a prompt, `prefix_index` remembers which worker has had what, `router` decides.
"""
