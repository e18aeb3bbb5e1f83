"""Weights that other libraries download: tried only if their server answers, so that an error appears at once."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

_PATIENCE_S = 5.0
_HELP = "name a file with its weights as NAME@FILE, or load them once on this machine with a network"


def check_download(address: str) -> None:
    """Raise OSError if PyTorch's cache lacks the file of an address and its server does not answer."""
    stored = Path(torch.hub.get_dir(), "checkpoints", Path(urlsplit(address).path).name)
    if not stored.exists() and not answers(address):
        raise no_weights(f"{urlsplit(address).hostname} cannot be reached")


def no_weights(reason: str) -> OSError:
    return OSError(f"its weights are not on this machine, and {reason}; {_HELP}")


@contextmanager
def cached_or_from_hub() -> Generator[None]:
    """Within this block Hugging Face's hub uses only its cache if its server does not answer.

    Otherwise it would repeat each request for half a minute. An error in the block becomes an OSError with the reason.
    """
    hub: Any = importlib.import_module("huggingface_hub.constants")
    before = hub.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = before or not answers(hub.ENDPOINT)
    try:
        yield
    except Exception as error:
        # The hub raises errors of several libraries.
        reason = f"they cannot be downloaded ({error})"
        if hub.HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE is set" if before else f"{urlsplit(hub.ENDPOINT).hostname} cannot be reached"
        raise no_weights(reason) from None
    finally:
        hub.HF_HUB_OFFLINE = before


def answers(address: str) -> bool:
    """Whether the server of an address accepts a connection. A proxy is not asked."""
    parts = urlsplit(address)
    if {parts.scheme, "all"} & getproxies().keys():
        return True
    try:
        socket.create_connection((parts.hostname, parts.port or 443), timeout=_PATIENCE_S).close()
    except OSError:
        return False
    return True
