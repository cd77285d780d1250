# SPDX-License-Identifier: Apache-2.0
"""Where nodes stand in drawings."""

from nnl.graph.printing.layout import placed


def test_a_label_stands_beside_the_chain_that_it_is_compared_with():
    above = {"x": [], "y": [], "conv": ["x"], "fc": ["conv"], "loss": ["fc", "y"]}
    found = placed(list(above), above)
    assert [found[k] for k in ("x", "conv", "fc", "loss")] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert found["y"] == (1, 2)


def test_branches_stand_side_by_side_and_nothing_on_top_of_another():
    above = {"x": [], "a": ["x"], "b": ["x"], "c": ["b"], "add": ["a", "c"], "again": ["add", "x"]}
    found = placed(list(above), above)
    assert len(set(found.values())) == len(above)
    assert all(found[k][1] > found[source][1] for k in above for source in above[k])
    assert abs(found["a"][0] - found["b"][0]) == 1
