"""The header of a message: what it holds, and how long it is."""

from __future__ import annotations

import struct

# Magic, version, kind of indices, bits of values, model, parameters, statistics, first index, span of the indices,
# kept entries, symbols of gaps, bytes of indices, bytes of values. A checksum of the header and of everything after
# it follows.
HEADER = struct.Struct("<2sBBB8sIIIIIIII")
CHECKSUM = struct.Struct("<I")
HEADER_BYTES = HEADER.size + CHECKSUM.size
