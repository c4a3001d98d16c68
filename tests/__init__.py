"""The tests: they mirror `djl_python` file by file, beside whole-system tests in folders of their own."""
