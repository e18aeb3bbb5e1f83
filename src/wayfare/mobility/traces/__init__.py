"""Readers of motion and contacts that people already have."""
