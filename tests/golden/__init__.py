"""Golden tests: what a pruner does in short trainings, bit for bit.

`configurations` says what is trained, `training` trains and hashes, `on_two_ranks` does so with sharded weights, and
`record` writes the hashes into `recorded.json`.
"""
