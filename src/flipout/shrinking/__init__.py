"""Shrinking: channels that influence nothing leave the network that is being trained, with all that belongs to them."""
