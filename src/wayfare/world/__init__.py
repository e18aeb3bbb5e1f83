"""The drawn world: everything that a scenario and a seed decide before the learning, the same for every scheme."""

from wayfare.world.draw import World, draw_world, fingerprint, last_round_of_any_length
from wayfare.world.peers import Peers, Wish, draw_peers, make_timetable, peers_fingerprint
from wayfare.world.whereabouts import Whereabouts, find_whereabouts

__all__ = [
    "Peers",
    "Whereabouts",
    "Wish",
    "World",
    "draw_peers",
    "draw_world",
    "find_whereabouts",
    "fingerprint",
    "last_round_of_any_length",
    "make_timetable",
    "peers_fingerprint",
]
