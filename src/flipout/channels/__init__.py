"""The channels of a network, from the operations that torch.export records.

`record` records a call of a network. `rules` says for each kind of operation where the indices of its result come from.
`graph` finds which indices of which tensors live and die together, and which of them are not read. `resize` makes the
modules of a network smaller in place.
"""
