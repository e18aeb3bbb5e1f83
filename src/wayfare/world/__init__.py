"""The drawn world: everything that a scenario and a seed decide before the learning, the same for every scheme."""

from wayfare.world.draw import World, draw_world, fingerprint, last_round_of_any_length, local_training
from wayfare.world.holding import held_samples
from wayfare.world.judging import device_scores
from wayfare.world.peers import Peers, Wish, draw_peers, make_timetable, peers_fingerprint

__all__ = [
    "Peers",
    "Wish",
    "World",
    "device_scores",
    "draw_peers",
    "draw_world",
    "fingerprint",
    "held_samples",
    "last_round_of_any_length",
    "local_training",
    "make_timetable",
    "peers_fingerprint",
]
