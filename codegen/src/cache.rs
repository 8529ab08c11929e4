//! A folder of object files by the hash of all they were made from, so that a build compiles only what changed.
//!
//! In: a kernel's LLVM text and a row of the target table. Out: the object file that LLVM would make, from the folder if
//! it is there and whole. The key holds everything that the object depends on, so an entry is never stale; a folder may be
//! shared by builds that run at the same time, and be deleted at any time.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::error::CodegenError;
use crate::llvm;
use crate::target::Target;

/// Bytes of a SHA-256.
const HASH: usize = 32;

/// Object files in a folder, and what a build took from it.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    hits: AtomicU64,
    misses: AtomicU64,
    spoiled: AtomicU64,
}

/// Objects of one build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Taken {
    /// From the folder.
    pub hits: u64,
    /// Made anew, and stored.
    pub misses: u64,
    /// Of the misses: the folder had a file that is not what was stored.
    pub spoiled: u64,
}

impl Cache {
    /// Uses a folder, which is made if it is not there.
    ///
    /// # Errors
    /// [`CodegenError::Cache`] if the folder cannot be made.
    pub fn new(folder: &Path) -> Result<Cache, CodegenError> {
        std::fs::create_dir_all(folder).map_err(|error| refused(folder, &error))?;
        Ok(Cache { folder: folder.to_owned(), hits: 0.into(), misses: 0.into(), spoiled: 0.into() })
    }

    pub fn taken(&self) -> Taken {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Taken { hits: of(&self.hits), misses: of(&self.misses), spoiled: of(&self.spoiled) }
    }

    /// The object file of LLVM text, from the folder or by `make`.
    ///
    /// # Errors
    /// Those of `make`, and [`CodegenError::Cache`] if the folder cannot be read or written.
    pub(crate) fn object(
        &self,
        text: &str,
        t: &Target,
        make: impl FnOnce() -> Result<Vec<u8>, CodegenError>,
    ) -> Result<Vec<u8>, CodegenError> {
        let path = self.folder.join(key(text, t));
        match std::fs::read(&path) {
            Ok(bytes) => {
                if let Some(object) = whole(&bytes) {
                    self.hits.fetch_add(1, Ordering::Relaxed);
                    return Ok(object.to_vec());
                }
                self.spoiled.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(&path, &error)),
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let object = make()?;
        self.store(&path, &object).map_err(|error| refused(&path, &error))?;
        Ok(object)
    }

    /// Another build sees the whole file or none.
    fn store(&self, path: &Path, object: &[u8]) -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&Sha256::digest(object))?;
        file.write_all(object)?;
        file.persist(path)?;
        Ok(())
    }
}

/// The object of a file that holds its hash and it.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let (hash, object) = bytes.split_at_checked(HASH)?;
    (Sha256::digest(object).as_slice() == hash).then_some(object)
}

/// File name of what LLVM makes of a text: the hash of the text, of the target's row, of LLVM's version, and of the shim
/// that runs its passes.
fn key(text: &str, t: &Target) -> String {
    let mut hash = Sha256::new();
    let parts = [text, &format!("{t:?}"), &llvm::version(), include_str!("shim.cpp"), include_str!("llvm/emit.rs")];
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().fold(String::new(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}"); // into a string: it cannot fail
        name
    })
}

fn refused(path: &Path, error: &std::io::Error) -> CodegenError {
    CodegenError::Cache { path: path.display().to_string(), found: error.to_string() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::target::TARGETS;

    const TARGET: &Target = &TARGETS[0];

    fn never() -> Result<Vec<u8>, CodegenError> {
        Err(CodegenError::Cache { path: "none".into(), found: "made anew".into() })
    }

    #[test]
    fn an_object_is_made_once_for_each_text_and_target() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(&folder.path().join("a/b")).unwrap();
        assert_eq!(cache.object("text", TARGET, || Ok(vec![1, 2])).unwrap(), [1, 2]);
        assert_eq!(cache.object("text", TARGET, never).unwrap(), [1, 2]);
        assert!(cache.object("text.", TARGET, never).is_err());
        assert!(cache.object("text", &TARGETS[1], never).is_err());
        assert_eq!(cache.taken(), Taken { hits: 1, misses: 3, spoiled: 0 });
    }

    #[test]
    fn a_spoiled_entry_is_made_anew_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path()).unwrap();
        cache.object("text", TARGET, || Ok(vec![1, 2])).unwrap();
        let entry = folder.path().join(key("text", TARGET));
        let right = std::fs::read(&entry).unwrap();
        for spoiled in [right[..HASH].to_vec(), vec![], right[..3].to_vec(), [&right[..], &[0]].concat()] {
            std::fs::write(&entry, spoiled).unwrap();
            assert_eq!(cache.object("text", TARGET, || Ok(vec![1, 2])).unwrap(), [1, 2]);
            assert_eq!(std::fs::read(&entry).unwrap(), right);
        }
        assert_eq!(cache.taken(), Taken { hits: 0, misses: 5, spoiled: 4 });
    }

    #[test]
    fn what_cannot_be_made_is_not_stored() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path()).unwrap();
        assert!(cache.object("text", TARGET, never).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_in_the_folders_place_is_refused_by_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Cache::new(file.path()).unwrap_err().to_string();
        assert!(error.contains(file.path().to_str().unwrap()) && error.contains("--cache"), "{error}");
    }
}
