"""Declares the operators of torchvision, so that it can be imported beside a PyTorch that it was not built for.

fluke imports torchvision, and pip may find PyTorch without CUDA but only a torchvision with it. None is called.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import torch

_library = torch.library.Library("torchvision", "FRAGMENT")
_found = find_spec("torchvision")
if _found is not None and _found.origin is not None:
    _text = Path(_found.origin).with_name("_meta_registrations.py").read_text(encoding="utf-8")
    for _name in sorted(set(re.findall(r'(?:torchvision::|register_meta\(")(\w+)', _text))):
        _library.define(f"{_name}() -> ()")
