//! Files that commands write: beside their place and renamed, so that they are whole or not there.

use std::path::{Path, PathBuf};

use crate::error::CliError;

/// Writes `text` to `path`; a file that is there is replaced.
///
/// # Errors
/// [`CliError::Input`] if `path` is something else than a file (a folder, a device), or cannot be written.
pub fn write(path: &Path, text: &str) -> Result<(), CliError> {
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return Err(CliError::input(path, "output: found something that is no file; needed the path of a file"));
    }
    let mut temporary = path.as_os_str().to_os_string();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|e| {
        let _ = std::fs::remove_file(&temporary);
        CliError::input(path, format!("output: found {e}; needed a folder that this user may write to"))
    })
}
