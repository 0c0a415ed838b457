"""The version of this package: in every saved state, and in the run folders of the lab."""

__version__ = "0.3.0"
