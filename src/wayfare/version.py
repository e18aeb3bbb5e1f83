"""The version, where a checkout that was never installed can read it too."""

__version__ = "0.1.0"
