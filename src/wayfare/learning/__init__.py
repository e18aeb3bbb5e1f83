"""Tasks, models, partitions of the data, local training and evaluation."""
