//! Properties of the text form and the verifier over random graphs, modules and mutilated texts.

// Helpers outside `#[test]` functions fail the test as well.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::Tape;
use proptest::prelude::*;
use unglue_ir::text::{Unit, parse, parse_graph, parse_module, print_graph, print_module};
use unglue_ir::verify;

fn tape(len: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..len)
}

/// A text with some bytes, lines and numbers changed.
fn mutilate(text: &str, t: &mut Tape) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + t.below(4) {
        let at = t.below(bytes.len().max(1));
        let lines: Vec<Vec<u8>> = bytes.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
        let (a, b) = (t.below(lines.len()), t.below(lines.len()));
        let mut edited = lines.clone();
        match t.below(7) {
            0 => bytes.get_mut(at).into_iter().for_each(|b| *b ^= 1 << t.below(8)),
            1 => drop(bytes.splice(at..bytes.len().min(at + t.below(9)), [])),
            2 => drop(bytes.splice(
                at..at,
                t.pick(&[&b"\""[..], b"{", b"}", b"%", b"(", b"99999999999999999999", b"\xff"]).to_vec(),
            )),
            3 => edited.insert(a, lines[b].clone()),
            4 => drop(edited.remove(a)),
            5 => edited.swap(a, b),
            _ => bytes = swap_number(&bytes, at, t),
        }
        if edited != lines {
            bytes = edited.join(&b'\n');
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Another number for the first one at or after `at`.
fn swap_number(bytes: &[u8], at: usize, t: &mut Tape) -> Vec<u8> {
    let digit = |b: &u8| b.is_ascii_digit();
    let Some(start) = bytes[at.min(bytes.len())..].iter().position(digit).map(|i| i + at) else {
        return bytes.to_vec();
    };
    let end = bytes[start..].iter().position(|b| !digit(b)).map_or(bytes.len(), |i| i + start);
    let number = t.pick(&["0", "1", "2", "3", "7", "64", "4294967295", "4294967296", "18446744073709551615"]);
    [&bytes[..start], number.as_bytes(), &bytes[end..]].concat()
}

/// Parses and verifies; what is accepted has a canonical text that means the same.
fn survives(text: &str) {
    let Ok(unit) = parse(text) else { return };
    let printed = match &unit {
        Unit::Module(m) => {
            let _ = verify::module(m);
            print_module(m)
        }
        Unit::Graph(g) => {
            let _ = verify::graph(g);
            print_graph(g)
        }
    };
    assert_eq!(parse(&printed).unwrap(), unit);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn graphs_round_trip(numbers in tape(400)) {
        let g = common::graph(&mut Tape::new(&numbers), "random");
        let text = print_graph(&g);
        verify::graph(&g).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert!(text.is_ascii());
        let parsed = parse_graph(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert_eq!(&parsed, &g);
        prop_assert_eq!(print_graph(&parsed), text);
    }

    #[test]
    fn modules_round_trip(numbers in tape(400)) {
        let m = common::module(&mut Tape::new(&numbers));
        let text = print_module(&m);
        verify::module(&m).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let parsed = parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert_eq!(&parsed, &m);
        prop_assert_eq!(print_module(&parsed), text);
    }

    #[test]
    fn mutilated_graphs_do_not_panic(numbers in tape(200), edits in prop::collection::vec(tape(30), 20)) {
        let text = print_graph(&common::graph(&mut Tape::new(&numbers), "random"));
        edits.iter().for_each(|e| survives(&mutilate(&text, &mut Tape::new(e))));
    }

    #[test]
    fn mutilated_modules_do_not_panic(numbers in tape(300), edits in prop::collection::vec(tape(30), 20)) {
        let text = print_module(&common::module(&mut Tape::new(&numbers)));
        edits.iter().for_each(|e| survives(&mutilate(&text, &mut Tape::new(e))));
    }

    #[test]
    fn any_text_does_not_panic(text in "[ -~\n]{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        survives(&text);
        survives(&String::from_utf8_lossy(&bytes));
    }
}

/// The generator reaches every op, so that the properties speak about all of them.
#[test]
fn random_graphs_hold_every_op() {
    let mut seen = std::collections::BTreeSet::new();
    let mut x = 1u64;
    for _ in 0..2000 {
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) as u32
        };
        let numbers: Vec<u32> = (0..400).map(|_| next()).collect();
        let g = common::graph(&mut Tape::new(&numbers), "random");
        seen.extend(g.nodes.iter().map(|n| n.op.name()));
    }
    let ops = "input weight state const neg abs exp log log1p sqrt rsqrt sigmoid add sub mul div min max cast reshape \
               broadcast slice concat sum reduce_max repeat matmul batch_matmul grouped_matmul top_k gather_last embed_rows \
               gather_rows causal_conv conv_update delta_rule project token_write pool_window tail_update pool_write \
               index_scores index_select attend_splits attend_combine";
    let missing: Vec<&str> = ops.split_whitespace().filter(|op| !seen.contains(op)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn limits_hold() {
    let long = "#".repeat(unglue_ir::text::MAX_TEXT + 1);
    assert!(parse(&long).unwrap_err().to_string().contains("67108864"));
    // Nesting is refused before it can exhaust the stack.
    let deep = format!("graph @g {{ {}", "body @b { ".repeat(1 << 20));
    assert!(parse(&deep).unwrap_err().to_string().contains("nested"));
    let brackets = format!("graph @g {{ %0 = const 1.0: {}", "(".repeat(1 << 20));
    assert!(parse(&brackets).is_err());
    let mut body = String::from("graph @g { body @b { %0 = input \"x\" normal: f32[R]\n");
    for i in 1..=verify::MAX_REPEAT_NODES {
        body.push_str(&format!("%{i} = neg %{}: f32[R]\n", i - 1));
    }
    assert!(parse(&body).unwrap_err().to_string().contains("at most 1024 nodes"));
}
