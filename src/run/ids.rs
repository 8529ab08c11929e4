//! The text of token ids: inline, or in a file. Any text gives ids or an error that says where it is wrong.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::CliError;
use crate::source::read_text;

/// Reads `1,2,3` or `@FILE`: numbers separated by commas or spaces, or a JSON array.
pub fn read(argument: &str) -> Result<Vec<i32>, CliError> {
    let Some(file) = argument.strip_prefix('@') else {
        return parse(argument).map_err(|e| CliError::input("--ids", e));
    };
    let path = Path::new(file);
    parse(&read_text(path)?).map_err(|e| CliError::input(path, e))
}

fn parse(text: &str) -> Result<Vec<i32>, String> {
    let text = text.trim();
    let ids = if text.starts_with('[') { json(text)? } else { separated(text)? };
    if ids.is_empty() { Err("no token ids; needed at least one".into()) } else { Ok(ids) }
}

fn json(text: &str) -> Result<Vec<i32>, String> {
    let values: Vec<Value> = serde_json::from_str(text).map_err(|e| format!("no JSON array of token ids: {e}"))?;
    values.iter().enumerate().map(|(i, v)| id(i, &v.to_string())).collect()
}

fn separated(text: &str) -> Result<Vec<i32>, String> {
    let mut ids = Vec::new();
    for part in text.split(',') {
        let before = ids.len();
        for word in part.split_whitespace() {
            ids.push(id(ids.len(), word)?);
        }
        if ids.len() == before && !text.is_empty() {
            return Err(format!("nothing between two commas after {before} token ids; needed a number"));
        }
    }
    Ok(ids)
}

fn id(index: usize, word: &str) -> Result<i32, String> {
    word.parse().map_err(|_| {
        let shown: String = word.chars().take(40).collect();
        format!("token id {index} is {shown:?}; needed a number from 0 to {}", i32::MAX)
    })
}

/// Refuses ids that the model does not have.
pub fn check(ids: &[i32], argument: &str, vocab: u64) -> Result<(), CliError> {
    match ids.iter().enumerate().find(|(_, id)| u64::try_from(**id).map_or(true, |id| id >= vocab)) {
        None => Ok(()),
        Some((i, id)) => {
            let at = argument.strip_prefix('@').map_or_else(|| PathBuf::from("--ids"), PathBuf::from);
            Err(CliError::input(
                at,
                format!("token id {i} is {id}; needed one of the vocabulary, 0 to {}", vocab.saturating_sub(1)),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_read() {
        for text in ["1,2,3", " 1, 2,\n3 ", "1 2\t3\n", "[1, 2, 3]", "[1,2,\n3]\n"] {
            assert_eq!(parse(text).unwrap(), [1, 2, 3], "{text:?}");
        }
        assert_eq!(parse("-1").unwrap(), [-1]);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_ids_or_an_error(text in ".*", like in r"[\[\]0-9,. \n+-]{0,40}") {
            for text in [text, like] {
                if let Ok(ids) = parse(&text) {
                    assert!(!ids.is_empty());
                }
            }
        }
    }

    #[test]
    fn wrong_text_is_an_error_that_says_where() {
        let deep = "[".repeat(100_000);
        for (text, says) in [
            ("", "at least one"),
            ("[]", "at least one"),
            (",", "commas"),
            ("1,,2", "after 1"),
            ("1,2,", "commas"),
            ("1,x", "token id 1 is \"x\""),
            ("99999999999999999999", "token id 0"),
            ("1.5", "token id 0"),
            ("[1, 2", "JSON"),
            ("[1] 2", "JSON"),
            ("[1, null]", "token id 1"),
            ("[1, [2]]", "token id 1"),
            ("[1.0]", "token id 0"),
            ("\u{0}\u{fffd}é", "token id 0"),
            (&deep, "JSON"),
        ] {
            let e = parse(text).unwrap_err();
            assert!(e.contains(says), "{:.40}: {e}", text);
        }
    }
}
