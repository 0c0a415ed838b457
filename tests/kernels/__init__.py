"""Tests of the sparse kernels."""
