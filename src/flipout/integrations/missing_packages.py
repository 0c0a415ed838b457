"""The error for an integration whose framework is not installed."""

from __future__ import annotations


def missing_package(package: str, extra: str) -> ImportError:
    """The error that names the extra to install."""
    return ImportError(
        f"flipout.integrations.{extra} needs the package {package}, which is not installed: "
        f"pip install 'flipout[{extra}]'",
        name=package,
    )
