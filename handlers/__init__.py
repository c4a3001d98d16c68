"""Built-in handlers, one flat module each; installed as `djl_python.handlers`."""
