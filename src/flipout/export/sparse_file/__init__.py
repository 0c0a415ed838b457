"""Sparse files: a `state_dict` without its zeros, restored bit for bit. docs/export.md describes the layout."""
