"""Models as flat vectors with layer views."""
