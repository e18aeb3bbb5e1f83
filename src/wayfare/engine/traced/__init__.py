"""Stacks for a user's own network: its operations are traced, and the devices share each of them.

The samples of n devices form one batch, device after device. An operation without parameters runs on it unchanged. An
operation with parameters is replaced by one that gives each device its own: batched products, convolutions, norms,
recurrences and attention (`layers.py`, `recurrent.py`, `attention.py`), and PyTorch's `vmap` of that one operation for
everything else.

What an operation does with the samples of a batch is not guessed. `probing.py` traces the network with two batches of
different sizes and compares the shapes; `network.py` rejects a network that combines samples. A step is also compared
with `reference` before the engine is used (`engine/choice.py`).
"""
