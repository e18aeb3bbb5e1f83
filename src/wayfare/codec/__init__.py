"""The cost of a kept entry: by the paper's accounting, and as encoded bytes.

Design decisions:

- Cost is the length of the encoding, counted but not written. Only symbol counts leave the GPU. Tests check that no
  message is longer than billed.
- Codec and simulator share one quantiser in whole numbers, so the memory holds exactly what the receiver lacks.
- Rate-distortion curves are computed segment by segment. Blocks that mix layers made 8 bits look about 10 % cheaper
  than they are.
- Pieces of a progressive upload go by octaves. Pieces of equal counts cost up to 40 % more.
"""

from wayfare.codec.link import make_link
from wayfare.codec.paper import bits_per_entry, dense_bits

__all__ = ["bits_per_entry", "dense_bits", "make_link"]
