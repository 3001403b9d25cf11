"""The layout of lineage graphs: whatever the graph, no two nodes overlap and edges run one way."""

from itertools import pairwise

from hypothesis import given, strategies as st

from lmlab.web.layout import GAP_X, NODE_HEIGHT, NODE_WIDTH, draw, neighbourhood, ranks


@st.composite
def graphs(draw_from):
    """A graph without cycles: edges go from a smaller number to a larger one."""
    size = draw_from(st.integers(1, 24))
    pairs = [(i, j) for i in range(size) for j in range(i + 1, size)]
    chosen = draw_from(st.lists(st.sampled_from(pairs), unique=True, max_size=60)) if pairs else []
    nodes = [f"n{i}@dev" for i in range(size)]
    return draw_from(st.permutations(nodes)), [(nodes[i], nodes[j]) for i, j in chosen]


@given(graphs())
def test_no_two_nodes_overlap_and_edges_run_from_left_to_right(graph):
    nodes, edges = graph
    drawing = draw(nodes, edges)
    boxes = sorted(drawing.places.values())
    for (x0, y0), (x1, y1) in pairwise(boxes):
        assert x1 - x0 >= NODE_WIDTH + GAP_X or y1 - y0 >= NODE_HEIGHT
    for source, target in edges:
        assert drawing.places[source][0] + NODE_WIDTH < drawing.places[target][0]
    assert all(0 <= x <= drawing.width - NODE_WIDTH for x, _ in boxes)
    assert all(-1e-6 <= y <= drawing.height - NODE_HEIGHT + 1e-6 for _, y in boxes), "sums of floats"
    assert len(drawing.paths) == len(edges)


@given(graphs(), st.data())
def test_a_cycle_is_drawn_without_overlaps(graph, data):
    nodes, edges = graph
    back = data.draw(st.lists(st.tuples(st.sampled_from(nodes), st.sampled_from(nodes)), max_size=4))
    edges = [*edges, *((a, b) for a, b in back if a != b)]
    boxes = sorted(draw(nodes, edges).places.values())
    for (x0, y0), (x1, y1) in pairwise(boxes):
        assert x1 - x0 >= NODE_WIDTH + GAP_X or y1 - y0 >= NODE_HEIGHT


def test_the_same_order_is_kept_along_parallel_chains():
    nodes = [f"{chain}{level}" for level in range(4) for chain in "cab"]
    edges = [(f"{chain}{level}", f"{chain}{level + 1}") for chain in "abc" for level in range(3)]
    places = draw(nodes, edges).places
    for chain in "abc":
        assert len({places[f"{chain}{level}"][1] for level in range(4)}) == 1, "a chain is a straight line"


def test_an_input_stands_beside_its_first_user():
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("late", "d")]
    assert ranks(["a", "b", "c", "d", "late"], edges)["late"] == 2


def test_a_neighbourhood_ends_after_the_hops_asked_for():
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("b", "x"), ("a", "c")]
    assert neighbourhood("c", edges, 1, 1) == {"c": 0, "b": 1, "a": 1, "d": 1}
    assert set(neighbourhood("c", edges, 0, 2)) == {"c", "d", "e"}


def test_two_thousand_nodes_are_placed_within_a_second():
    nodes = [f"n{i}" for i in range(2_000)]
    edges = [(f"n{i // 3}", f"n{i}") for i in range(1, 2_000)]
    assert len(draw(nodes, edges).places) == 2_000
