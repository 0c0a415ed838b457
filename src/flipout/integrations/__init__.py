"""Callbacks for training frameworks. Import the one that you need, such as `flipout.integrations.lightning`."""
