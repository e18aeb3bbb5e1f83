"""Argoverse 1 motion forecasting: sequences, lane graphs, and scenes as a network takes them."""
