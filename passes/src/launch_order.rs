//! Launch order: a topological order in which, of several ready kernels, the one that comes first in the body goes first.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

/// Sorts the keys of `edges` so that successors follow; none if there is a cycle.
pub fn sort<K: Copy + Ord>(edges: &BTreeMap<K, BTreeSet<K>>) -> Option<Vec<K>> {
    let mut graph: DiGraph<K, ()> = DiGraph::new();
    let index: BTreeMap<K, NodeIndex> = edges.keys().map(|k| (*k, graph.add_node(*k))).collect();
    for (from, to) in edges.iter().flat_map(|(k, set)| set.iter().map(move |t| (k, t))) {
        graph.add_edge(index[from], *index.get(to)?, ());
    }
    // petgraph's own sort is deterministic but follows insertion order backwards; a ready set keeps body order.
    let mut waiting: Vec<usize> =
        graph.node_indices().map(|n| graph.edges_directed(n, Direction::Incoming).count()).collect();
    let mut ready: BTreeSet<(K, NodeIndex)> =
        graph.node_indices().filter(|n| waiting[n.index()] == 0).map(|n| (graph[n], n)).collect();
    let mut order = Vec::with_capacity(waiting.len());
    while let Some((key, n)) = ready.pop_first() {
        order.push(key);
        for next in graph.neighbors(n) {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready.insert((graph[next], next));
            }
        }
    }
    (order.len() == waiting.len()).then_some(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_body_order_among_ready_kernels() {
        let edges = BTreeMap::from([
            (1, BTreeSet::from([4])),
            (2, BTreeSet::from([3])),
            (3, BTreeSet::new()),
            (4, BTreeSet::new()),
        ]);
        assert_eq!(sort(&edges), Some(vec![1, 2, 3, 4]));
    }

    #[test]
    fn refuses_a_cycle() {
        let edges = BTreeMap::from([(1, BTreeSet::from([2])), (2, BTreeSet::from([1]))]);
        assert_eq!(sort(&edges), None);
    }
}
