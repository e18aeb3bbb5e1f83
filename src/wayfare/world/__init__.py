"""The world: everything that a scenario and a seed fix before training, equal for every scheme.

Design decisions:

- A method may replace the vector, by class statistics of the same samples (`world_for`), and nothing else.
- Contacts between devices are drawn only for schemes that relay, with their own streams, so all other draws are
  unaffected. Pair numbers do not depend on the size of the fleet.
"""

from wayfare.world.collecting import Withheld, link_of, withheld_classes, world_for
from wayfare.world.draw import World, draw_world, last_common_round, local_training, world_digests
from wayfare.world.holding import held_samples
from wayfare.world.judging import device_scores
from wayfare.world.peers import Peers, Wish, draw_peers, make_timetable, peer_digests

__all__ = [
    "Peers",
    "Wish",
    "Withheld",
    "World",
    "device_scores",
    "draw_peers",
    "draw_world",
    "held_samples",
    "last_common_round",
    "link_of",
    "local_training",
    "make_timetable",
    "peer_digests",
    "withheld_classes",
    "world_digests",
    "world_for",
]
