"""Lane graphs, scenes and the file they are kept in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from wayfare.errors import InputError
from wayfare.learning.argoverse import cache
from wayfare.learning.argoverse.cache import Prepared, load_prepared, prepared_scenes, save_prepared
from wayfare.learning.argoverse.lanes import Lane, LaneGraph, hops, joined, lane_graph
from wayfare.learning.argoverse.maps import map_files, read_hd_map, read_maps, read_navmap
from wayfare.learning.argoverse.scenes import (
    LaneFinder,
    SceneSettings,
    constant_velocity,
    fitted_constant_velocity,
    fitted_velocity,
    scene_of,
)
from wayfare.learning.argoverse.sequence import Sequence, read_sequence
from wayfare.learning.argoverse.synthetic import synthetic_scenes, synthetic_sequence, write_synthetic
from wayfare.progress import listening

HD_MAP = """<?xml version="1.0"?><ArgoverseVectorMap>
<node id="0" x="0" y="0"/><node id="1" x="20" y="0"/><node id="2" x="40" y="0"/>
<node id="3" x="0" y="4"/><node id="4" x="20" y="4"/><node id="5" x="nan" y="4"/>
<way lane_id="10"><tag k="turn_direction" v="NONE"/><tag k="has_traffic_control" v="True"/>
<tag k="is_intersection" v="False"/><tag k="l_neighbor_id" v="12"/><tag k="r_neighbor_id" v="None"/>
<nd ref="0"/><nd ref="1"/><tag k="successor" v="11"/><tag k="successor" v="99"/></way>
<way lane_id="11"><tag k="turn_direction" v="LEFT"/><tag k="is_intersection" v="True"/>
<nd ref="1"/><nd ref="2"/><tag k="predecessor" v="10"/></way>
<way lane_id="12"><tag k="r_neighbor_id" v="10"/><nd ref="3"/><nd ref="4"/></way>
<way lane_id="13"><nd ref="3"/><nd ref="5"/></way>
</ArgoverseVectorMap>"""


def straight(city: str = "MIA", speed_m: float = 1.0) -> Sequence:
    """An agent that drives north at a metre a step, and a parked car far away."""
    steps = np.arange(50.0)
    agent = np.stack([np.full(50, 100.0), 200 + speed_m * (steps - 19)], axis=1)
    return Sequence(city=city, kinds=np.array([0, 2]), places_m=np.stack([agent, np.full((50, 2), 5000.0)]))


def test_lanes_are_cut_into_pieces_that_follow_one_another() -> None:
    lines = [np.array([[0.0, 0.0], [20.0, 0.0]]), np.array([[20.0, 0.0], [20.0, 5.0]])]
    graph = lane_graph([Lane(line_m=lines[0], successors=[1]), Lane(line_m=lines[1])], 8.0)
    assert len(graph) == 4
    np.testing.assert_allclose(graph.start_m[:, 0], [0, 20 / 3, 40 / 3, 20])
    assert sorted(map(tuple, graph.follows.tolist())) == [(0, 1), (1, 2), (2, 3)]
    both = joined([graph, graph])
    assert both.follows.tolist()[3:] == (graph.follows + 4).tolist()
    assert len(lane_graph([], 8.0)) == len(joined([])) == 0


def test_dilated_hops_are_powers_of_the_adjacency_matrix() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.random((30, 30)) < 0.05
    power = matrix.astype(int)
    for scale in hops(np.argwhere(matrix), 30, 4):
        assert scale.tolist() == np.argwhere(power > 0).tolist()
        power = np.minimum(power @ power, 1)


def test_a_road_graph_leads_on_but_not_back(tmp_path: Path) -> None:
    nodes = [{"x": 0, "y": 0, "id": "a"}, {"x": 10, "y": 0, "id": "b"}, {"x": 20, "y": 0, "id": "c"}]
    ways = [[{"id": "b"}], [{"id": "a"}, {"id": "c"}], [{"id": "b"}]]
    (tmp_path / "MIA.json").write_text(json.dumps({"nodes": nodes, "adjacency": ways}))
    lanes = read_navmap(tmp_path / "MIA.json")
    ahead = {
        tuple(lane.line_m[:, 0].tolist()): [lanes[after].line_m[1, 0] for after in lane.successors] for lane in lanes
    }
    assert ahead == {(0, 10): [20], (10, 0): [], (10, 20): [], (20, 10): [0]}


def test_an_official_map_gives_lanes_with_neighbours_and_flags(tmp_path: Path) -> None:
    path = tmp_path / "pruned_argoverse_MIA_10316_vector_map.xml"
    path.write_text(HD_MAP)
    assert map_files("hd", tmp_path) == {"MIA": path}
    lanes = read_hd_map(path)
    assert [lane.successors for lane in lanes] == [[1], [], []]
    assert [lane.left for lane in lanes] == [2, None, None]
    assert [lane.right for lane in lanes] == [None, None, 0]
    assert [lane.flags for lane in lanes[:2]] == [(False, False, True, False), (True, False, False, True)]
    graph = read_maps("hd", {"MIA": path}, 10.0)
    assert graph.left.tolist() == [[0, 4], [1, 5]]
    assert graph.right.tolist() == [[4, 0], [5, 1]]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nodes": [{"id": 1}], "adjacency": [[]]}', '{"nodes": []}'])
def test_a_file_that_is_no_road_graph_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "PIT.json").write_text(text)
    with pytest.raises(InputError, match=r"PIT\.json: not a road graph"):
        read_navmap(tmp_path / "PIT.json")


@pytest.mark.parametrize(
    "text", ["", "<a>", "<a/>", '<a><node id="1"/></a>', '<a><way lane_id="1"><nd ref="5"/></way></a>']
)
def test_a_file_that_is_no_official_map_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "map.xml").write_text(text)
    with pytest.raises(InputError, match=r"map\.xml: "):
        read_hd_map(tmp_path / "map.xml")


def test_maps_that_are_not_there_are_named(tmp_path: Path) -> None:
    assert map_files("none", None) == {}
    with pytest.raises(InputError, match="needs the folder of its files"):
        map_files("hd", None)
    with pytest.raises(InputError, match=r"contains no navmap map \(MIA.json, PIT.json\)"):
        map_files("navmap", tmp_path)


def test_a_scene_has_its_agent_at_the_origin_heading_along_x() -> None:
    scene = scene_of(straight(), LaneFinder(LaneGraph()), SceneSettings(), "a.csv")
    places = scene.places_m()
    assert places.shape == (1, 50, 2)  # the parked car is too far away
    np.testing.assert_allclose(places[0, :, 0], np.arange(50.0) - 19, atol=0.006)
    np.testing.assert_allclose(places[0, :, 1], 0, atol=0.006)
    np.testing.assert_allclose(constant_velocity(places)[0], places[0, 20:], atol=0.02)
    np.testing.assert_allclose(fitted_constant_velocity(places)[0], places[0, 20:], atol=0.02)


def test_a_fitted_velocity_is_that_of_least_squares_over_what_was_seen() -> None:
    rng = np.random.default_rng(1)
    tracks = np.cumsum(rng.normal(1, 0.3, (20, 20, 2)), axis=1)
    tracks[:, :-1][rng.random((20, 19)) < 0.4] = np.nan
    for track, velocity in zip(tracks, fitted_velocity(tracks), strict=True):
        seen = np.flatnonzero(~np.isnan(track[:, 0]))
        seen = seen[seen >= 12]
        expected = np.polyfit(seen, track[seen], 1)[0] if len(seen) > 1 else [0, 0]
        np.testing.assert_allclose(velocity, expected, atol=1e-9)


def test_lanes_near_the_agent_are_those_within_the_radius() -> None:
    prepared = synthetic_scenes(6, 2, SceneSettings(lane_radius_m=50))
    centre = prepared.lanes.centre_m
    for scene in range(6):
        mine = prepared.train.lanes[prepared.train.first_lane[scene] : prepared.train.first_lane[scene + 1]]
        near = np.hypot(*(centre - prepared.train.origin_m[scene]).T) <= 50
        assert mine.tolist() == np.flatnonzero(near & (prepared.lanes.city == prepared.train.city[scene])).tolist()


def test_a_lane_graph_that_does_not_cover_the_scene_is_refused() -> None:
    far = lane_graph([Lane(line_m=np.array([[9e3, 0.0], [9e3, 50.0]]))], 8.0)
    with pytest.raises(
        InputError, match=r"5\.csv: the lane graph does not cover the scene: no lane of MIA within 80 m"
    ):
        scene_of(straight(), LaneFinder(far), SceneSettings(), "5.csv")
    here = lane_graph([Lane(line_m=np.array([[100.0, 150.0], [100.0, 250.0]]))], 8.0)
    assert len(scene_of(straight(), LaneFinder(here), SceneSettings(), "5.csv").lanes)
    with pytest.raises(InputError, match="no lane of PIT"):
        scene_of(straight("PIT"), LaneFinder(here), SceneSettings(), "5.csv")


def same(one: Prepared, other: Prepared) -> bool:
    return all(
        np.array_equal(getattr(getattr(one, part), name), getattr(getattr(other, part), name))
        for part, names in (
            ("train", ("names", "tracks", "lanes", "first_lane", "city")),
            ("lanes", ("start_m", "follows")),
        )
        for name in names
    )


def test_a_folder_is_read_once_and_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, kept = tmp_path / "made", tmp_path / "cache"
    write_synthetic(folder, 4, 2)
    read: list[Path] = []
    monkeypatch.setattr(cache, "read_sequence", lambda path: (read.append(path), read_sequence(path))[1])
    told: list[tuple[str, int, int]] = []

    def prepared() -> Prepared:
        return prepared_scenes(folder, "navmap", folder / "navmap", SceneSettings(), kept)

    with listening(lambda *progress: told.append(progress)):
        first = prepared()
    assert told == [("reading sequences", done, 6) for done in range(1, 7)]
    assert same(prepared(), first)
    assert len(read) == 6
    (file,) = kept.iterdir()
    file.write_bytes(file.read_bytes()[:-200])  # damaged: made again
    assert same(prepared(), first)
    assert len(read) == 12
    (folder / "train" / "data" / "4.csv").unlink()
    assert len(prepared().train) == 3
    assert len(list(kept.iterdir())) == 2


def test_nothing_is_written_when_a_sequence_cannot_be_used(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "made", 3, 1)
    (tmp_path / "made" / "train" / "data" / "2.csv").write_text("TIMESTAMP\n")
    with pytest.raises(InputError, match=r"2\.csv: the column TRACK_ID is missing"):
        prepared_scenes(tmp_path / "made", "none", None, SceneSettings(), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_prepared_scenes_come_back_from_their_file(tmp_path: Path) -> None:
    prepared = synthetic_scenes(3, 2, SceneSettings())
    save_prepared(tmp_path / "scenes.npz", prepared)
    assert same(load_prepared(tmp_path / "scenes.npz"), prepared)
    assert [path.name for path in tmp_path.iterdir()] == ["scenes.npz"]
    (tmp_path / "other.npz").write_bytes(b"not an archive")
    with pytest.raises(InputError, match=r"other\.npz: damaged, or not a file of prepared scenes"):
        load_prepared(tmp_path / "other.npz")


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_synthetic_scenes_are_those_of_their_files(seed: int, tmp_path: Path) -> None:
    # Road users come into view in an order of their own with some of these seeds.
    write_synthetic(tmp_path / "made", 4, 2, seed)
    files = prepared_scenes(
        tmp_path / "made", "navmap", tmp_path / "made" / "navmap", SceneSettings(), tmp_path / "cache"
    )
    memory = synthetic_scenes(4, 2, SceneSettings(), seed=seed)
    np.testing.assert_array_equal(files.train.lanes, memory.train.lanes)
    assert np.abs(files.train.tracks.astype(int) - memory.train.tracks).max() <= 1
    assert len(memory.without_lanes().lanes) == 0
    assert synthetic_sequence(0, "val", 0).city in ("MIA", "PIT")
