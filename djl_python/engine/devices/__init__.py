"""The devices that a model runs on: which one, its free memory, copies to it, several of them that share a model."""
