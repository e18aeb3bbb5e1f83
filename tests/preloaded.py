"""Read the embedded images before all processes of the tests are forked; otherwise each would decompress them again."""

from __future__ import annotations

import gc

from wayfare.learning.tasks.fashion_small import fashion_small

fashion_small((1,))
# A search for garbage in a fork would copy every page that it shares with the others.
gc.freeze()
