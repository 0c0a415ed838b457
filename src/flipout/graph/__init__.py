"""Networks as graphs: trace a network, find out what its channels do, and rebuild it without those it does not need.

The files are used in this order: `tracing` -> `recognition` -> `analysis` -> `rebuild` -> `equivalence`. The rules that
say how each operation treats channels are in `rules/`.
"""
