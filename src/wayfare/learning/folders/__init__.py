"""Samples in a folder that grows: read by minibatch, so the data may be larger than the memory.

Design decisions:

- Every file becomes one part with mapped inputs. Tables and compressed files cannot be mapped, so their numbers are
  copied once into a cache. Only labels are in memory.
- A file that cannot be read is skipped with one warning and tried again when it changes: it may be half written.
- Files are in the order of their names, so that a restart with the same files has the same sample numbers.
"""

from wayfare.learning.folders.samples import FolderSamples, Wanted

__all__ = ["FolderSamples", "Wanted"]
