//! Files are whole or not there.

use tempfile::TempDir;

use crate::bundles::{INPUT, TINY, refused, report};

const OPTIONS: [&str; 2] = ["--html", "--trace"];

fn names(dir: &TempDir) -> Vec<String> {
    let names = std::fs::read_dir(dir.path()).unwrap();
    names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn broken_output_path_is_an_error_that_leaves_nothing() {
    let tiny = TINY.to_str().unwrap();
    for option in OPTIONS {
        let dir = TempDir::new().unwrap();
        let gone = dir.path().join("gone/out");
        let message = refused(&["report", tiny, option, gone.to_str().unwrap()], INPUT);
        assert!(message.contains(gone.to_str().unwrap()) && message.contains("output: found"), "{message}");
        let folder = dir.path().to_str().unwrap();
        let message = refused(&["report", tiny, option, folder], INPUT);
        assert!(message.contains("no file"), "{message}");
        assert!(names(&dir).is_empty(), "{:?}", names(&dir));
    }
}

#[test]
fn files_replace_what_was_there_and_leave_nothing_beside() {
    let dir = TempDir::new().unwrap();
    for option in OPTIONS {
        let out = dir.path().join("out");
        std::fs::write(&out, "before").unwrap();
        assert_eq!(report(&TINY, &[option, out.to_str().unwrap()]), "");
        assert!(std::fs::metadata(&out).unwrap().len() > 1000);
        assert_eq!(names(&dir), ["out"]);
    }
}

#[test]
fn all_forms_at_once() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let text = report(&TINY, &["--json", "--html", &path("a"), "--trace", &path("b")]);
    assert!(text.starts_with("{\"manifest\":"));
    assert!(std::fs::read_to_string(path("a")).unwrap().starts_with("<!DOCTYPE html>"));
    assert!(std::fs::read_to_string(path("b")).unwrap().starts_with("{\"displayTimeUnit\""));
}
