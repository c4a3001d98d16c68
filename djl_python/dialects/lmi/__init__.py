"""LMI's API, with DJL's routes: /invocations, /predictions/{model}."""
