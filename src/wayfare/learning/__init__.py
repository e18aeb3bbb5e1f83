"""Tasks, models, partitions of the data, local training and evaluation.

Design decisions:

- A vector holds what training changes: trainable parameters and persistent buffers. `own_task` marks constant buffers
  as not persistent, and the `reference` engine checks after every burst that they stayed constant.
- Class shares are the drawn ones. Each class is dealt from a shuffled deck, and an empty deck is dealt again, so two
  devices may hold the same sample. `dealing = "once"` gives every sample to one device instead. The paper asks for
  both, which is impossible.
- Recalibration takes one batch, because several batches would each normalise by their own moments.
- Metrics of your own tasks see the whole test set at once. Sums over pieces would need every metric written twice.
"""
