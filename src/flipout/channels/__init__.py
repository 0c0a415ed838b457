"""The channels of a network, from the operations that torch.export records.

`record` records a call of a network. `rules` says for each kind of operation where the indices of its result come from.
`graph` finds which indices of which tensors live and die together, and which of them are not read. `norm_calls` finds
norms, which mix channels, and `narrow_norms` lets them lose some that are zero. `resize` makes the modules of a network
smaller in place. `flow` finds what depends on the input, and with it `live_paths` the weights that
matter, and `constants` and `scatter` the channels that have one value. `copies` and `comparison` serve all of them.
"""
