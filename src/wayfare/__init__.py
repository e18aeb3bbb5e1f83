"""Federated learning for devices that move."""
