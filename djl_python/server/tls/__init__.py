"""Certificates for https: read, renewed, made for tests. Runs in the front end; `command` without a server."""
