"""From a loaded model to one that runs: by what, with how much memory, and whether it computes what the model does."""
