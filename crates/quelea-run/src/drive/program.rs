//! What starts this program again: itself, or the interpreter of which it is a script.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The words that start this program, where that is not its executable alone.
static WORDS: OnceLock<Vec<OsString>> = OnceLock::new();

/// From now on, these words start this program: an interpreter, its options, a script. They are fixed
/// once for a process.
pub fn started_by(words: Vec<OsString>) {
    if !words.is_empty() {
        // Later calls of one process are the same program.
        let _ = WORDS.set(words);
    }
}

/// The executable that starts this program again, by the same name or by its interpreter.
pub fn executable() -> std::io::Result<PathBuf> {
    match interpreter() {
        Some(path) => Ok(path.to_path_buf()),
        None => std::env::current_exe(),
    }
}

/// The interpreter that runs this program, if it is a script.
pub fn interpreter() -> Option<&'static Path> {
    WORDS.get().map(|words| Path::new(&words[0]))
}

/// A process of `executable`, which is this program's or another that takes the same arguments.
pub(super) fn restarted(executable: &Path) -> Command {
    let mut command = Command::new(executable);
    if interpreter() == Some(executable) {
        command.args(WORDS.get().into_iter().flatten().skip(1));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because the words are fixed once for a process.
    #[test]
    fn a_script_is_started_again_by_its_interpreter_and_other_programs_by_themselves() {
        assert_eq!(interpreter(), None);
        assert_eq!(executable().ok(), std::env::current_exe().ok());
        started_by(["/usr/bin/python3", "-m", "quelea"].map(OsString::from).to_vec());
        let again = executable().expect("the interpreter");
        assert_eq!(again, Path::new("/usr/bin/python3"));
        let words = |command: &Command| -> Vec<OsString> {
            command.get_args().map(OsString::from).collect()
        };
        assert_eq!(words(&restarted(&again)), ["-m", "quelea"]);
        assert_eq!(words(&restarted(Path::new("/bin/worker"))), [""; 0]);
    }
}
