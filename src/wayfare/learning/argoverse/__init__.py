"""Argoverse 1 motion forecasting: sequences, lane graphs, scenes and batches."""
