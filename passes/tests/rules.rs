//! Every rule of the table is sound on random instances of its left side, and fires on them.
#![allow(clippy::unwrap_used, clippy::panic)]

use unglue_passes::rules::soundness::check;
use unglue_passes::rules::table;

#[test]
fn every_rule_is_sound_and_fires() {
    let mut silent = Vec::new();
    for rule in table() {
        match check(&rule, 60) {
            Ok(0) => silent.push(rule.name),
            Ok(_) => {}
            Err(e) => panic!("{}: {}", e.rule, e.found),
        }
    }
    assert!(silent.is_empty(), "rules that never fired in their own test: {silent:?}");
}

#[test]
fn rules_have_unique_names_and_reasons() {
    let table = table();
    for (i, rule) in table.iter().enumerate() {
        assert!(table[..i].iter().all(|r| r.name != rule.name), "{} twice", rule.name);
        assert!(rule.reason.len() > 10, "{} has no reason", rule.name);
        assert!(rule.when.is_none_or(|w| w.len() > 10), "{} has an empty condition", rule.name);
    }
}
