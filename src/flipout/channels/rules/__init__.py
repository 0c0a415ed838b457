"""The rules: for each kind of operation, where the elements of its result come from. `table` has all of them."""
