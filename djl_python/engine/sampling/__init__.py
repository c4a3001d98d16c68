"""From logits to tokens. Runs in the engine process; grammars are compiled in a thread of their own.

A plan says how each row of the batch is sampled, and is made anew when its sequences change. The sampler applies
biases and the masks of grammars, and has a chooser pick a token for each row: one made of torch's operations here, one
made of kernels in `native`. Choosers apply penalties, temperature and truncation of the distribution in transformers'
order, and draw with a random number that is a function of the seed and the position alone.
"""
